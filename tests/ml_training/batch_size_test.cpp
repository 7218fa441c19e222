// Another size of the batch finds most of its kernels compiled: what follows from the batch is a
// parameter of them, and only other tiles or slices are other kernels. What they compute does not
// depend on the sizes that they were first made for.
#include <gtest/gtest.h>

#include "oa/ml/nn/recurrent.h"
#include "oa/ml/nn/transformer.h"
#include "tests/ml_training/support.h"
#include "tests/support/vulkan_name.h"

namespace oa {
namespace {

constexpr i64 kVocab = 61, kSteps = 12;

std::shared_ptr<ml::Module> transformer(const Engine& e) {
  return ml::nn::Transformer::with_seed(e, kVocab, kSteps, 48, 80, 3, 1, 1e-5, 7);
}

template <bool kGru>
class Recurrent final : public ml::Module {
 public:
  explicit Recurrent(const Engine& e)
      : embed_(registry().register_module("embed", ml::nn::Embedding::with_seed(e, kVocab, 20, 1))),
        head_(registry().register_module("head", ml::nn::Linear::with_seed(e, 36, kVocab, 2))) {
    if constexpr (kGru) {
      layer_ = registry().register_module("layer", ml::nn::Gru::with_seed(e, 20, 36, 1, true, 3));
    } else {
      layer_ = registry().register_module("layer", ml::nn::Rnn::with_seed(e, 20, 36, 1, 3));
    }
  }
  Matrix forward(const Matrix& tokens) override {
    return head_->forward(layer_->forward(embed_->forward(tokens)).reshape({-1, 36}));
  }

 private:
  std::shared_ptr<ml::nn::Embedding> embed_;
  std::shared_ptr<ml::Module> layer_;
  std::shared_ptr<ml::nn::Linear> head_;
};

template <bool kGru>
std::shared_ptr<ml::Module> recurrent(const Engine& e) {
  return std::make_shared<Recurrent<kGru>>(e);
}

struct BatchCase {
  const char* name;
  const char* device;
  std::shared_ptr<ml::Module> (*make)(const Engine&);
  u64 most_anew;  // kernels that a third size may compile: other tiles, other numbers of slices
};

std::vector<u32> tokens(i64 batch, u32 first) {
  std::vector<u32> t(static_cast<size_t>(batch * kSteps));
  for (size_t i = 0; i < t.size(); ++i) t[i] = static_cast<u32>((i * i + first) % kVocab);
  return t;
}

// Loss and parameters after one step of a new model.
test::Bits step(const Engine& e, const BatchCase& c, i64 batch) {
  const auto model = c.make(e);
  ml::AdamW optimizer(model->all_parameters(), 0.01);
  const Matrix x = Matrix::from_slice<u32>(e, {batch, kSteps}, tokens(batch, 3));
  const Matrix y = Matrix::from_slice<u32>(e, {batch * kSteps}, tokens(batch, 8));
  ml::GradientTape tape;
  const Matrix loss = ml::loss::cross_entropy(model->forward(x), y);
  tape.backward(loss);
  optimizer.step();
  test::Bits bits;
  test::add_bits(bits, loss);
  for (const ml::Parameter& p : model->all_parameters()) test::add_bits(bits, p.data());
  return bits;
}

class BatchSize : public testing::TestWithParam<BatchCase> {};

TEST_P(BatchSize, CompilesFewKernels) {
  const BatchCase& c = GetParam();
  const auto open = [&] { return Engine::open({.device = test::device_under_test(c.device)}); };
  const Engine e = open();
  step(e, c, 8);
  const u64 first = e.counters().kernels_made;
  u64 anew = 0;
  for (const i64 batch : {24, 40}) {
    const u64 before = e.counters().kernels_made;
    const test::Bits bits = step(e, c, batch);
    anew = e.counters().kernels_made - before;
    EXPECT_EQ(bits, step(open(), c, batch)) << "batch " << batch;
  }
  EXPECT_LE(anew, c.most_anew) << "of " << first;
  EXPECT_LT(2 * anew, first);
}

INSTANTIATE_TEST_SUITE_P(Models, BatchSize,
                         testing::Values(BatchCase{"TransformerCpu", "cpu", transformer, 18},
                                         BatchCase{"GruCpu", "cpu", recurrent<true>, 8},
                                         BatchCase{"RnnCpu", "cpu", recurrent<false>, 9},
                                         BatchCase{"TransformerVulkan", "lavapipe", transformer,
                                                   6}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace oa
