// The CPU thread pool: every group runs exactly once and in order, for any number of threads.
#include "oa/device/cpu/thread_pool.h"

#include <fenv.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <array>
#include <chrono>
#include <limits>
#include <thread>

namespace oa::device {
namespace {

// params: counters (u32 each), one per group.
void count_groups(const u64* params, u32 first, u32 last, u32) {
  u32* counters = reinterpret_cast<u32*>(params[0]);
  for (u32 g = first; g < last; ++g) ++counters[g];
}

// params: stage values (u32 each) read, the same written, the stage, a counter of errors. Every
// group checks that the stage before it is complete: its own cell, the mirrored one and both ends.
void check_stage(const u64* params, u32 first, u32 last, u32 count) {
  const u32* before = reinterpret_cast<const u32*>(params[0]);
  u32* after = reinterpret_cast<u32*>(params[1]);
  const u32 stage = static_cast<u32>(params[2]);
  auto& errors = *reinterpret_cast<std::atomic<u32>*>(params[3]);
  for (u32 g = first; g < last; ++g) {
    for (u32 other : {g, count - 1 - g, 0u, count - 1})
      if (before[other] + 1 != stage) errors.fetch_add(1, std::memory_order_relaxed);
    after[g] = stage;
  }
}

// Runs per case; a thousand in all where code runs at full speed.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr u32 kRuns = 5;
#else
constexpr u32 kRuns = 84;
#endif

class Pool : public ::testing::TestWithParam<u32> {};

INSTANTIATE_TEST_SUITE_P(Threads, Pool, ::testing::Values(1, 2, 3, 8));

TEST_P(Pool, RunsEachGroupOnceForEveryGroupCount) {
  ThreadPool pool(GetParam());
  constexpr u32 kMax = 1000;
  std::vector<std::vector<u32>> counters(kMax + 1);
  std::vector<u64> params(kMax + 1);
  for (u32 n = 0; n <= kMax; ++n) {
    counters[n].assign(n + 1, 0);
    params[n] = reinterpret_cast<u64>(counters[n].data());
  }
  u32 runs = 0;
  // Estimates far from the truth only make the chunks smaller or larger.
  for (f32 group_ns : {0.0f, 1.0f, 40.0f, 5000.0f}) {
    for (u32 barrier_every : {1u, 7u, 2000u}) {
      std::vector<Work> work;
      for (u32 n = 0; n <= kMax; ++n)
        work.push_back({count_groups, &params[n], n, group_ns, n % barrier_every == 0});
      Schedule schedule;
      schedule.build(work, pool.threads());
      for (u32 i = 0; i < kRuns; ++i, ++runs) pool.run(schedule);
      for (u32 n = 0; n <= kMax; ++n) {
        for (u32 g = 0; g < n; ++g) ASSERT_EQ(counters[n][g], runs) << n << " " << g;
        ASSERT_EQ(counters[n][n], 0u);
      }
    }
  }
  EXPECT_EQ(runs, 12 * kRuns);
}

TEST_P(Pool, BarriersOrderDependentDispatches) {
  ThreadPool pool(GetParam());
  u32 random = 12345;
  for (u32 round = 0; round < 60; ++round) {
    random = random * 1664525u + 1013904223u;
    const u32 groups = 1 + (random >> 16) % (round % 3 == 0 ? 4 : 300);
    const u32 stages = 1 + round * 5;
    std::atomic<u32> errors{0};
    std::vector<std::vector<u32>> cells(stages + 1, std::vector<u32>(groups, 0));
    std::vector<std::array<u64, 4>> params(stages);
    std::vector<Work> work;
    for (u32 s = 0; s < stages; ++s) {
      params[s] = {reinterpret_cast<u64>(cells[s].data()),
                   reinterpret_cast<u64>(cells[s + 1].data()), s + 1,
                   reinterpret_cast<u64>(&errors)};
      random = random * 1664525u + 1013904223u;
      // A mixture of intervals that are shared and intervals that are not.
      const f32 group_ns = std::array{1.0f, 30.0f, 300.0f, 3000.0f}[random >> 30];
      work.push_back({check_stage, params[s].data(), groups, group_ns, true});
    }
    Schedule schedule;
    schedule.build(work, pool.threads());
    for (u32 i = 0; i < kRuns / 4; ++i) {
      for (auto& c : cells) std::fill(c.begin(), c.end(), 0);
      pool.run(schedule);
      ASSERT_EQ(errors, 0u);
      for (u32 s = 0; s <= stages; ++s) ASSERT_EQ(cells[s], std::vector<u32>(groups, s));
    }
  }
}

TEST_P(Pool, WithoutBarriersDispatchesAreStillComplete) {
  ThreadPool pool(GetParam());
  std::vector<u32> counters(50 * 40, 0);
  std::vector<u64> params;
  for (u32 d = 0; d < 50; ++d) params.push_back(reinterpret_cast<u64>(&counters[d * 40]));
  std::vector<Work> work;
  for (u32 d = 0; d < 50; ++d) work.push_back({count_groups, &params[d], d % 40, 500, false});
  Schedule schedule;
  schedule.build(work, pool.threads());
  EXPECT_EQ(schedule.intervals(), 1u);
  for (u32 i = 0; i < 500; ++i) pool.run(schedule);
  for (u32 d = 0; d < 50; ++d)
    for (u32 g = 0; g < 40; ++g) ASSERT_EQ(counters[d * 40 + g], g < d % 40 ? 500u : 0u);
}

TEST_P(Pool, GoesOnAfterItsThreadsFellAsleep) {
  ThreadPool pool(GetParam());
  std::vector<u32> counters(64, 0);
  const u64 params = reinterpret_cast<u64>(counters.data());
  const std::vector<Work> work(30, Work{count_groups, &params, 64, 200, true});
  Schedule schedule;
  schedule.build(work, pool.threads());
  for (u32 i = 1; i <= 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(i % 4 == 0 ? 6 : 0));
    pool.run(schedule);
    ASSERT_EQ(counters, std::vector<u32>(64, 30 * i));
  }
}

TEST_P(Pool, StartsAndStopsAtOnce) {
  for (u32 i = 0; i < 100; ++i) ThreadPool pool(GetParam());
  Schedule nothing;
  nothing.build({}, GetParam());
  ThreadPool pool(GetParam());
  pool.run(nothing);
  EXPECT_EQ(nothing.intervals(), 0u);
}

TEST_P(Pool, SurvivesTheEndOfTheIntervalNumbers) {
  ThreadPool pool(GetParam(), std::numeric_limits<u32>::max() - 1000);
  std::vector<u32> counters(64, 0);
  const u64 params = reinterpret_cast<u64>(counters.data());
  const std::vector<Work> work(30, Work{count_groups, &params, 64, 200, true});
  Schedule schedule;
  schedule.build(work, pool.threads());
  for (u32 i = 1; i <= 100; ++i) {
    pool.run(schedule);
    ASSERT_EQ(counters, std::vector<u32>(64, 30 * i));
  }
}

TEST_P(Pool, TimesEveryDispatch) {
  ThreadPool pool(GetParam());
  const auto wait = [](const u64*, u32 first, u32 last, u32) {
    for (u32 g = first; g < last; ++g) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  };
  std::vector<u32> counters(64, 0);
  const u64 params = reinterpret_cast<u64>(counters.data());
  const Work quick{count_groups, &params, 64, 100, false}, slow{wait, &params, 4, 2e6f, false},
      none{count_groups, &params, 0, 100, false};
  const std::vector<Work> work = {quick, slow, none, quick, slow};
  Schedule schedule;
  schedule.build(work, pool.threads(), true);
  ASSERT_EQ(schedule.intervals(), 5u);
  std::vector<f64> seconds(5, -1);
  pool.run(schedule, seconds.data());
  EXPECT_GE(seconds[1], 0.002);
  EXPECT_GE(seconds[4], 0.002);
  for (f64 s : seconds) EXPECT_GE(s, 0.0);
  EXPECT_EQ(counters, std::vector<u32>(64, 2));
}

TEST_P(Pool, ForEachCallsEachIndexOnce) {
  ThreadPool pool(GetParam());
  for (u32 n : {0u, 1u, 2u, 37u, 1000u}) {
    std::vector<u32> calls(n + 1, 0);
    pool.for_each(n, [&](u32 i) { ++calls[i]; });
    EXPECT_EQ(calls[n], 0u);
    calls.pop_back();
    EXPECT_EQ(calls, std::vector<u32>(n, 1));
  }
}

#if defined(__SSE2__)
// params: one f32 cell per group, which gets the smallest normal number halved.
void halve(const u64* params, u32 first, u32 last, u32) {
  f32* out = reinterpret_cast<f32*>(params[0]);
  volatile f32 smallest = std::numeric_limits<f32>::min();
  for (u32 g = first; g < last; ++g) out[g] = smallest * 0.5f;
}

TEST_P(Pool, KernelsFlushDenormalsAndTheCallerDoesNot) {
  ThreadPool pool(GetParam());
  std::vector<f32> cells(200, 7);
  const u64 params = reinterpret_cast<u64>(cells.data());
  const std::vector<Work> work(4, Work{halve, &params, 200, 1000, true});
  Schedule schedule;
  schedule.build(work, pool.threads());

  ::fesetround(FE_UPWARD);
  ::feclearexcept(FE_ALL_EXCEPT);
  pool.run(schedule);
  EXPECT_EQ(::fegetround(), FE_UPWARD);
  EXPECT_EQ(::fetestexcept(FE_ALL_EXCEPT), 0);
  ::fesetround(FE_TONEAREST);
  EXPECT_EQ(cells, std::vector<f32>(200, 0));

  f32 here = 0;
  const u64 here_params = reinterpret_cast<u64>(&here);
  halve(&here_params, 0, 1, 1);
  EXPECT_GT(here, 0.0f);
  std::vector<f32> helper(8, 0);
  pool.for_each(8, [&](u32 i) {
    const u64 p = reinterpret_cast<u64>(&helper[i]);
    halve(&p, 0, 1, 1);
  });
  EXPECT_EQ(helper, std::vector<f32>(8, here));
}
#endif

TEST(Pools, TwoCanRunSideBySide) {
  std::vector<std::thread> users;
  for (u32 u = 0; u < 2; ++u)
    users.emplace_back([] {
      ThreadPool pool(2);
      std::vector<u32> counters(64, 0);
      const u64 params = reinterpret_cast<u64>(counters.data());
      const std::vector<Work> work(30, Work{count_groups, &params, 64, 200, true});
      Schedule schedule;
      schedule.build(work, pool.threads());
      for (u32 i = 0; i < 200; ++i) pool.run(schedule);
      EXPECT_EQ(counters, std::vector<u32>(64, 6000));
    });
  for (std::thread& u : users) u.join();
}

TEST(Pools, FollowACallerThatMovesAndNeverPinIt) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  const std::vector<Core> cores = usable_cores();
  for (u32 threads : {static_cast<u32>(homes(cores).size()), static_cast<u32>(cores.size())}) {
    ThreadPool pool(threads);
    std::vector<u32> counters(64, 0);
    const u64 params = reinterpret_cast<u64>(counters.data());
    const std::vector<Work> work(30, Work{count_groups, &params, 64, 200, true});
    Schedule schedule;
    schedule.build(work, pool.threads());
    u32 runs = 0;
    for (u32 i = 0; i < 20; ++i) {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cores[i % cores.size()].number, &one);
      ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
      for (u32 j = 0; j < 5; ++j, ++runs) pool.run(schedule);
      cpu_set_t after;
      ASSERT_EQ(::sched_getaffinity(0, sizeof after, &after), 0);
      EXPECT_TRUE(CPU_EQUAL(&one, &after));
      ASSERT_EQ(::sched_setaffinity(0, sizeof before, &before), 0);
    }
    EXPECT_EQ(counters, std::vector<u32>(64, 30 * runs));
  }
}

