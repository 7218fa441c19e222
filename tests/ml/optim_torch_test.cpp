// Optimizers, clipping and schedules beside values that PyTorch made (tests/fixtures/optimizers).
#include "oa/ml/optim/adam.h"
#include "oa/ml/optim/clip.h"
#include "oa/ml/optim/schedule.h"
#include "oa/ml/optim/sgd.h"
#include "tests/fixtures/optimizers/torch_values.h"
#include "tests/matrix/devices.h"

namespace oa::test {
namespace {

class OptimTorch : public testing::Test {
 protected:
  Engine& engine() { return *open_device("cpu").engine; }
  std::vector<ml::Parameter> parameters() {
    const std::vector<f32> start = {1, -2, 0.5, 0.25, -0.125, 3};
    p_ = ml::Parameter::create("p", Matrix::from_f32(engine(), {2, 3}, start));
    return {p_};
  }
  void expect(ml::Optimizer& o, std::span<const f32> values, f64 clip = 0) {
    for (int step = 1; step <= 20; ++step) {
      std::vector<f32> g;
      for (int k = 0; k < 6; ++k) {
        g.push_back(static_cast<f32>((7 * step + 5 * k) % 17 - 8) / 16);
      }
      p_.set_gradient(Matrix::from_f32(engine(), {2, 3}, g));
      if (clip > 0) ml::clip_grad_norm(std::span<const ml::Parameter>(&p_, 1), clip);
      o.step();
    }
    const std::vector<f32> got = p_.data().read_f32();
    // PyTorch adds 1e-6 to the norm before it divides.
    const f32 tolerance = clip > 0 ? 1e-5f : 2e-6f;
    for (size_t k = 0; k < values.size(); ++k) EXPECT_NEAR(got[k], values[k], tolerance) << k;
  }
  static void expect(const ml::LrScheduler& s, std::span<const f64> rates) {
    for (size_t k = 0; k < rates.size(); ++k) EXPECT_NEAR(s.rate(k), rates[k], 1e-12) << k;
  }

 private:
  ml::Parameter p_;
};

TEST_F(OptimTorch, Sgd) {
  ml::Sgd plain(parameters(), 0.1, 0, 0.2);
  expect(plain, torch_values::kSgd);
  ml::Sgd momentum(parameters(), 0.05, 0.9, 0.3);
  expect(momentum, torch_values::kSgdMomentum);
}

TEST_F(OptimTorch, Adam) {
  ml::Adam adam(parameters(), 0.02, {0.8, 0.99, 1e-6});
  expect(adam, torch_values::kAdam);
  ml::AdamW decayed(parameters(), 0.02, 0.4);
  expect(decayed, torch_values::kAdamW);
  ml::AdamW clipped(parameters(), 0.02, 0.01, {.epsilon = 1e-2});
  expect(clipped, torch_values::kAdamWClipped, 0.25);
}

TEST_F(OptimTorch, Rates) {
  expect(ml::StepScheduler(0.1, 6, 0.5), torch_values::kStepRates);
  expect(ml::CosineScheduler(0.1, 0.01, 19), torch_values::kCosineRates);
  expect(ml::CosineWarmRestarts(0.1, 3, 2, 0.01), torch_values::kRestartRates);
  expect(ml::CyclicScheduler(0.01, 0.1, 4, ml::CyclicMode::Triangular2),
         torch_values::kCyclicRates);
}

}  // namespace
}  // namespace oa::test
