// Exponential functions: e^x = 2^n e^r with n an integer and |r| <= ln(2)/2. Adding a large
// constant rounds x / ln(2) to n and leaves n in the low bits, from where a shift makes the scale
// 2^n.
#include "oa/kernel/math.h"
#include "oa/kernel/math_parts.h"

namespace oa::kernel {
namespace {

// Largest n + bias of a finite scale; n stops here and r grows instead, so that the polynomial
// covers the last half step below overflow and gives infinity beyond it.
template <Scalar S>
Val<S> top() {
  return Format<S>::kRound + 2 * Format<S>::kBias;
}

// e^x = scale (2 + slope r), to be rounded once more by the caller. The scale is 2^(n - 1) and the
// polynomial 2 e^r, so that n may reach the 128 (1024) that the last half step below overflow
// needs.
template <Scalar S>
struct ExpParts {
  Val<S> scale;
  Val<S> slope;
  Val<S> r;
};

template <Scalar S>
ExpParts<S> exp_parts(const Val<S>& x, const Val<S>& limit) {
  using F = Format<S>;
  using T = typename F::Tables;
  // From this argument down the scale is 0 and so is the result.
  const Val<S> a = at_least(x, Val<S>(F::kDouble ? -708.6 : -87.5));
  const auto [n, scale] =
      power_of(at_most(fma(a, Val<S>(T::log2e[0]), shift_of<S>(-1)), limit), -1);
  const Val<S> r = minus_ln2(a, n);
  return {scale, fma(horner(T::exp, r), r, 2), r};
}

template <Scalar S>
Val<S> exp_of(const Val<S>& x) {
  const ExpParts<S> e = exp_parts(x, top<S>());
  return fma(e.slope, e.r, 2) * e.scale;
}

// 1 + e^-x is rounded once. One step less of n keeps 2 * scale finite; 1 / 2^127 is subnormal
// already.
template <Scalar S>
Val<S> sigmoid_of(const Val<S>& x) {
  const ExpParts<S> e = exp_parts(-x, top<S>() - 1);
  return 1 / fma(e.scale, 2, fma(e.slope * e.scale, e.r, 1));
}

template <Scalar S>
Val<S> exp2_of(const Val<S>& x) {
  using F = Format<S>;
  const Val<S> a = at_least(x, Val<S>(-F::kBias));
  const auto [n, scale] = power_of(at_most(a + shift_of<S>(), top<S>()));
  const Val<S> r = a - n;
  return fma(horner(F::Tables::exp2, r), r, 1) * scale;
}

template <Scalar S>
Val<S> expm1_of(const Val<S>& x) {
  using F = Format<S>;
  using T = typename F::Tables;
  const Val<S> a = at_least(x, Val<S>(F::kDouble ? -40 : -20));  // -1 from here on
  const auto [n, scale] = power_of(at_most(fma(a, Val<S>(T::log2e[0]), shift_of<S>()), top<S>()));
  const Val<S> r = minus_ln2(a, n);
  const Val<S> p = fma(horner(T::expm1, r), r * r, r);
  return with_sign(fma(p, scale, scale - 1), sign_of(x));
}

// e^-a = scale / unit - p scale for a >= 0. So 1 - e^-a is (1 - scale / unit) + p scale, two terms
// of one sign, which keep all digits near 0.
template <Scalar S>
struct Decay {
  Val<S> p;
  Val<S> scale;
};

// `unit` is 1, or 2 to take e^-(2 a); the polynomial then is (1 - e^-(2 r)) / 2.
template <Scalar S>
Decay<S> decay(const Val<S>& a, int unit) {
  using F = Format<S>;
  using T = typename F::Tables;
  const int up = unit - 1;
  const auto [minus_n, scale] = power_of(fma(a, Val<S>(-unit * T::log2e[0]), shift_of<S>(up)), up);
  const Val<S> r =
      fma(minus_n, Val<S>(T::ln2[1] / unit), fma(minus_n, Val<S>(T::ln2[0] / unit), a));
  constexpr size_t kCount = std::size(T::one_minus_exp);
  typename F::Host c[kCount];  // scaled by powers of two, so still exact
  for (size_t k = 0; k < kCount; ++k) {
    c[k] = T::one_minus_exp[k] * static_cast<typename F::Host>(unit == 2 ? 1ull << (k + 1) : 1);
  }
  return {fma(horner(c, r), r * r, r), scale};
}

// a / b for b within [0.5, 2]. GPUs divide slowly where the quotient must be the nearest float:
// here 1 / b starts from its bits, each Newton step doubles the digits, and the last one corrects
// the quotient itself.
template <Scalar S>
Val<S> divide_by_about_one(const Val<S>& a, const Val<S>& b) {
  if (target().is_cpu()) return a / b;
  using F = Format<S>;
  constexpr auto kStart = F::kDouble ? 0x7fde6238da3c2118ull : 0x7ef311c7ull;
  const Value start = literal(F::Bits::kScalar, static_cast<typename F::Word>(kStart));
  Val<S> r = from_bits<S>(start - bits_of(b));
  for (int i = 0; i < (F::kDouble ? 4 : 3); ++i) r = fma(r, fma(-b, r, 1), r);
  const Val<S> q = a * r;
  return fma(fma(-b, q, a), r, q);
}

template <Scalar S>
Val<S> tanh_of(const Val<S>& x) {
  const Val<S> a = at_most(abs(x), Val<S>(Format<S>::kDouble ? 20 : 10));  // 1 from here on
  const auto [p, scale] = decay(a, 2);
  const Val<S> size =
      divide_by_about_one(fma(p, scale, fma(scale, -0.5, 1)), fma(-p, scale, fma(scale, 0.5, 1)));
  return with_sign(size, sign_of(x));
}

// erf(x) = 1 - e^-g with g = -log(erfc(x)), a smooth function from the origin on.
template <Scalar S>
Val<S> erf_of(const Val<S>& x) {
  using T = typename Format<S>::Tables;
  const Val<S> a = at_most(abs(x), Val<S>(Format<S>::kDouble ? 6 : 4));  // 1 from here on
  const Val<S> g =
      fma(a, Val<S>(T::erf_slope[0]), a * fma(horner(T::erf, a), a, Val<S>(T::erf_slope[1])));
  const auto [p, scale] = decay(g, 1);
  return with_sign(fma(p, scale, 1 - scale), sign_of(x));
}

// log(1 + e^-|x|), in (0, ln(2)].
template <Scalar S>
Val<S> softplus_rest(const Val<S>& x) {
  const Val<S> t = exp_of(-abs(x));
  return fma(horner(Format<S>::Tables::log1p_unit, t), t * t, t);
}

}  // namespace

Value exp(const Value& x) {
  return by_format("kernel::exp", x, [](auto v) -> Value { return exp_of(v); });
}
Value exp2(const Value& x) {
  return by_format("kernel::exp2", x, [](auto v) -> Value { return exp2_of(v); });
}
Value expm1(const Value& x) {
  return by_format("kernel::expm1", x, [](auto v) -> Value { return expm1_of(v); });
}
Value tanh(const Value& x) {
  return by_format("kernel::tanh", x, [](auto v) -> Value { return tanh_of(v); });
}
Value erf(const Value& x) {
  return by_format("kernel::erf", x, [](auto v) -> Value { return erf_of(v); });
}
Value sigmoid(const Value& x) {
  return by_format("kernel::sigmoid", x, [](auto v) -> Value { return sigmoid_of(v); });
}
Value softplus(const Value& x) {
  return by_format("kernel::softplus", x,
                   [](auto v) -> Value { return at_least(v, decltype(v)(0)) + softplus_rest(v); });
}
Value log_sigmoid(const Value& x) {
  return by_format("kernel::log_sigmoid", x,
                   [](auto v) -> Value { return at_most(v, decltype(v)(0)) - softplus_rest(v); });
}

}  // namespace oa::kernel
