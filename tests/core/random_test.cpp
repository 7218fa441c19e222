// Known answers and ranges of the host's random numbers.
#include "oa/core/random.h"

#include <gtest/gtest.h>

#include <cmath>

namespace oa {
namespace {

TEST(Random, SplitMixGivesThePublishedStream) {
  // The first outputs for the seed 1234567, as in the test of the reference implementation.
  SplitMix64 stream(1234567);
  for (u64 expected : {6457827717110365317ull, 3203168211198807973ull, 9817491932198370423ull,
                       4593380528125082431ull, 16408922859458223821ull}) {
    EXPECT_EQ(stream.next(), expected);
  }
}

TEST(Random, UnitValuesAreTheTopBits) {
  SplitMix64 words(42), units(42);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(units.next_unit(), static_cast<f32>(words.next() >> 40) / 16777216.0f);
  }
  const std::vector<f32> u = unit_uniform(1000, 42), s = symmetric_uniform(1000, 0.25f, 42);
  for (size_t i = 0; i < u.size(); ++i) {
    EXPECT_GE(u[i], 0);
    EXPECT_LT(u[i], 1);
    EXPECT_EQ(s[i], (2 * u[i] - 1) * 0.25f);
  }
  EXPECT_TRUE(unit_uniform(0, 1).empty());
  EXPECT_NE(unit_uniform(4, 0), unit_uniform(4, 1));  // seed 0 is a seed like any other
}

TEST(Random, PhiloxGivesTheKnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, philox_key(20260714)),
            (PhiloxCounter{0xcb59153a, 0xfbfee024, 0x25764a4e, 0x48a6ab11}));
  EXPECT_EQ(philox_key(0x123456789abcdef0), (PhiloxKey{0x9abcdef0, 0x12345678}));
}

TEST(Random, WordsMapToTheirIntervals) {
  EXPECT_EQ(unit_from_word(0), 0);
  EXPECT_EQ(unit_from_word(255), 0);
  EXPECT_EQ(unit_from_word(256), 0x1p-24f);
  EXPECT_EQ(unit_from_word(~0u), 1 - 0x1p-24f);
  EXPECT_EQ(open_unit_from_word(0), 0x1p-24f);
  EXPECT_EQ(open_unit_from_word(~0u), 1);
}

TEST(Random, NormalValuesAreFiniteAndStandard) {
  for (u32 a : {0u, 255u, 256u, ~0u}) {
    for (u32 b : {0u, 0x40000000u, 0x80000000u, ~0u}) {
      const auto [x, y] = normal_pair(a, b);
      EXPECT_TRUE(std::isfinite(x) && std::isfinite(y)) << a << " " << b;
    }
  }
  f64 sum = 0, squares = 0, cubes = 0, fourths = 0;
  const int n = 1 << 16;
  for (u32 i = 0; i < n / 2; ++i) {
    const PhiloxCounter w = philox4x32({i, 0, 0, 0}, philox_key(7));
    const auto [x, y] = normal_pair(w[0], w[1]);
    for (const f64 v : {static_cast<f64>(x), static_cast<f64>(y)}) {
      sum += v, squares += v * v, cubes += v * v * v, fourths += v * v * v * v;
    }
  }
  EXPECT_NEAR(sum / n, 0, 4 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1, 4 * std::sqrt(2.0 / n));
  EXPECT_NEAR(cubes / n, 0, 4 * std::sqrt(15.0 / n));
  EXPECT_NEAR(fourths / n, 3, 4 * std::sqrt(96.0 / n));
}

}  // namespace
}  // namespace oa
