// The order of launches on a GPU: what can run side by side stands in one interval, and neither
// memory that values share nor assigned values change hands inside of one.
#include <gtest/gtest.h>

#include "oa/graph/evidence.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/matmul.h"
#include "oa/matrix/movement.h"
#include "oa/matrix/reduce.h"
#include "tests/matrix/devices.h"

namespace oa::test {
namespace {

using matrix::mat_mul;
using matrix::sum;

class Order : public OnDevice {
 protected:
  bool gpu() const {
    const std::string_view name = GetParam();
    return name == "lavapipe" || name == "checked_gpu";
  }
};

// Two chains of three products each, recorded one after the other.
TEST_P(Order, ChainsRunSideBySide) {
  const Matrix x = Matrix::from_f32(engine(), {40, 24}, random_f32(1, 40 * 24));
  std::vector<Matrix> w;
  for (u32 i = 0; i < 6; ++i) {
    w.push_back(Matrix::from_f32(engine(), {24, 24}, random_f32(i + 2, 24 * 24)));
  }
  const auto both = [&] {
    std::vector<Matrix> ends;
    for (size_t c = 0; c < 2; ++c) {
      Matrix y = x;
      for (size_t i = 0; i < 3; ++i) y = mat_mul(y, w[3 * c + i]);
      ends.push_back(y);
    }
    return ends;
  };
  const ExecutionPlan plan = engine().capture(both);
  EXPECT_EQ(plan.dispatch_count(), 6u);
  EXPECT_TRUE(!gpu() || plan.barrier_count() == 2);
  engine().submit(plan);
  for (size_t c = 0; c < 2; ++c) {
    const std::vector<f32> got = plan.results()[c].read_f32();
    Matrix alone = x;
    for (size_t i = 0; i < 3; ++i) {
      alone = mat_mul(alone, w[3 * c + i]);
      engine().flush();
    }
    EXPECT_EQ(got, alone.read_f32());
  }
}

// A sum of products that wait for nothing but their operands makes none of them wait for another.
TEST_P(Order, SmallProductsDoNotWaitForOthersSums) {
  std::vector<Matrix> x, w;
  for (u32 i = 0; i < 3; ++i) {
    x.push_back(Matrix::from_f32(engine(), {30, 20}, random_f32(i + 1, 30 * 20)));
    w.push_back(Matrix::from_f32(engine(), {20, 16}, random_f32(i + 9, 20 * 16)));
  }
  const auto total = [&] {
    return std::vector{mat_mul(x[0], w[0]) + mat_mul(x[1], w[1]) + mat_mul(x[2], w[2])};
  };
  const ExecutionPlan plan = engine().capture(total);
  if (gpu()) {
    EXPECT_EQ(plan.barrier_count(), 1u);
    EXPECT_EQ(plan.evidence().boundaries[0].obstacle, graph::Obstacle::KeptApart);
  }
  engine().submit(plan);
  std::vector<std::vector<f32>> parts;
  for (size_t i = 0; i < 3; ++i) parts.push_back(mat_mul(x[i], w[i]).read_f32());
  const std::vector<f32> got = plan.results()[0].read_f32();
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], parts[0][i] + parts[1][i] + parts[2][i], 1e-5f) << i;
  }
}

// An assigned value is read by a launch that could as well run beside its replacement.
TEST_P(Order, OldElementsAreReadBeforeTheyAreReplaced) {
  const Matrix w = Matrix::from_f32(engine(), {32, 32}, random_f32(1, 32 * 32));
  const Matrix x = Matrix::from_f32(engine(), {32, 32}, random_f32(2, 32 * 32));
  const auto step = [&] {
    const Matrix product = mat_mul(x, w), old = sum(w, 0);
    w.assign(w * 0.5);
    return std::vector{product, old};
  };
  const ExecutionPlan plan = engine().capture(step);
  EXPECT_EQ(plan.dispatch_count(), 3u);  // no copy
  std::vector<f32> before = w.read_f32();
  for (int i = 0; i < 2; ++i) {
    const std::vector<f32> columns = sum(w, 0).read_f32();
    engine().submit(plan);
    EXPECT_EQ(plan.results()[1].read_f32(), columns);
    for (f32& v : before) v *= 0.5f;
    EXPECT_EQ(w.read_f32(), before);
  }
}

// Values of one size that live one after the other, in many chains: memory goes from one to
// another only over a barrier.
TEST_P(Order, MemoryIsGivenOnAtBarriers) {
  constexpr size_t kChains = 5, kLength = 6;
  const Matrix x = Matrix::from_f32(engine(), {16, 16}, random_f32(1, 16 * 16, -0.3f, 0.3f));
  const auto all = [&] {
    std::vector<Matrix> ends;
    for (size_t c = 0; c < kChains; ++c) {
      Matrix y = x + static_cast<f64>(c);
      for (size_t i = 0; i < kLength; ++i) y = mat_mul(y, x);
      ends.push_back(sum(y));
    }
    return ends;
  };
  const ExecutionPlan plan = engine().capture(all);
  EXPECT_TRUE(!gpu() || plan.barrier_count() <= kLength + 1);
  engine().submit(plan);
  for (size_t c = 0; c < kChains; ++c) {
    Matrix y = x + static_cast<f64>(c);
    for (size_t i = 0; i < kLength; ++i) {
      engine().flush();
      y = mat_mul(y, x);
    }
    EXPECT_EQ(plan.results()[c].item(), sum(y).item()) << c;
  }
}

OA_ON_DEVICES(Order);

}  // namespace
}  // namespace oa::test
