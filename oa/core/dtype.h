// Element types of stored data.
#pragma once

#include <string_view>

#include "oa/core/types.h"

namespace oa {

// F32 is the working type. F16 and BF16 are storage types: they are computed on as F32 and rounded
// to nearest even when stored. F64 exists on the CPU, for gradient checks. Bool is one byte, 0
// or 1.
enum class DType : u8 { F32, F64, F16, BF16, I32, U32, U8, Bool };

inline constexpr int kDTypeCount = 8;

constexpr u32 size_bytes(DType t) {
  switch (t) {
    case DType::F64: return 8;
    case DType::F16:
    case DType::BF16: return 2;
    case DType::U8:
    case DType::Bool: return 1;
    default: return 4;
  }
}

constexpr std::string_view token(DType t) {
  constexpr std::string_view names[] = {"f32", "f64", "f16", "bf16", "i32", "u32", "u8", "bool"};
  return names[static_cast<int>(t)];
}

constexpr bool is_float(DType t) { return t <= DType::BF16; }
constexpr bool is_integer(DType t) { return t == DType::I32 || t == DType::U32 || t == DType::U8; }

// The types whose bits a host array of T holds.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<f32> {
  static constexpr DType value = DType::F32;
};
template <>
struct DTypeOf<f64> {
  static constexpr DType value = DType::F64;
};
template <>
struct DTypeOf<i32> {
  static constexpr DType value = DType::I32;
};
template <>
struct DTypeOf<u32> {
  static constexpr DType value = DType::U32;
};
template <>
struct DTypeOf<u8> {
  static constexpr DType value = DType::U8;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::Bool;
};

// Host conversions of the 16-bit storage types; rounding is to nearest even.
u16 f32_to_f16(f32 x);
f32 f16_to_f32(u16 x);
u16 f32_to_bf16(f32 x);
f32 bf16_to_f32(u16 x);

}  // namespace oa
