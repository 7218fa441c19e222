// The language-model suite: three kinds of tokens, three architectures. The losses of the first
// step are known to six digits from the model's definition; after 300 steps a model has learned the
// text, continues it, and comes back from its file unchanged.
#include "oa/ml/data/nlp_suite.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "oa/matrix/index.h"
#include "oa/matrix/random.h"
#include "oa/matrix/reduce.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/checkpoint/checkpoint.h"
#include "oa/ml/loss/cross_entropy.h"
#include "oa/ml/nn/recurrent.h"
#include "oa/ml/nn/transformer.h"
#include "oa/ml/optim/adam.h"
#include "oa/ml/tokenizer/bpe.h"
#include "tests/matrix/devices.h"

namespace oa::test {
namespace {

constexpr u64 kSeed = 20260714;
constexpr i64 kContext = 16, kBatch = 64, kWidth = 32, kHidden = 64, kSteps = 300;

enum class Tokens { Char, Byte, Bpe };
enum class Architecture { Rnn, Gru, Transformer };

struct Row {
  Tokens tokens;
  Architecture architecture;
  i64 parameters;
  f64 first_loss;
  // The byte GRU is on its way after 300 steps, from this seed and from any other: its embedding of
  // narrow numbers learns slowly (see ByteGruFromWideNumbers). The original reports 0.4993 and 85.5
  // %.
  bool slow = false;
};

constexpr Row kRows[] = {
    {Tokens::Char, Architecture::Rnn, 8891, 3.310754},
    {Tokens::Byte, Architecture::Rnn, 31104, 5.569197},
    {Tokens::Bpe, Architecture::Rnn, 37312, 5.774095},
    {Tokens::Char, Architecture::Gru, 21435, 3.292559},
    {Tokens::Byte, Architecture::Gru, 43648, 5.550348, true},
    {Tokens::Bpe, Architecture::Gru, 49856, 5.766479},
    {Tokens::Char, Architecture::Transformer, 10875, 4.040805},
    {Tokens::Byte, Architecture::Transformer, 25760, 5.656755},
    {Tokens::Bpe, Architecture::Transformer, 29920, 5.871271},
};

// Embedding, one recurrent layer, head.
template <class Layer>
class Recurrent final : public ml::Module {
 public:
  Recurrent(const Engine& e, const char* name, std::shared_ptr<Layer> layer, i64 vocab)
      : embed_(registry().register_module("embed",
                                          ml::nn::Embedding::with_seed(e, vocab, kWidth, kSeed))),
        layer_(registry().register_module(name, std::move(layer))),
        head_(registry().register_module(
            "head", ml::nn::Linear::with_seed(e, kHidden, vocab, kSeed + 2))) {}
  Matrix forward(const Matrix& tokens) override {
    return head_->forward(layer_->forward(embed_->forward(tokens)).reshape({-1, kHidden}));
  }

