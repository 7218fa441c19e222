// Captured generation: one program per token, the bits of recorded steps, and of the whole sequence
// at once within rounding.
#include "oa/ml/nn/generation.h"

#include <set>

#include "oa/ml/nn/recurrent.h"
#include "support.h"

namespace oa::test {
namespace {

using ml::nn::Generation;
using ml::nn::GenerationOptions;
using ml::nn::Transformer;
using Prompts = std::vector<std::vector<u32>>;
using Results = std::vector<Matrix>;

constexpr i64 kContext = 8, kVocab = 19;

class Generate : public OnDevice {
 protected:
  std::shared_ptr<Transformer> transformer(f64 dropout = 0) {
    return Transformer::with_seed_and_dropout(engine(), kVocab, kContext, 16, 24, 2, 4, 1e-5,
                                              dropout, 3);
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, Generate, testing::Values("cpu", "lavapipe"),
                         [](const auto& tested) { return std::string(tested.param); });

Bits bits_of(const Matrix& m) {
  Bits bits;
  add_bits(bits, m);
  return bits;
}

// Tokens [B, context] and a model that knows no batch beyond it.
class Echo final : public ml::Module {
 public:
  explicit Echo(const Engine& e)
      : embed_(registry().register_module("embed", ml::nn::Embedding::with_seed(e, kVocab, 6, 1))),
        gru_(registry().register_module("gru", ml::nn::Gru::with_seed(e, 6, 7, 1, true, 2))),
        head_(registry().register_module("head", ml::nn::Linear::with_seed(e, 7, kVocab, 3))) {}
  Matrix forward(const Matrix& tokens) override {
    const Matrix x = gru_->forward(embed_->forward(tokens));
    return head_->forward(x.reshape({-1, 7}));
  }

