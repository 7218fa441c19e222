// Checkpoints of live models: every bit comes back, and a file that does not fit changes nothing.
#include "oa/ml/checkpoint/checkpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "oa/matrix/reduce.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/checkpoint/oam.h"
#include "oa/ml/nn/basic.h"
#include "oa/ml/nn/linear.h"
#include "oa/ml/optim/adam.h"
#include "oa/ml/optim/moving_average.h"
#include "oa/ml/optim/muon.h"
#include "oa/ml/optim/sgd.h"
#include "tests/matrix/devices.h"

namespace oa::test {
namespace {

using ml::CheckpointInfo;
using ml::nn::Sequential;

class CheckpointTest : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    folder_ = std::filesystem::temp_directory_path() / fmt::format("oa_checkpoint_{}", getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override {
    OnDevice::TearDown();
    std::filesystem::remove_all(folder_);
  }
  std::filesystem::path path(const char* name) const { return folder_ / name; }

  // Two layers with dropout between them, a buffer and a small state.
  std::shared_ptr<Sequential> model(u64 seed, i64 hidden = 5) {
    auto m = std::make_shared<Sequential>();
    m->add(ml::nn::Linear::with_seed(engine(), 3, hidden, seed));
    m->add(ml::nn::Dropout::with_seed(engine(), 0.5, 7));
    m->add(ml::nn::Linear::with_seed(engine(), hidden, 2, seed + 1));
    m->registry().register_buffer("kept", from<f32>({2}, {1, 2}));
    m->registry().register_buffer("lost", from<f32>({1}, {3}), false);
    counter_ = m->registry().register_state_u32("counter", static_cast<u32>(seed));
    return m;
  }
  void step(Sequential& m, ml::Optimizer& o) {
    o.zero_grad();
    ml::GradientTape tape;
    const Matrix y = m.forward(from<f32>({4, 3}, random_f32(1, 12)));
    tape.backward(matrix::sum(y * y));
    o.step();
    o.zero_grad();
  }
  static std::vector<std::vector<f32>> values(const Sequential& m) {
    std::vector<std::vector<f32>> all;
    for (const auto& p : m.all_parameters()) all.push_back(p.data().read_f32());
    return all;
  }
  template <class Optimizer, class... Args>
  void continues(Args... args) {
    const auto a = model(1);
    Optimizer first(a->all_parameters(), args...);
    for (int i = 0; i < 3; ++i) step(*a, first);
    ml::save_checkpoint(path("a.oam"), *a, first, {.extra = "note", .step = 3});
    for (int i = 0; i < 3; ++i) step(*a, first);
    const auto b = model(2);
    Optimizer second(b->all_parameters(), args...);
    const CheckpointInfo info = ml::load_checkpoint(engine(), path("a.oam"), *b, second);
    EXPECT_EQ(info.step, 3);
    EXPECT_EQ(info.extra, "note");
    EXPECT_EQ(counter_.value(), 1u);
    EXPECT_EQ(second.step_count(), 3u);
    for (int i = 0; i < 3; ++i) step(*b, second);
    EXPECT_EQ(values(*a), values(*b));
  }

  std::filesystem::path folder_;
  ml::StateU32 counter_;
};

TEST_P(CheckpointTest, AveragesInPlaceOfParametersAreNotOverwritten) {
  const auto m = model(1);
  ml::Sgd sgd(m->all_parameters(), 0.1);
  ml::save_checkpoint(path("a.oam"), *m, sgd);
  ml::ExponentialMovingAverage average(*m, 0.5);
  step(*m, sgd);
  average.update();
  const auto trained = values(*m);
  {
    const auto scope = average.scope();
    const auto shown = values(*m);
    EXPECT_EQ(
        error_of([&] { ml::load_checkpoint(engine(), path("a.oam"), *m, sgd); }),
        "load_checkpoint: parameter \"layer_0.weight\" shows its average, whose end gives the "
        "old elements back, expected a call after that");
    EXPECT_EQ(values(*m), shown);
  }
  EXPECT_EQ(values(*m), trained);
  ml::load_checkpoint(engine(), path("a.oam"), *m, sgd);
  EXPECT_NE(values(*m), trained);
}

TEST_P(CheckpointTest, EveryOptimizerGoesOnWithTheSameBits) {
  if (interpreted()) GTEST_SKIP() << "too slow";
  continues<ml::AdamW>(0.01);
  continues<ml::Adam>(0.01);
  continues<ml::Sgd>(0.01, 0.9, 0.1);
  continues<ml::Sgd>(0.01);
  continues<ml::Muon>(0.01);
}

TEST_P(CheckpointTest, WhatDoesNotFitChangesNothing) {
  if (interpreted()) GTEST_SKIP() << "too slow";
  const auto a = model(1);
  ml::AdamW adam(a->all_parameters(), 0.01);
  step(*a, adam);
  ml::save_checkpoint(path("a.oam"), *a, adam);
  const auto before = values(*a);

  const auto wide = model(1, 6);
  ml::AdamW wide_adam(wide->all_parameters(), 0.01);
  const auto wide_before = values(*wide);
  EXPECT_EQ(error_of([&] { ml::load_checkpoint(engine(), path("a.oam"), *wide, wide_adam); }),
            "load_checkpoint: the file does not fit the model, got \"layer_0.weight\" f32 [5, 3], "
            "expected \"layer_0.weight\" f32 [6, 3]");
  EXPECT_EQ(values(*wide), wide_before);

  const auto b = model(3);
  ml::Adam other(b->all_parameters(), 0.01);
  const auto b_before = values(*b);
  EXPECT_NE(error_of([&] { ml::load_checkpoint(engine(), path("a.oam"), *b, other); }), "");
  EXPECT_EQ(values(*b), b_before);
  EXPECT_EQ(error_of([&] { ml::save_checkpoint(path("x.oam"), *a, other); }),
            "save_checkpoint: the optimizer's parameters are not the model's, got 4 and 4, "
            "expected the same ones in the same order");
  EXPECT_FALSE(std::filesystem::exists(path("x.oam")));
  EXPECT_EQ(values(*a), before);
  // Without an optimizer, and quantised, the model alone can be read.
  ml::write_oam(path("q.oam"), ml::quantized(ml::read_oam(path("a.oam")), ml::Encoding::Q8));
  ml::load_model(engine(), path("q.oam"), *b);
  const auto after = values(*b);
  for (size_t i = 0; i < before.size(); ++i) {
    for (size_t k = 0; k < before[i].size(); ++k) EXPECT_NEAR(after[i][k], before[i][k], 0.01);
  }
}

OA_ON_DEVICES(CheckpointTest);

}  // namespace
}  // namespace oa::test
