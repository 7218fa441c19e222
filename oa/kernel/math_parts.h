// Building blocks of the mathematical functions (math*.cpp): the two float formats, polynomials,
// and the split of an argument into an integer and a small remainder.
#pragma once

#include <limits>
#include <type_traits>

#include "oa/core/error.h"
#include "oa/kernel/lang.h"
#include "oa/kernel/math_coefficients.h"
#include "oa/kernel/traced.h"

namespace oa::kernel {

template <Scalar S>
struct Format {
  static_assert(S == Scalar::F32 || S == Scalar::F64);
  static constexpr bool kDouble = S == Scalar::F64;
  using Host = std::conditional_t<kDouble, f64, f32>;
  using Word = std::conditional_t<kDouble, u64, u32>;
  using Bits = std::conditional_t<kDouble, U64, U32>;
  using Signed = std::conditional_t<kDouble, I64, I32>;
  using Tables = MathTables<Host>;

  static constexpr int kMantissa = kDouble ? 52 : 23;  // stored bits
  static constexpr int kBias = kDouble ? 1023 : 127;
  static constexpr Word kSign = Word{1} << (kDouble ? 63 : 31);
  static constexpr Word kOne = static_cast<Word>(kBias) << kMantissa;  // bits of 1.0
  static constexpr Word kRootHalf = kDouble ? 0x3fe6a09e667f3bcdull : 0x3f3504f3u;
  // Keeps so many leading bits that a product of two such values is exact.
  static constexpr Word kHalfMask = kDouble ? ~((Word{1} << 27) - 1) : ~((Word{1} << 12) - 1);
  // 1.5 * 2^kMantissa: adding it rounds to an integer, which the low bits of the sum then hold.
  static constexpr Host kRound = kDouble ? 6755399441055744.0 : 12582912.0f;
  static constexpr Host kMin = std::numeric_limits<Host>::min();  // smallest normal value
  static constexpr Host kInf = std::numeric_limits<Host>::infinity();
  static constexpr Host kNaN = std::numeric_limits<Host>::quiet_NaN();
};

template <Scalar S>
typename Format<S>::Bits bits_of(const Val<S>& x) {
  return bitcast<typename Format<S>::Bits>(x);
}

// The value whose sign, exponent and mantissa are given.
template <Scalar S>
Val<S> from_bits(const Value& bits) {
  return Val<S>(bitcast(bits, S));
}

// c[0] + c[1] x + c[2] x^2 + ...
template <Scalar S, size_t N>
Val<S> horner(const typename Format<S>::Host (&c)[N], const Val<S>& x) {
  Val<S> sum = c[N - 1];
  for (size_t k = N - 1; k-- > 0;) sum = fma(sum, x, Val<S>(c[k]));
  return sum;
}

// These keep NaN in x, and are one instruction on most machines.
template <Scalar S>
Val<S> at_most(const Val<S>& x, const Val<S>& limit) {
  return select(x > limit, limit, x);
}
template <Scalar S>
Val<S> at_least(const Val<S>& x, const Val<S>& limit) {
  return select(x < limit, limit, x);
}

template <Scalar S>
typename Format<S>::Bits sign_of(const Val<S>& x) {
  return bits_of(x) & Format<S>::kSign;
}

// y with the sign bit of x added; y has no sign bit of its own, or the same.
template <Scalar S>
Val<S> with_sign(const Val<S>& y, const typename Format<S>::Bits& sign) {
  return from_bits<S>(bits_of(y) | sign);
}

// n = t - rounding constant, as a float, and 2^n.
template <Scalar S>
struct Power {
  Val<S> n;
  Val<S> scale;
};

// `shifted` = y + shift, where shift = Format::kRound + bias + up: then n is y rounded to an
// integer and scale is 2^(n + up). Good for n + up from -bias, where scale is 0, to bias.
template <Scalar S>
Power<S> power_of(const Val<S>& shifted, int up = 0) {
  using F = Format<S>;
  return {shifted - (F::kRound + F::kBias + up), from_bits<S>(bits_of(shifted) << F::kMantissa)};
}
template <Scalar S>
Val<S> shift_of(int up = 0) {
  return Format<S>::kRound + Format<S>::kBias + up;
}

// x - n ln(2), exact up to one rounding for |n| <= bias.
template <Scalar S>
Val<S> minus_ln2(const Val<S>& x, const Val<S>& n) {
  using T = typename Format<S>::Tables;
  return fma(n, Val<S>(-T::ln2[1]), fma(n, Val<S>(-T::ln2[0]), x));
}

// Calls f with the operand as F32 or F64. The result is marked as the function's value at x.
template <class F>
auto by_format(const char* function, const Value& x, F f) {
  const auto call = [&](auto typed) {
    const auto result = f(typed);
    if constexpr (std::same_as<decltype(result), const Value>) {
      mark_function(function, {x}, result);
    }
    return result;
  };
  if (x.type == Type{Scalar::F32}) return call(F32(x));
  if (x.type == Type{Scalar::F64}) return call(F64(x));
  fail(ErrorKind::Internal, function,
       "operand has the wrong type, got {} of {} lanes, expected f32 or f64", name(x.scalar()),
       x.type.lanes);
}

}  // namespace oa::kernel
