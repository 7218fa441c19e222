// Learning-rate schedules: known values, ends, phases of no steps, and refusals.
#include <cmath>
#include <limits>

#include "oa/ml/optim/schedule.h"
#include "tests/matrix/devices.h"

namespace oa::test {
namespace {

using namespace ml;

std::vector<f64> first(const LrScheduler& s, u64 n) {
  std::vector<f64> list;
  for (u64 i = 0; i < n; ++i) list.push_back(s.rate(i));
  return list;
}

void expect_near(const std::vector<f64>& got, const std::vector<f64>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-12) << i;
}

constexpr u64 kFar = std::numeric_limits<u64>::max();

TEST(OptimSchedule, WarmupStableDecay) {
  const WsdScheduler s(0.1, 4, 6, 4);
  expect_near(first(s, 16),
              {0.025, 0.05, 0.075, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.075, 0.05, 0.025, 0, 0, 0});
  EXPECT_EQ(s.rate(kFar), 0);
  expect_near(first(WsdScheduler(0.1, 0, 2, 2, 0.02), 5), {0.1, 0.1, 0.06, 0.02, 0.02});
  expect_near(first(WsdScheduler(0.1, 2, 0, 0), 4), {0.05, 0.1, 0.1, 0.1});
  expect_near(first(WsdScheduler(0.1, 0, 0, 2), 3), {0.05, 0, 0});
  expect_near(first(WsdScheduler(0.1, 0, 0, 0), 2), {0.1, 0.1});
}

TEST(OptimSchedule, WarmupBeginsAboveZeroAndHandsOver) {
  expect_near(first(WarmupScheduler(0.1, 4), 6), {0.025, 0.05, 0.075, 0.1, 0.1, 0.1});
  expect_near(first(WarmupScheduler(0.1, 0), 2), {0.1, 0.1});
  const auto s = WarmupScheduler::with_after(0.1, 2, std::make_shared<StepScheduler>(8, 1, 0.5));
  expect_near(first(s, 5), {0.05, 0.1, 8, 4, 2});
}

TEST(OptimSchedule, Cosine) {
  expect_near(first(CosineScheduler(1, 0.2, 4), 6),
              {1, 0.6 + 0.4 * std::sqrt(0.5), 0.6, 0.6 - 0.4 * std::sqrt(0.5), 0.2, 0.2});
  EXPECT_EQ(CosineScheduler(1, 0.2, 0).rate(0), 0.2);
  EXPECT_EQ(CosineScheduler(1, 0.2, kFar).rate(kFar), 0.2);
  expect_near(first(LinearWarmupCosine(2, 4, 1, 0), 6), {0.5, 1, 1, 0.5, 0, 0});
  expect_near(first(LinearWarmupCosine(0, 0, 1, 0.5), 2), {0.5, 0.5});
}

TEST(OptimSchedule, OneCycle) {
  const OneCycleScheduler s(1, 10, 0.4, 25, 100);
  EXPECT_NEAR(s.rate(0), 0.04, 1e-15);
  EXPECT_NEAR(s.rate(2), 0.52, 1e-12);
  EXPECT_NEAR(s.rate(4), 1, 1e-12);
  EXPECT_NEAR(s.rate(7), 0.5002, 1e-12);
  EXPECT_NEAR(s.rate(10), 0.0004, 1e-15);
  EXPECT_NEAR(s.rate(kFar), 0.0004, 1e-15);
  EXPECT_EQ(OneCycleScheduler(1, 10, 0).rate(0), 1);
  EXPECT_TRUE(std::isfinite(OneCycleScheduler(1, 10, 1).rate(9)));
  EXPECT_TRUE(std::isfinite(OneCycleScheduler(1, 0).rate(0)));
}

TEST(OptimSchedule, Cyclic) {
  expect_near(first(CyclicScheduler::triangular(1, 3, 2), 9), {1, 2, 3, 2, 1, 2, 3, 2, 1});
  expect_near(first(CyclicScheduler(1, 3, 1, CyclicMode::Triangular2), 6), {1, 3, 1, 2, 1, 1.5});
  expect_near(first(CyclicScheduler(1, 3, 1, CyclicMode::ExpRange, 0.5), 4), {1, 2, 1, 1.25});
}

TEST(OptimSchedule, CosineWarmRestarts) {
  expect_near(first(CosineWarmRestarts::fixed(1, 2), 5), {1, 0.5, 1, 0.5, 1});
  const CosineWarmRestarts s(1, 2, 2, 0.2);
  EXPECT_NEAR(s.rate(2), 1, 1e-12);
  EXPECT_NEAR(s.rate(4), 0.6, 1e-12);
  EXPECT_NEAR(s.rate(6), 1, 1e-12);
  EXPECT_NEAR(s.rate(10), 0.6, 1e-12);
  EXPECT_TRUE(std::isfinite(s.rate(kFar)));
  EXPECT_TRUE(std::isfinite(CosineWarmRestarts(1, kFar, kFar).rate(kFar)));
}

TEST(OptimSchedule, ConstantAndStep) {
  expect_near(first(ConstantScheduler(0.3), 2), {0.3, 0.3});
  EXPECT_EQ(ConstantScheduler(0.3).rate(kFar), 0.3);
  expect_near(first(StepScheduler(1, 2, 0.1), 5), {1, 1, 0.1, 0.1, 0.01});
  EXPECT_EQ(StepScheduler(1, 1, 0.5).rate(kFar), 0);
}

TEST(OptimSchedule, SequentialCountsStepsOfItsOwn) {
  const SequentialScheduler s(
      {std::make_shared<WarmupScheduler>(1, 2), std::make_shared<ConstantScheduler>(5),
       std::make_shared<StepScheduler>(8, 1, 0.5)},
      {2, 4});
  expect_near(first(s, 7), {0.5, 1, 5, 5, 8, 4, 2});
}

TEST(OptimSchedule, Plateau) {
  ReduceOnPlateau s(1, 0.1, 2, 0.5);
  EXPECT_EQ(s.rate(0), 1);
  EXPECT_EQ(s.step(10), 1);
  EXPECT_EQ(s.step(9.6), 1);  // not by more than 0.5: bad 1
  EXPECT_EQ(s.step(std::nan("")), 1);
  const ReduceOnPlateau::State before = s.state();
  EXPECT_EQ(before.bad, 2u);
  EXPECT_EQ(s.step(9.5), 0.1);  // bad 3 > 2
  EXPECT_EQ(s.state().bad, 0u);
  EXPECT_EQ(s.step(9.4), 0.1);  // better
  EXPECT_EQ(s.state().best, 9.4);
  ReduceOnPlateau again(1, 0.1, 2, 0.5);
  again.restore(before);
  EXPECT_EQ(again.step(9.5), 0.1);
  ReduceOnPlateau up(1, 0.5, 0, 0, 0.3, PlateauMode::Max);
  EXPECT_EQ(up.step(1), 1);
  EXPECT_EQ(up.step(2), 1);
  EXPECT_EQ(up.step(2), 0.5);
  EXPECT_EQ(up.step(2), 0.3);  // not below the least rate
  EXPECT_EQ(up.step(2), 0.3);
}

TEST(OptimSchedule, Refusals) {
  const f64 nan = std::nan("");
  EXPECT_EQ(error_of([&] { ConstantScheduler(-1.0); }),
            "ConstantScheduler: bad rate, got -1, expected a finite number of 0 or more");
  EXPECT_EQ(error_of([&] { CosineScheduler(nan, 0, 1); }),
            "CosineScheduler: bad max, got nan, expected a finite number of 0 or more");
  EXPECT_EQ(error_of([&] { StepScheduler(1, 0); }),
            "StepScheduler: bad period, got 0, expected 1 or more");
  EXPECT_EQ(error_of([&] { WarmupScheduler::with_after(1, 1, nullptr); }),
            "WarmupScheduler: the schedule after the warm-up is empty, expected one");
  EXPECT_EQ(error_of([&] { LinearWarmupCosine(3, 2, 1, 0); }),
            "LinearWarmupCosine: bad total, got 2, expected the 3 steps of warm-up or more");
  EXPECT_EQ(error_of([&] { OneCycleScheduler(1, 1, 1.5); }),
            "OneCycleScheduler: bad part of rising steps, got 1.5, expected 0 to 1");
  EXPECT_EQ(error_of([&] { OneCycleScheduler(1, 1, 0.5, 0); }),
            "OneCycleScheduler: bad div, got 0, expected a positive number");
  EXPECT_EQ(error_of([&] { CyclicScheduler(2, 1, 1); }),
            "CyclicScheduler: bad max, got 1, expected the base 2 or more");
  EXPECT_EQ(error_of([&] { CyclicScheduler(1, 2, 0); }),
            "CyclicScheduler: bad up, got 0, expected 1 or more");
  EXPECT_EQ(error_of([&] { CosineWarmRestarts(1, 2, 0); }),
            "CosineWarmRestarts: bad multiplier, got 0, expected 1 or more");
  const auto one = std::make_shared<ConstantScheduler>(1);
  EXPECT_EQ(error_of([&] { SequentialScheduler({}, {}); }),
            "SequentialScheduler: no schedules, got an empty list, expected one or more");
  EXPECT_EQ(error_of([&] { SequentialScheduler({one, nullptr}, {1}); }),
            "SequentialScheduler: schedule 1 is empty, expected one");
  EXPECT_EQ(error_of([&] { SequentialScheduler({one, one}, {}); }),
            "SequentialScheduler: bad number of milestones, got 0, expected 1");
  EXPECT_EQ(error_of([&] { SequentialScheduler({one, one, one}, {2, 2}); }),
            "SequentialScheduler: milestones do not grow, got 2 after 2, expected a greater one");
  EXPECT_EQ(error_of([&] { ReduceOnPlateau(1, 1); }),
            "ReduceOnPlateau: bad factor, got 1, expected 0 or more and less than 1");
}

}  // namespace
}  // namespace oa::test
