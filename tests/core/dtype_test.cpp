// 16-bit float conversions, over every bit pattern.
#include "oa/core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>

namespace oa {
namespace {

TEST(DType, EveryF16SurvivesTheRoundTrip) {
  for (u32 h = 0; h < 0x10000; ++h) {
    const f32 x = f16_to_f32(static_cast<u16>(h));
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(x))));
    } else {
      ASSERT_EQ(f32_to_f16(x), h);
    }
  }
}

TEST(DType, F16RoundsToNearestEven) {
  EXPECT_EQ(f32_to_f16(1.0f + 0x1p-11f), 0x3c00);      // tie, even below
  EXPECT_EQ(f32_to_f16(1.0f + 3 * 0x1p-11f), 0x3c02);  // tie, even above
  EXPECT_EQ(f32_to_f16(1.0f + 0x1.004p-11f), 0x3c01);  // just above the tie
  EXPECT_EQ(f32_to_f16(65519.0f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0x0000);  // tie to zero
  EXPECT_EQ(f32_to_f16(0x1.8p-25f), 0x0001);
  EXPECT_EQ(f32_to_f16(-0.0f), 0x8000);
}

TEST(DType, Bf16RoundsToNearestEven) {
  EXPECT_EQ(f32_to_bf16(1.0f + 0x1p-8f), 0x3f80);
  EXPECT_EQ(f32_to_bf16(1.0f + 3 * 0x1p-8f), 0x3f82);
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::nanf("")))));
  EXPECT_EQ(f32_to_bf16(INFINITY), 0x7f80);
}

}  // namespace
}  // namespace oa
