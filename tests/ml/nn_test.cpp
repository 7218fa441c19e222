// Modules: the tree and its names, initial weights, and what each layer computes.
#include <gtest/gtest.h>

#include <cmath>

#include "oa/core/random.h"
#include "oa/matrix/reduce.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/data/nlp_suite.h"
#include "oa/ml/loss/cross_entropy.h"
#include "oa/ml/nn/feed_forward.h"
#include "oa/ml/nn/transformer.h"
#include "tests/matrix/devices.h"

namespace oa::test {
namespace {

using namespace ml::nn;  // NOLINT

class NnTest : public OnDevice {};

std::vector<std::string> paths(const ml::Module& m) {
  std::vector<std::string> list;
  for (const auto& p : m.all_named_parameters()) list.push_back(p.path);
  return list;
}

TEST_P(NnTest, LinearIsItsFormula) {
  const auto layer = Linear::with_seed(engine(), 3, 2, 5);
  const auto w = symmetric_uniform(6, std::sqrt(6.0f / 5), 5);
  EXPECT_EQ(layer->weight().data().read_f32(), w);
  EXPECT_EQ(layer->bias()->data().read_f32(), (std::vector<f32>{0, 0}));
  const auto x = random_f32(1, 2 * 2 * 3);
  const Matrix y = layer->forward(from<f32>({2, 2, 3}, x));
  EXPECT_EQ(y.shape(), (Shape{2, 2, 2}));
  const auto got = y.read_f32();
  for (size_t r = 0; r < 4; ++r) {
    for (size_t o = 0; o < 2; ++o) {
      f64 sum = 0;
      for (size_t i = 0; i < 3; ++i) {
        sum += static_cast<f64>(x[r * 3 + i]) * static_cast<f64>(w[o * 3 + i]);
      }
      EXPECT_NEAR(static_cast<f64>(got[r * 2 + o]), sum, 1e-6);
    }
  }
}

TEST_P(NnTest, TransformerOfOneLayerHasTheKnownFirstLoss) {
  if (interpreted()) GTEST_SKIP() << "too slow";
  const auto model = Transformer::with_seed(engine(), 256, 16, 32, 64, 1, 1, 1e-5, 20260714);
  EXPECT_EQ(model->num_parameters(), 25760);
  EXPECT_EQ(paths(*model), (std::vector<std::string>{"token_embedding.weight",
                                                     "position_embedding.weight",
                                                     "block_0.ln_attn.weight",
                                                     "block_0.ln_attn.bias",
                                                     "block_0.attention.q_proj.weight",
                                                     "block_0.attention.q_proj.bias",
                                                     "block_0.attention.k_proj.weight",
                                                     "block_0.attention.k_proj.bias",
                                                     "block_0.attention.v_proj.weight",
                                                     "block_0.attention.v_proj.bias",
                                                     "block_0.attention.out_proj.weight",
                                                     "block_0.attention.out_proj.bias",
                                                     "block_0.ln_ffn.weight",
                                                     "block_0.ln_ffn.bias",
                                                     "block_0.ffn1.weight",
                                                     "block_0.ffn1.bias",
                                                     "block_0.ffn2.weight",
                                                     "block_0.ffn2.bias",
                                                     "final_norm.weight",
                                                     "final_norm.bias",
                                                     "head.weight",
                                                     "head.bias"}));
  const std::string text = ml::data::nlp_suite_text();
  std::vector<u32> tokens(text.begin(), text.end());
  ml::data::NlpSuiteSampler sampler(tokens);
  std::vector<u8> in(1024);
  std::vector<u32> out(1024);
  sampler.next(std::span<u8>(in), std::span<u32>(out));
  const Matrix loss =
      ml::loss::cross_entropy(model->forward(from<u8>({64, 16}, in)), from<u32>({1024}, out));
  EXPECT_NEAR(loss.item(), 5.656755, 1e-4);
}

TEST_P(NnTest, TokenByTokenIsTheWholeAtOnce) {
  if (interpreted()) GTEST_SKIP() << "too slow";
  const i64 context = 12, vocab = 19;
  const auto model = Transformer::with_seed(engine(), vocab, context, 16, 24, 2, 4, 1e-5, 3);
  model->eval();
  std::vector<u32> tokens(2 * context);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<u32>(i * 7 % vocab);
  const auto whole = model->forward(from<u32>({2, context}, tokens)).read_f32();
  auto state = model->new_state(2);
  const i64 prompt = 5;
  Matrix logits = model->prefill(from<u32>({2, context}, tokens), prompt, state);
  for (i64 at = prompt - 1; at < context; ++at) {
    if (at >= prompt) {
      logits = model->step(from<u32>({2}, {tokens[static_cast<size_t>(at)],
                                           tokens[static_cast<size_t>(context + at)]}),
                           state);
    }
    const auto got = logits.read_f32();
    for (i64 b = 0; b < 2; ++b) {
      for (i64 v = 0; v < vocab; ++v) {
        ASSERT_NEAR(got[static_cast<size_t>(b * vocab + v)],
                    whole[static_cast<size_t>((b * context + at) * vocab + v)], 2e-5)
            << at;
      }
    }
  }
  EXPECT_EQ(error_of([&] { model->step(from<u32>({2}, {1, 2}), state); }),
            "Transformer: the context is full, got 12 positions, expected fewer than 12");
}

TEST_P(NnTest, AConditionedBlockStartsAsTheIdentityAndLearns) {
  if (interpreted()) GTEST_SKIP() << "too slow";
  const auto block = TransformerBlock::with_seed_conditioned(engine(), 8, 12, 5, 2, 3, 1e-5, 4);
  EXPECT_TRUE(block->is_adaptively_conditioned());
  const Matrix x = from<f32>({10, 8}, random_f32(1, 80)), c = from<f32>({2, 3}, random_f32(2, 6));
  EXPECT_EQ(block->forward_conditioned(x, c).read_f32(), x.read_f32());
  const auto moved = random_f32(3, 48 * 3);
  const auto plist = block->all_named_parameters();
  EXPECT_EQ(plist[plist.size() - 2].path, "adaptive_modulation.weight");
  plist[plist.size() - 2].parameter.replace_data(from<f32>({48, 3}, moved));
  ml::GradientTape tape;
  const Matrix y = block->forward_conditioned(x, c);
  tape.backward(matrix::sum(y * y));
  for (const auto& p : plist) EXPECT_TRUE(p.parameter.gradient()) << p.path;
  EXPECT_EQ(error_of([&] { block->forward_conditioned(x, x); }),
            "TransformerBlock: condition does not fit, got [10, 8], expected [2, 3]");
}

TEST_P(NnTest, EveryParameterGetsAGradientThroughEveryLayer) {
  if (interpreted()) GTEST_SKIP() << "too slow";
  Sequential model;
  model.add(Linear::with_seed(engine(), 6, 8, 1)).add(LayerNorm::create(engine(), 8));
  model.add(std::make_shared<Gelu>()).add(Swiglu::with_seed(engine(), 8, 5, true, 2));
  model.add(RmsNorm::create(engine(), 8)).add(Ffn::with_seed(engine(), 8, 6, 1e-5, 3));
  model.add(std::make_shared<Rope>(2, 4)).add(Dropout::with_seed(engine(), 0.3, 4));
  model.add(MultiHeadAttention::with_seed_and_options(engine(), 8, 2, 5, 0.2, true, 6));
  model.add_named("last", std::make_shared<Softmax>());
  ml::GradientTape tape;
  const Matrix y = model.forward(from<f32>({10, 6}, random_f32(1, 60)));
  tape.backward(matrix::sum(y * y));
  for (const auto& p : model.all_named_parameters()) {
    ASSERT_TRUE(p.parameter.gradient()) << p.path;
    f64 size = 0;
    for (f32 g : p.parameter.gradient()->read_f32()) size += std::abs(static_cast<f64>(g));
    // The keys' bias moves all scores of a row alike, which softmax does not see.
    const bool unseen = p.path == "layer_8.k_proj.bias";
    EXPECT_TRUE(unseen || size > 1e-7) << p.path;
  }
}

TEST_P(NnTest, DropoutCountsItsCallsAndRestsInEvaluation) {
  const auto layer = Dropout::with_seed(engine(), 0.5, 9);
  const Matrix x = from<f32>({64}, std::vector<f32>(64, 1));
  const auto a = layer->forward(x).read_f32(), b = layer->forward(x).read_f32();
  EXPECT_NE(a, b);
  EXPECT_EQ(layer->buffers()[0].read<u32>(), (std::vector<u32>{2, 0}));
  {
    const auto eval = layer->scoped_eval();
    EXPECT_EQ(layer->forward(x).read_f32(), x.read_f32());
    EXPECT_EQ(layer->buffers()[0].read<u32>(), (std::vector<u32>{2, 0}));
  }
  EXPECT_TRUE(layer->is_training());
  const auto again = Dropout::with_seed(engine(), 0.5, 9);
  EXPECT_EQ(again->forward(x).read_f32(), a);
}

OA_ON_DEVICES(NnTest);

TEST(Modules, TreesNamesAndRefusals) {
  Engine& e = *open_device("cpu").engine;
  Sequential model;
  const auto shared = Linear::with_seed(e, 2, 2, 1);
  model.add(shared);
  EXPECT_EQ(error_of([&] { model.add_named("1x", std::make_shared<Identity>()); }),
            "ModuleRegistry: bad name, got \"1x\", expected a letter or _ first, then letters, "
            "digits or _");
  EXPECT_EQ(error_of([&] { model.add_named("layer_0", std::make_shared<Identity>()); }),
            "ModuleRegistry: name \"layer_0\" is taken, expected a new one");
  EXPECT_EQ(model.len(), 1u);
  const auto inner = std::make_shared<Sequential>();
  inner->add(shared);
  model.add(inner);
  EXPECT_EQ(error_of([&] { (void)model.all_parameters(); }),
            "Module: module \"layer_1.layer_0\" is reached twice, expected a tree");
  EXPECT_EQ(error_of([&] { Linear::with_seed(e, 0, 2, 1); }),
            "Linear: bad size, got 0, expected 1 or more");
  EXPECT_EQ(error_of([&] { MultiHeadAttention::with_seed(e, 10, 3, 4, 1); }),
            "MultiHeadAttention: heads do not divide the width, got 3 and 10, expected a divisor");
  model.eval();
  EXPECT_FALSE(shared->is_training());
}

TEST(Modules, FlattenJoinsAxes) {
  Engine& e = *open_device("cpu").engine;
  const Matrix x = matrix::zeros(e, {2, 3, 4, 5});
  EXPECT_EQ(Flatten().forward(x).shape(), (Shape{2, 60}));
  EXPECT_EQ(Flatten(1, 2).forward(x).shape(), (Shape{2, 12, 5}));
  EXPECT_EQ(Flatten(-2, -1).forward(x).shape(), (Shape{2, 3, 20}));
  EXPECT_EQ(Flatten().forward(matrix::zeros(e, {7})).shape(), (Shape{7}));
  EXPECT_EQ(error_of([&] { Flatten(2, 1).forward(x); }),
            "Flatten: bad axes, got 2 to 1 for rank 4, expected start <= end within the rank");
}

}  // namespace
}  // namespace oa::test