 private:
  std::shared_ptr<ml::nn::Embedding> embed_;
  std::shared_ptr<Layer> layer_;
  std::shared_ptr<ml::nn::Linear> head_;
};

std::shared_ptr<ml::Module> make_model(const Engine& e, Architecture a, i64 vocab) {
  switch (a) {
    case Architecture::Rnn:
      return std::make_shared<Recurrent<ml::nn::Rnn>>(
          e, "rnn", ml::nn::Rnn::with_seed(e, kWidth, kHidden, 1, kSeed + 1), vocab);
    case Architecture::Gru:
      return std::make_shared<Recurrent<ml::nn::Gru>>(
          e, "gru", ml::nn::Gru::with_seed(e, kWidth, kHidden, 1, true, kSeed + 1), vocab);
    default:
      return ml::nn::Transformer::with_seed(e, vocab, kContext, kWidth, kHidden, 1, 1, 1e-5, kSeed);
  }
}

std::unique_ptr<ml::tokenizer::Tokenizer> make_tokenizer(Tokens t) {
  switch (t) {
    case Tokens::Char: return std::make_unique<ml::tokenizer::CharTokenizer>();
    case Tokens::Byte: return std::make_unique<ml::tokenizer::ByteTokenizer>();
    default: {
      auto bpe = std::make_unique<ml::BpeTokenizer>(320);
      bpe->train_text(ml::data::nlp_suite_text(), 64);
      return bpe;
    }
  }
}

// The most likely continuation by a window that slides.
std::string greedy(const Engine& e, ml::Module& model, const ml::tokenizer::Tokenizer& tokenizer,
                   u32 filler) {
  std::vector<u32> tokens = tokenizer.encode_text("to be");
  std::vector<u32> written;
  size_t bytes = 0;
  const size_t prompt = tokenizer.decode(tokens).size();
  while (bytes < 80) {
    std::vector<u32> window(tokens.end() - std::min<std::ptrdiff_t>(kContext, std::ssize(tokens)),
                            tokens.end());
    const size_t last = window.size() - 1;
    window.resize(kContext, filler);
    const Matrix logits = model.forward(Matrix::from_slice<u32>(e, {1, kContext}, window));
    const u32 next =
        static_cast<u32>(matrix::argmax(logits.reshape({kContext, -1}), -1).read<i32>()[last]);
    tokens.push_back(next);
    bytes += tokenizer.decode(std::vector<u32>{next}).size();
  }
  const std::vector<u8> text = tokenizer.decode(tokens);
  return std::string(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(prompt + 80));
}

// At least 16 of the bytes after the prompt go on as the corpus does somewhere, and nine of ten
// eight-byte windows are in it. Byte pairs cut the prompt alone otherwise than within the corpus,
// so there the first word may be another one.
void expect_learned(const std::string& text, const std::string& corpus, Tokens tokens) {
  const std::string prompt = "to be";
  size_t longest = 0;
  for (size_t at = corpus.find(prompt); at != std::string::npos; at = corpus.find(prompt, at + 1)) {
    size_t n = 0;
    while (prompt.size() + n < text.size() && at + prompt.size() + n < corpus.size() &&
           text[prompt.size() + n] == corpus[at + prompt.size() + n]) {
      ++n;
    }
    longest = std::max(longest, n);
  }
  if (tokens != Tokens::Bpe) {
    EXPECT_GE(longest, 16u) << text;
  }
  size_t known = 0, all = 0;
  for (size_t i = 0; i + 8 <= text.size(); ++i, ++all) {
    known += corpus.find(text.substr(i, 8)) != std::string::npos;
  }
  EXPECT_GE(10 * known, 9 * all) << text;
}

// A row in training on a device.
struct Trained {
  Trained(Engine& e, const Row& row)
      : tokenizer(make_tokenizer(row.tokens)),
        vocab(row.tokens == Tokens::Bpe ? 320 : tokenizer->vocab_size()),
        sampler(tokenizer->encode_text(ml::data::nlp_suite_text())),
        model(make_model(e, row.architecture, vocab)),
        optimizer(model->all_parameters(), 0.01),
        in(kBatch * kContext),
        out(in.size()),
        x(Matrix::from_slice<u32>(e, {kBatch, kContext}, in)),
        y(Matrix::from_slice<u32>(e, {kBatch * kContext}, out)) {}

  // One step; the loss before it.
  Matrix step() {
    sampler.next(std::span<u32>(in), std::span<u32>(out));
    x.write<u32>(in);
    y.write<u32>(out);
    optimizer.zero_grad();
    ml::GradientTape tape;
    const Matrix loss = ml::loss::cross_entropy(model->forward(x), y);
    tape.backward(loss);
    optimizer.step();
    return loss;
  }

  // Loss and accuracy of a model on the last batch.
  std::pair<f32, f64> judge(ml::Module& m) const {
    const ml::NoGrad quiet;
    const Matrix logits = m.forward(x);
    const f32 loss = ml::loss::cross_entropy(logits, y).item();
    const auto hits = matrix::categorical_accuracy_count(logits, y).read<u32>()[0];
    return {loss, static_cast<f64>(hits) / (kBatch * kContext)};
  }