void nothing(const u64*, u32, u32, u32) {}

TEST(Schedules, ShortDispatchesShareAnInterval) {
  const Work small{nothing, nullptr, 1, 100, true}, large{nothing, nullptr, 1000, 100, true};
  Schedule s;
  s.build(std::vector<Work>{small, small, large, large, small, small, small}, 2);
  ASSERT_EQ(s.intervals(), 4u);
  EXPECT_EQ(s.shared_intervals(), 3u);
  EXPECT_EQ(s.interval(0).ranges, 1u);
  EXPECT_EQ(s.interval(1).ranges, 2u);
  EXPECT_EQ(s.interval(3).ranges, 1u);
  EXPECT_DOUBLE_EQ(s.estimated_ns(), 200500);
  s.build(std::vector<Work>{small, small, large}, 2, true);
  EXPECT_EQ(s.intervals(), 3u);
  s.build(std::vector<Work>{small, small, large, large}, 1);
  EXPECT_EQ(s.intervals(), 1u);
  EXPECT_EQ(s.shared_intervals(), 0u);
}

TEST(Schedules, ManySmallDispatchesAreDealtEvenly) {
  const Work small{nothing, nullptr, 1, 3000, false};
  Schedule s;
  s.build(std::vector<Work>(64, small), 4);
  ASSERT_EQ(s.intervals(), 1u);
  ASSERT_EQ(s.interval(0).ranges, 4u);
  for (u32 r = 0; r < 4; ++r) EXPECT_EQ(s.range(s.interval(0), r).chunks, 16u);
}

TEST(Schedules, ChunksStayFewForHugeDispatches) {
  const Work huge{nothing, nullptr, ~0u, 1e9f, false};
  for (u32 threads : {2u, 8u, ThreadPool::kMaxThreads}) {
    Schedule s;
    s.build(std::vector<Work>(3, huge), threads);
    ASSERT_EQ(s.interval(0).ranges, threads);
    for (u32 r = 0; r < threads; ++r) {
      EXPECT_LE(s.range(s.interval(0), r).chunks, 24u);
      EXPECT_GE(s.range(s.interval(0), r).chunks, 8u);
    }
  }
}

}  // namespace
}  // namespace oa::device
