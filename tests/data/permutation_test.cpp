// The computed order is a bijection for every size, and looks random.
#include "oa/ml/data/permutation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_set>
#include <vector>

#include "oa/core/error.h"

namespace oa::ml::data {
namespace {

std::vector<u64> order(u64 size, u64 seed, u64 epoch) {
  const Permutation p(size, seed, epoch);
  std::vector<u64> values(size);
  for (u64 i = 0; i < size; ++i) values[i] = p(i);
  return values;
}

TEST(Permutation, IsABijectionForSmallSizes) {
  for (u64 size = 1; size <= 600; ++size) {
    for (u64 seed = 0; seed < 3; ++seed) {
      auto values = order(size, seed, 5);
      std::sort(values.begin(), values.end());
      for (u64 i = 0; i < size; ++i) ASSERT_EQ(values[i], i) << size;
    }
  }
}

// Around every square, where the rounds' square changes, and larger ones.
TEST(Permutation, IsABijectionForLargerSizes) {
  for (const u64 size : {9999, 10000, 10001, 65535, 65536, 65537, 1'000'003}) {
    std::vector<bool> seen(size);
    const Permutation p(size, 1, 2);
    for (u64 i = 0; i < size; ++i) {
      const u64 value = p(i);
      ASSERT_LT(value, size);
      ASSERT_FALSE(seen[value]);
      seen[value] = true;
    }
  }
}

TEST(Permutation, HugeSizesGiveDifferentValuesInside) {
  const u64 half = u64{1} << 32;
  for (const u64 size :
       {half - 1, half, half + 1, u64{1} << 53, (u64{1} << 53) + 1, (half - 1) * (half - 1),
        (half - 1) * (half - 1) + 1, ~u64{0} - 1, ~u64{0}}) {
    const Permutation p(size, 3, 4);
    std::unordered_set<u64> seen;
    for (u64 i = 0; i < 20'000; ++i) {
      for (const u64 at : {i, size - 1 - i, size / 2 + i}) {
        const u64 value = p(at);
        ASSERT_LT(value, size);
        seen.insert(value);
      }
    }
    EXPECT_EQ(seen.size(), 60'000u) << size;
  }
}

TEST(Permutation, DependsOnSeedAndEpochOnly) {
  EXPECT_EQ(order(1000, 7, 3), order(1000, 7, 3));
  std::vector<std::vector<u64>> orders;
  for (const u64 seed : {u64{0}, u64{1}, u64{1} << 32, u64{1} << 63})
    for (const u64 epoch : {u64{0}, u64{1}, u64{1} << 32})
      orders.push_back(order(1000, seed, epoch));
  std::sort(orders.begin(), orders.end());
  EXPECT_EQ(std::unique(orders.begin(), orders.end()), orders.end());
  // Fixed for good: a resumed run goes on in the order that it began with.
  EXPECT_EQ(order(5, 0, 0), (std::vector<u64>{4, 3, 2, 1, 0}));
  EXPECT_EQ(order(6, 0, 1), (std::vector<u64>{3, 0, 2, 4, 1, 5}));
  EXPECT_EQ(order(24, 1, 2), (std::vector<u64>{0,  10, 9, 12, 4, 1,  18, 21, 13, 15, 14, 22,
                                               16, 23, 6, 3,  5, 19, 7,  11, 17, 20, 8,  2}));
}

TEST(Permutation, SmallSizesHaveEveryOrder) {
  for (const u64 size : {2u, 3u, 4u, 5u}) {
    const u64 orders = size == 2 ? 2 : size == 3 ? 6 : size == 4 ? 24 : 120;
    std::vector<u32> count(3125);
    const u64 trials = 200 * orders;
    for (u64 epoch = 0; epoch < trials; ++epoch) {
      const auto values = order(size, 9, epoch);
      u64 code = 0;
      for (const u64 v : values) code = code * size + v;
      ++count[code];
    }
    f64 chi = 0;
    for (const u32 c : count)
      if (c) chi += (c - 200.0) * (c - 200.0) / 200.0;
    EXPECT_EQ(
        static_cast<u64>(std::count_if(count.begin(), count.end(), [](u32 c) { return c > 0; })),
        orders);
    EXPECT_LT(chi, static_cast<f64>(orders) + 5 * std::sqrt(2.0 * static_cast<f64>(orders)));
  }
}

// Every number goes to every place equally often, and pairs of neighbours as well.
TEST(Permutation, PlacesAreUniform) {
  for (const u64 size : {21u, 25u, 26u, 36u, 37u, 100u}) {
    const u64 trials = 400 * size;
    std::vector<u32> place(size * size), after(size * size);
    for (u64 epoch = 0; epoch < trials; ++epoch) {
      const auto values = order(size, 0, epoch);
      for (u64 i = 0; i < size; ++i) ++place[i * size + values[i]];
      for (u64 i = 0; i + 1 < size; ++i) ++after[values[i] * size + values[i + 1]];
    }
    const auto chi = [](const std::vector<u32>& counts, f64 expected) {
      f64 sum = 0;
      for (const u32 c : counts)
        if (expected > 0 && c > 0) sum += (c - expected) * (c - expected) / expected;
      return sum;
    };
    const f64 n = static_cast<f64>(size), free_places = (n - 1) * (n - 1), pairs = n * (n - 1);
    EXPECT_LT(chi(place, 400), free_places + 6 * std::sqrt(2 * free_places)) << size;
    EXPECT_LT(chi(after, 400.0 * (n - 1) / (n - 1)), pairs + 6 * std::sqrt(2 * pairs)) << size;
  }
}

TEST(Permutation, NothingHasNoOrder) { EXPECT_THROW(Permutation(0, 1, 2), Error); }

}  // namespace
}  // namespace oa::ml::data