  std::unique_ptr<ml::tokenizer::Tokenizer> tokenizer;
  i64 vocab;
  ml::data::NlpSuiteSampler sampler;
  std::shared_ptr<ml::Module> model;
  ml::AdamW optimizer;
  std::vector<u32> in, out;
  Matrix x, y;
};

class NlpSuite : public testing::TestWithParam<std::tuple<const char*, Row>> {};

TEST_P(NlpSuite, LearnsTheText) {
  const auto& [device, row] = GetParam();
  // A row takes half a minute on a software driver.
  if (std::string_view(device) != "cpu" && !std::getenv("OA_ALL_ROWS")) {
    GTEST_SKIP() << "OA_ALL_ROWS is not set";
  }
  Opened& opened = open_device(device);
  if (!opened.engine) GTEST_SKIP() << opened.failure;
  Engine& e = *opened.engine;
  Trained t(e, row);
  EXPECT_EQ(t.model->num_parameters(), row.parameters);
  for (i64 step = 0; step < kSteps; ++step) {
    const Matrix loss = t.step();
    if (step == 0) {
      EXPECT_NEAR(loss.item(), row.first_loss, 1e-4);
    }
  }
  const auto judge = [&](ml::Module& m) { return t.judge(m); };
  const auto [loss, accuracy] = judge(*t.model);
  if (row.slow) {
    EXPECT_NEAR(loss, 0.4993, 0.12);
    EXPECT_GT(accuracy, 0.815);
  }
  EXPECT_LT(loss, row.slow ? 0.6 : row.tokens == Tokens::Bpe ? 0.03 : 0.25);
  EXPECT_GT(accuracy, row.slow ? 0.8 : row.tokens == Tokens::Bpe ? 0.97 : 0.90);
  const u32 filler = row.tokens == Tokens::Char ? 26 : 0;
  const std::string text = greedy(e, *t.model, *t.tokenizer, filler);
  if (!row.slow) expect_learned(text, ml::data::nlp_suite_text(), row.tokens);

  const auto path = std::filesystem::temp_directory_path() /
                    fmt::format("oa_nlp_suite_{}_{}.oam", static_cast<int>(row.tokens),
                                static_cast<int>(row.architecture));
  ml::save_checkpoint(path, *t.model, t.optimizer, {.step = kSteps});
  const auto again = make_model(e, row.architecture, t.vocab);
  ml::AdamW fresh(again->all_parameters(), 0.01);
  EXPECT_EQ(ml::load_checkpoint(e, path, *again, fresh).step, kSteps);
  std::filesystem::remove(path);
  EXPECT_EQ(judge(*again), judge(*t.model));
  EXPECT_EQ(greedy(e, *again, *t.tokenizer, filler), text);
}

std::string row_name(const testing::TestParamInfo<std::tuple<const char*, Row>>& tested) {
  const Row& row = std::get<1>(tested.param);
  constexpr const char* tokens[] = {"Char", "Byte", "Bpe"};
  constexpr const char* architectures[] = {"Rnn", "Gru", "Transformer"};
  return fmt::format("{}{}_{}", tokens[static_cast<int>(row.tokens)],
                     architectures[static_cast<int>(row.architecture)], std::get<0>(tested.param));
}

INSTANTIATE_TEST_SUITE_P(Rows, NlpSuite,
                         testing::Combine(testing::Values("cpu", "lavapipe"),
                                          testing::ValuesIn(kRows)),
                         row_name);

// The same model, batches and steps from an embedding of normal numbers reach what the others do.
TEST(NlpSuiteGru, ByteGruFromWideNumbers) {
  Engine& e = *open_device("cpu").engine;
  Trained t(e, kRows[4]);
  ASSERT_TRUE(kRows[4].slow);
  const ml::Parameter embedding = t.model->all_parameters()[0];
  ASSERT_EQ(embedding.data().shape(), (Shape{256, kWidth}));
  embedding.replace_data(matrix::normal(e, {256, kWidth}, 0, 1, kSeed));
  for (i64 step = 0; step < kSteps; ++step) (void)t.step();
  const auto [loss, accuracy] = t.judge(*t.model);
  EXPECT_LT(loss, 0.25);
  EXPECT_GT(accuracy, 0.90);
  expect_learned(greedy(e, *t.model, *t.tokenizer, 0), ml::data::nlp_suite_text(), Tokens::Byte);
}

// Forward pass, gradients and updates of another device: the losses of its first steps.
class NlpSuiteSteps : public testing::TestWithParam<std::tuple<const char*, Row>> {};

TEST_P(NlpSuiteSteps, FirstOnesAreThoseOfTheCpu) {
  const auto& [device, row] = GetParam();
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "too slow under a sanitizer";
#endif
  Opened& opened = open_device(device);
  if (!opened.engine) GTEST_SKIP() << opened.failure;
  Trained here(*opened.engine, row), cpu(*open_device("cpu").engine, row);
  for (int step = 0; step < 6; ++step) {
    const f64 loss = here.step().item(), wanted = cpu.step().item();
    EXPECT_NEAR(loss, step == 0 ? row.first_loss : wanted, 1e-4) << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, NlpSuiteSteps,
                         testing::Combine(testing::Values("lavapipe"), testing::ValuesIn(kRows)),
                         row_name);

}  // namespace
}  // namespace oa::test
