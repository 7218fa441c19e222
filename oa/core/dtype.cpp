#include "oa/core/dtype.h"

#include <bit>

namespace oa {

u16 f32_to_f16(f32 x) {
  const u32 bits = std::bit_cast<u32>(x);
  const u16 sign = static_cast<u16>((bits >> 16) & 0x8000u);
  const u32 mag = bits & 0x7fffffffu;
  if (mag > 0x7f800000u) return sign | 0x7e00u;             // NaN, made quiet
  if (mag >= 0x477ff000u) return sign | 0x7c00u;            // rounds to infinity
  if (mag >= 0x38800000u) {                                 // normal
    const u32 rounded = mag + 0xfffu + ((mag >> 13) & 1u);  // nearest even on 13 dropped bits
    return static_cast<u16>(sign | ((rounded - 0x38000000u) >> 13));
  }
  // Subnormal: adding 0.5 lets the FPU round at the right bit.
  const f32 shifted = std::bit_cast<f32>(mag) + 0.5f;
  return static_cast<u16>(sign | (std::bit_cast<u32>(shifted) - 0x3f000000u));
}

f32 f16_to_f32(u16 x) {
  const u32 sign = static_cast<u32>(x & 0x8000u) << 16;
  const u32 mag = x & 0x7fffu;
  if (mag >= 0x7c00u) return std::bit_cast<f32>(sign | 0x7f800000u | ((mag & 0x3ffu) << 13));
  if (mag >= 0x0400u) return std::bit_cast<f32>(sign | ((mag << 13) + 0x38000000u));
  const f32 value = static_cast<f32>(mag) * 0x1p-24f;
  return std::bit_cast<f32>(sign | std::bit_cast<u32>(value));
}

u16 f32_to_bf16(f32 x) {
  const u32 bits = std::bit_cast<u32>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<u16>((bits >> 16) | 0x40u);
  return static_cast<u16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

f32 bf16_to_f32(u16 x) { return std::bit_cast<f32>(static_cast<u32>(x) << 16); }

}  // namespace oa
