// The ring of the staging memory: places, their reuse, and what a take leaves alone.
#include <gtest/gtest.h>

#include <random>

#include "oa/device/vulkan/staging.h"

namespace oa::device::vulkan {
namespace {

TEST(StagingRing, PiecesInUseNeverOverlap) {
  struct Piece {
    u64 begin, end, value;
  };
  std::mt19937 rng(1);
  Ring ring(4096);
  std::vector<Piece> used;
  u64 completed = 0;
  for (u64 value = 1; value <= 5000; ++value) {
    const u64 bytes = 1 + rng() % 1024;
    if (const auto at = ring.take(bytes, value)) {
      EXPECT_LE(*at + bytes, ring.bytes());
      EXPECT_EQ(*at % 64, 0u);
      for (const Piece& p : used) {
        if (p.value <= completed) continue;
        EXPECT_TRUE(*at >= p.end || *at + bytes <= p.begin);
      }
      used.push_back({*at, *at + bytes, value});
    } else {
      completed = std::max(completed, ring.oldest() + rng() % 3);
      ring.collect(completed);
    }
    std::erase_if(used, [&](const Piece& p) { return p.value <= completed; });
  }
}

// A reader holds on to the last piece although the device is done with it.
TEST(StagingRing, TheNextPieceLeavesTheLastOneAlone) {
  std::mt19937 rng(2);
  Ring ring(4096);
  u64 begin = 0, end = 0;
  for (u64 value = 1; value <= 5000; ++value) {
    if (rng() % 2) ring.collect(value - 1);
    const u64 bytes = rng() % 2 ? 1024 : 1 + rng() % 1024;
    auto at = ring.take(bytes, value);
    if (!at) {
      ring.collect(value - 1);
      at = ring.take(bytes, value);
    }
    ASSERT_TRUE(at) << "all of the ring is free";
    EXPECT_TRUE(*at >= end || *at + bytes <= begin) << value;
    begin = *at;
    end = *at + bytes;
  }
}

TEST(StagingRing, RefusesWhatDoesNotFit) {
  Ring ring(256);
  EXPECT_EQ(ring.take(257, 1), std::nullopt);
  EXPECT_EQ(ring.take(256, 1), 0u);
  EXPECT_EQ(ring.take(1, 2), std::nullopt);
  ring.collect(1);
  EXPECT_EQ(ring.take(1, 2), 0u);
}

}  // namespace
}  // namespace oa::device::vulkan
