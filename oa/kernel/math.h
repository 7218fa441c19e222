// Mathematical functions of the kernel language: one polynomial for every machine, no library
// calls.
//
// Each takes F32 or F64 values, as `Value` or typed, and records branch-free arithmetic.
// docs/math.md has the error bounds and special values. NaN in gives NaN out unless said; subnormal
// arguments count as zero and subnormal results may be zero, because devices flush them.
#pragma once

#include <utility>

#include "oa/kernel/lang.h"

namespace oa::kernel {

Value exp(const Value& x);
Value exp2(const Value& x);
Value expm1(const Value& x);
Value log(const Value& x);  // -inf at 0, NaN below
Value log2(const Value& x);
Value log1p(const Value& x);
Value sin(const Value& x);  // accurate up to |x| = 1e5 (F32), always in [-1, 1], NaN at infinity
Value cos(const Value& x);
// sin and cos of 2 pi x: cheaper than the two apart, and x needs no reduction that could lose
// digits.
std::pair<Value, Value> sin_cos_turns(const Value& x);
Value tanh(const Value& x);
Value sigmoid(const Value& x);      // 1 / (1 + exp(-x))
Value log_sigmoid(const Value& x);  // -softplus(-x)
Value softplus(const Value& x);     // log(1 + exp(x))
Value erf(const Value& x);
Value rsqrt(const Value& x);                // inf at 0, NaN below
Value pow(const Value& x, const Value& y);  // every special case of C's pow

#define OA_KERNEL_MATH(fn)                           \
  template <Scalar S>                                \
    requires(is_float(S))                            \
  Val<S> fn(const Val<S>& x) {                       \
    return Val<S>(fn(static_cast<const Value&>(x))); \
  }
OA_KERNEL_MATH(exp)
OA_KERNEL_MATH(exp2)
OA_KERNEL_MATH(expm1)
OA_KERNEL_MATH(log)
OA_KERNEL_MATH(log2)
OA_KERNEL_MATH(log1p)
OA_KERNEL_MATH(sin)
OA_KERNEL_MATH(cos)
OA_KERNEL_MATH(tanh)
OA_KERNEL_MATH(sigmoid)
OA_KERNEL_MATH(log_sigmoid)
OA_KERNEL_MATH(softplus)
OA_KERNEL_MATH(erf)
OA_KERNEL_MATH(rsqrt)
#undef OA_KERNEL_MATH
template <Scalar S>
  requires(is_float(S))
std::pair<Val<S>, Val<S>> sin_cos_turns(const Val<S>& x) {
  const auto [sine, cosine] = sin_cos_turns(static_cast<const Value&>(x));
  return {Val<S>(sine), Val<S>(cosine)};
}
template <Scalar S>
  requires(is_float(S))
Val<S> pow(const Val<S>& x, const std::type_identity_t<Val<S>>& y) {
  return Val<S>(pow(static_cast<const Value&>(x), static_cast<const Value&>(y)));
}

}  // namespace oa::kernel
