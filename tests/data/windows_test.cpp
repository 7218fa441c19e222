// Windows: what they hold, that every token is seen, and that any step can be computed alone.
#include "oa/ml/data/windows.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "tests/data/folder.h"

namespace oa::ml::data {
namespace {

using test::error_of;

TokenStore counting(u64 count, u32 vocab = 100'000) {
  std::vector<u32> ids(count);
  std::iota(ids.begin(), ids.end(), 0u);
  return TokenStore::from_ids(ids, vocab);
}

TEST(Split, ValidationIsTheEnd) {
  const auto both = [](u64 tokens, f64 share, u64 context) {
    const Split s = split_tokens(tokens, share, context);
    EXPECT_EQ(s.train.begin, 0u);
    EXPECT_EQ(s.train.end, s.validation.begin);
    EXPECT_EQ(s.validation.end, tokens);
    return s.validation.size();
  };
  EXPECT_EQ(both(1000, 0.1, 16), 100u);
  EXPECT_EQ(both(1000, 0, 16), 0u);
  EXPECT_EQ(both(1000, 0.001, 16), 17u);  // a window at least
  EXPECT_EQ(both(1000, 0.999, 16), 983u);
  EXPECT_EQ(both(34, 0.5, 16), 17u);
  EXPECT_EQ(both(17, 0, 16), 0u);
  EXPECT_EQ(both(u64{1} << 40, 0.25, 1024), u64{1} << 38);
  EXPECT_EQ(both(~u64{0}, 0.5, 16), u64{1} << 63);
  const auto message = [](u64 tokens, f64 share, u64 context) {
    return error_of([&] { split_tokens(tokens, share, context); }).second;
  };
  EXPECT_EQ(message(33, 0.1, 16),
            "split_tokens: too little data, got 33 tokens, expected at least 34 for windows of "
            "context 16 in training and validation");
  EXPECT_EQ(message(16, 0, 16),
            "split_tokens: too little data, got 16 tokens, expected at least 17 for windows of "
            "context 16");
  EXPECT_EQ(message(100, 1, 16),
            "split_tokens: wrong share for validation, got 1, expected 0 or more and less than 1");
  EXPECT_NE(message(100, std::nan(""), 16), "no error");
  EXPECT_NE(message(100, -0.1, 16), "no error");
  EXPECT_NE(message(100, 0, 0), "no error");
  EXPECT_NE(message(~u64{0}, 0.5, ~u64{0}), "no error");
}

TEST(ShuffledWindows, HoldTheTokensBehindEachOther) {
  for (const u64 context : {1u, 2u, 5u, 16u}) {
    for (u64 size = context + 1; size < context + 70; ++size) {
      const u64 begin = 13;
      const ShuffledWindows windows(counting(200), {begin, begin + size}, context, 3);
      ASSERT_GE(windows.windows(), 1u);
      std::vector<u32> inputs(windows.windows() * context), targets(inputs.size());
      for (u64 epoch = 0; epoch < 5; ++epoch) {
        windows.fill(epoch * windows.windows(), inputs, targets);
        std::set<u32> seen;
        for (size_t i = 0; i < inputs.size(); ++i) {
          ASSERT_GE(inputs[i], begin);
          ASSERT_LT(targets[i], begin + size);
          ASSERT_EQ(targets[i], inputs[i] + 1);
          if (i % context != 0) {
            ASSERT_EQ(inputs[i], inputs[i - 1] + 1);
          }
          ASSERT_TRUE(seen.insert(inputs[i]).second);  // once in an epoch
        }
        ASSERT_GT(seen.size() + 2 * context, size);  // all but fewer than 2 context
      }
    }
  }
}

TEST(ShuffledWindows, EveryOffsetComesUp) {
  const ShuffledWindows windows(counting(1000), {0, 1000}, 10, 1);
  std::set<u64> offsets, firsts;
  for (u64 epoch = 0; epoch < 200; ++epoch) {
    u64 least = ~u64{0};
    for (u64 i = 0; i < windows.windows(); ++i) least = std::min(least, windows.begin(epoch, i));
    offsets.insert(least);
    firsts.insert(windows.begin(epoch, 0) / 10);
  }
  EXPECT_EQ(offsets.size(), 10u);
  EXPECT_EQ(*offsets.rbegin(), 9u);
  EXPECT_GT(firsts.size(), 70u);
}

// Batches of any size, from any sample on, are the rows of one endless sequence.
TEST(ShuffledWindows, AnyStepCanBeComputedAlone) {
  const u64 context = 4;
  const ShuffledWindows windows(counting(103), {0, 103}, context, 42);
  const u64 rows = 5 * windows.windows();
  std::vector<u32> all(rows * context), targets(all.size());
  windows.fill(0, all, targets);
  for (const u64 batch : {1u, 3u, 7u, 24u, 60u}) {
    std::vector<u32> inputs(batch * context), next(inputs.size());
    for (u64 first = 0; first + batch <= rows; first += batch) {
      const ShuffledWindows again(counting(103), {0, 103}, context, 42);
      again.fill(first, inputs, next);
      ASSERT_TRUE(std::equal(inputs.begin(), inputs.end(),
                             all.begin() + static_cast<std::ptrdiff_t>(first * context)));
      ASSERT_TRUE(std::equal(next.begin(), next.end(),
                             targets.begin() + static_cast<std::ptrdiff_t>(first * context)));
    }
  }
  std::vector<u32> other(all.size());
  ShuffledWindows(counting(103), {0, 103}, context, 43).fill(0, other, targets);
  EXPECT_NE(other, all);
  windows.fill(~u64{0} - 10, std::span(other).first(8 * context),
               std::span(targets).first(8 * context));
}

TEST(ShuffledWindows, BytesAndWrongBuffers) {
  const TokenStore store = counting(200, 256);
  const ShuffledWindows windows(store, {0, 200}, 8, 0);
  std::vector<u8> bytes(24);
  std::vector<u32> ids(24), targets(24), same(24);
  windows.fill(5, bytes, targets);
  windows.fill(5, ids, same);
  EXPECT_TRUE(std::ranges::equal(bytes, ids));
  EXPECT_EQ(targets, same);
  windows.fill(5, std::span<u8>(), std::span<u32>());

  const auto message = [](auto&& call) { return error_of(call).second; };
  EXPECT_EQ(
      message([&] { windows.fill(0, std::span(ids).first(23), std::span(targets).first(23)); }),
      "ShuffledWindows: buffers of 23 inputs and 23 targets, expected equal multiples of the "
      "context 8");
  EXPECT_EQ(message([&] { windows.fill(0, std::span(ids).first(16), targets); }),
            "ShuffledWindows: buffers of 16 inputs and 24 targets, expected equal multiples of the "
            "context 8");
  EXPECT_EQ(
      message([&] { ShuffledWindows(counting(200, 257), {0, 200}, 8, 0).fill(0, bytes, targets); }),
      "ShuffledWindows: 257 ids do not fit into inputs of bytes, expected at most 256");
  EXPECT_EQ(message([&] { ShuffledWindows(store, {0, 201}, 8, 0); }),
            "ShuffledWindows: range 0 .. 201, expected one within 200 tokens");
  EXPECT_EQ(message([&] { ShuffledWindows(store, {100, 50}, 8, 0); }),
            "ShuffledWindows: range 100 .. 50, expected one within 200 tokens");
  EXPECT_EQ(
      message([&] { ShuffledWindows(store, {100, 108}, 8, 0); }),
      "ShuffledWindows: too few tokens for one window, got 8, expected at least context + 1 = 9");
  EXPECT_EQ(message([&] { ShuffledWindows(store, {0, 200}, 0, 0); }),
            "ShuffledWindows: got context 0, expected at least 1");
  EXPECT_EQ(
      message([&] { ShuffledWindows(TokenStore(), {0, 0}, 1, 0); }),
      "ShuffledWindows: too few tokens for one window, got 0, expected at least context + 1 = 2");
}

TEST(SequentialWindows, EveryTargetOnce) {
  for (u64 size = 5; size < 60; ++size) {
    const SequentialWindows windows(counting(100), {7, 7 + size}, 4);
    EXPECT_EQ(windows.windows(), (size - 1) / 4);
    std::vector<u32> inputs(12), targets(12);
    u32 next = 8;
    u64 first = 0;
    for (u64 rows; (rows = windows.fill(first, inputs, targets)) > 0; first += rows)
      for (u64 i = 0; i < 4 * rows; ++i, ++next) {
        ASSERT_EQ(targets[i], next);
        ASSERT_EQ(inputs[i], next - 1);
      }
    EXPECT_EQ(first, windows.windows());
    EXPECT_EQ(windows.fill(~u64{0}, inputs, targets), 0u);
  }
}

}  // namespace
}  // namespace oa::ml::data
