// How exactly products of 32-bit floats are computed. The name fixes the order of summation, so
// that results have the same bits whichever kernel a device chooses.
#pragma once

#include <optional>
#include <string_view>

#include "oa/core/types.h"

namespace oa {

// The CPU, and GPUs without matrix units or room for their tiles, compute plain F32 for every name;
// so does the device itself where the numbers at hand do not fit a form.
enum class Precision : u8 {
  Engine,  // as the engine says
  F32,     // plain multiply-adds in f32
  // f32 from three products of halves: x = high + low, with a power of two per row of A and column
  // of B. Where |x| is 2^-17 of its row's maximum or more, 22 bits of it take part.
  F32x3,
  // f32 from six products of bfloat16: x = high + middle + low, all 24 bits, whatever the
  // exponents.
  F32x6,
  // Mixed precision: one product of operands rounded to 16 bits, summed in f32; all else stays F32,
  // weights too. The range of F16 is small: gradients want a loss scale.
  F16,
  BF16,
};

// Whether operands are rounded to 16 bits.
constexpr bool rounds(Precision p) { return p == Precision::F16 || p == Precision::BF16; }

constexpr std::string_view token(Precision p) {
  constexpr std::string_view names[] = {"engine", "f32", "f32x3", "f32x6", "f16", "bf16"};
  return names[static_cast<int>(p)];
}

// The precision of that name; none for "engine" and for other words.
constexpr std::optional<Precision> precision_from(std::string_view name) {
  for (Precision p :
       {Precision::F32, Precision::F32x3, Precision::F32x6, Precision::F16, Precision::BF16}) {
    if (token(p) == name) return p;
  }
  return std::nullopt;
}

}  // namespace oa