 private:
  std::shared_ptr<ml::nn::Embedding> embed_;
  std::shared_ptr<ml::nn::Gru> gru_;
  std::shared_ptr<ml::nn::Linear> head_;
};

// Rows of different lengths, and a context that fills up on the way.
TEST_P(Generate, ReplaysHaveTheBitsOfRecordedSteps) {
  const auto model = transformer(0.5);  // in evaluation mode nothing is dropped
  const auto echo = std::make_shared<Echo>(engine());
  const Prompts prompts = {{1, 2, 3}, {4}, {5, 6, 7, 8, 9, 10, 11, 12, 13, 14}};
  const bool cpu = std::string_view(GetParam()) == "cpu";  // elsewhere kernels take long to compile
  for (const bool cache : {true, false}) {
    if (!cache && !cpu) continue;
    std::vector<std::vector<u32>> tokens[2];
    Bits logits[2];
    for (const bool capture : {false, true}) {
      const GenerationOptions o{
          .sample = {.temperature = 2, .top_k = cpu ? 11 : 0, .top_p = cpu ? 0.9 : 1},
          .seed = 5,
          .capture = capture};
      Generation g =
          cache ? Generation(engine(), model, 3, o) : Generation(engine(), echo, kContext, 3, o);
      for (int round = 0; round < 2; ++round) {  // the second one by the same program
        tokens[capture].push_back(g.start(prompts));
        for (int i = 0; i < 14; ++i) {
          tokens[capture].push_back(g.next());
          add_bits(logits[capture], g.logits());
        }
      }
      EXPECT_EQ(g.plan().valid(), capture);
    }
    EXPECT_EQ(tokens[0], tokens[1]) << cache;
    EXPECT_EQ(logits[0], logits[1]) << cache;
    const size_t half = tokens[1].size() / 2;
    EXPECT_TRUE(std::equal(tokens[1].begin(), tokens[1].begin() + half, tokens[1].begin() + half))
        << "start() starts anew";
    std::vector<u32> first;
    for (const auto& t : tokens[1]) first.push_back(t[0]);
    EXPECT_GT(std::set<u32>(first.begin(), first.end()).size(), 4u) << "each token draws anew";
  }
  EXPECT_TRUE(model->registry().is_training()) << "the model keeps its mode";
}

TEST_P(Generate, EveryPositionIsTheWholeAtOnce) {
  const auto model = transformer();
  const ml::ScopedEval eval = model->scoped_eval();
  const ml::NoGrad quiet;
  std::vector<u32> all(2 * kContext);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<u32>(i * 7 % kVocab);
  const auto whole = model->forward(from<u32>({2, kContext}, all)).read_f32();
  Transformer::State state = model->new_state(2);
  const Matrix token = from<u32>({2}, {0, 0});
  engine().flush();
  const ExecutionPlan plan = engine().capture([&] { return Results{model->step(token, state)}; });
  EXPECT_EQ(state.longest(), 0) << "a capture runs nothing";
  EXPECT_FALSE(plan.is_input(state.lengths()));
  // Row 1 is two tokens ahead of row 0.
  for (int round = 0; round < 2; ++round) {
    const i64 lengths[] = {3, 5};
    (void)model->prefill(from<u32>({2, kContext}, all), lengths, state);
    for (i64 t = 0; t < 3; ++t) {
      const i64 at[] = {3 + t, 5 + t};
      token.write<u32>(std::vector<u32>{all[static_cast<size_t>(at[0])],
                                        all[static_cast<size_t>(kContext + at[1])]});
      engine().submit(plan);
      state.count_replays(1);
      const auto got = plan.results()[0].read_f32();
      for (i64 b = 0; b < 2; ++b) {
        for (i64 v = 0; v < kVocab; ++v) {
          ASSERT_NEAR(got[static_cast<size_t>(b * kVocab + v)],
                      whole[static_cast<size_t>((b * kContext + at[b]) * kVocab + v)], 2e-5)
              << b << " " << t;
        }
      }
    }
    EXPECT_EQ(state.lengths().read<i32>(), (std::vector<i32>{6, 8}));
    EXPECT_EQ(state.longest(), 8);
    EXPECT_EQ(error_of([&] { model->step(token, state); }),
              "Transformer: the context is full, got 8 positions, expected fewer than 8");
    EXPECT_EQ(error_of([&] { model->prefill(from<u32>({2, kContext}, all), 3, state); }),
              "Transformer: the state holds 8 positions, expected a new one or a reset");
    state.reset();
    EXPECT_EQ(state.lengths().read<i32>(), (std::vector<i32>{0, 0}));
  }
}

// The program itself knows where the cache ends.
TEST_P(Generate, ReplaysBeyondTheCapacityAreReportedAndChangeNothing) {
  const auto model = transformer();
  const ml::NoGrad quiet;
  Transformer::State state = model->new_state(2);
  const i64 lengths[] = {kContext - 1, 2};
  const Matrix prompt = from<u32>({2, kContext}, std::vector<u32>(16, 1));
  const Matrix token = from<u32>({2}, {3, 4});
  (void)model->prefill(prompt, lengths, state);
  const ExecutionPlan plan = engine().capture([&] { return Results{model->step(token, state)}; });
  engine().submit(plan);
  engine().wait();
  engine().submit(plan);
  const std::string text = error_of([&] { engine().wait(); });
  EXPECT_NE(text.find("index out of range at row 0, got 8, expected 0 to 7"), std::string::npos)
      << text;
  const auto logits = plan.results()[0].read_f32();
  EXPECT_TRUE(std::isnan(logits[0]));
  EXPECT_FALSE(std::isnan(logits[kVocab])) << "the other row goes on";
  EXPECT_EQ(state.lengths().read<i32>(), (std::vector<i32>{8, 4}));
  // Nothing of the NaN is left after a reset.
  state.reset();
  (void)model->prefill(prompt, lengths, state);
  engine().submit(plan);
  for (const f32 x : plan.results()[0].read_f32()) EXPECT_TRUE(std::isfinite(x));
}

TEST_P(Generate, TrainedParametersAreSeenByTheProgram) {
  const auto model = transformer();
  const GenerationOptions o{.sample = {.temperature = 0}};
  Generation g(engine(), model, 1, o);
  g.start(std::vector<u32>{1, 2});
  g.next();
  for (const ml::Parameter& p : model->all_parameters()) {
    p.replace_data(
        from<f32>(p.data().shape(), random_f32(7, static_cast<size_t>(p.data().num_elements()))));
  }
  Generation fresh(engine(), model, 1, {.sample = {.temperature = 0}, .capture = false});
  EXPECT_EQ(g.start(std::vector<u32>{1, 2}), fresh.start(std::vector<u32>{1, 2}));
  EXPECT_EQ(g.next(), fresh.next());
  EXPECT_EQ(bits_of(g.logits()), bits_of(fresh.logits()));
}

TEST(GenerateCalls, WrongCalls) {
  Engine& e = *open_device("cpu").engine;
  const auto model = Transformer::with_seed(e, kVocab, kContext, 16, 24, 1, 4, 1e-5, 3);
  EXPECT_EQ(error_of([&] { Generation(e, std::shared_ptr<Transformer>(), 1, {}); }),
            "Generation: model, got none, expected one");
  EXPECT_EQ(error_of([&] { Generation(e, model, 0, {}); }),
            "Generation: bad size, got 0, expected 1 or more");
  Generation g(e, model, 2, {});
  EXPECT_EQ(error_of([&] { g.next(); }), "Generation: next() before start()");
  EXPECT_EQ(error_of([&] { g.start(Prompts{{1}}); }),
            "Generation: wrong number of prompts, got 1, expected 2");
  EXPECT_EQ(error_of([&] { g.start(Prompts{{1}, {}}); }),
            "Generation: prompt 1 is empty, expected a token or more");
  const std::string text = error_of([&] { g.start(Prompts{{1}, {2, 77}}); });
  EXPECT_NE(text.find("got 77, expected 0 to 18"), std::string::npos) << text;
  EXPECT_EQ(error_of([&] { g.next(); }), "Generation: next() before start()");
  EXPECT_EQ(g.start(Prompts{{1}, {2}}).size(), 2u);
  EXPECT_EQ(g.next().size(), 2u);
}

TEST(GenerateCalls, OutlivesItsEngineHandleAndWaits) {
  std::optional<Engine> e = Engine::open({.device = "cpu"});
  const auto model = Transformer::with_seed(*e, kVocab, kContext, 16, 24, 1, 4, 1e-5, 3);
  Generation g(*e, model, 1, {.seed = 1});
  g.start(std::vector<u32>{1});
  Engine moved = std::move(*e);
  e.reset();
  EXPECT_EQ(g.next().size(), 1u);
  moved.close();
  const std::string text = error_of([&] { g.next(); });
  EXPECT_NE(text.find("closed"), std::string::npos) << text;
}

}  // namespace
}  // namespace oa::test
