// Logarithms, powers and the reciprocal square root: x = 2^e m with m from sqrt(1/2) to sqrt(2).
#include "oa/kernel/math.h"
#include "oa/kernel/math_parts.h"

namespace oa::kernel {
namespace {

template <Scalar S>
struct Parts {
  Val<S> exponent;                        // e
  Val<S> mantissa;                        // m
  typename Format<S>::Signed power_bits;  // e shifted to its place in a float
};

// Of a positive normal value; anything else gives parts without meaning.
template <Scalar S>
Parts<S> parts_of(const Val<S>& x) {
  using F = Format<S>;
  using Integer = typename F::Signed;
  const Integer bits = bitcast<Integer>(x);
  const Integer above = bits - static_cast<i64>(F::kRootHalf);
  const Integer power_bits = above & -(i64{1} << F::kMantissa);
  return {Val<S>(cast(above >> F::kMantissa, S)), from_bits<S>(bits - power_bits), power_bits};
}

// log(1 + f) - f for sqrt(1/2) <= 1 + f <= sqrt(2).
template <Scalar S>
Val<S> log1p_rest(const Val<S>& f) {
  return f * f * fma(horner(Format<S>::Tables::log1p, f), f, Val<S>(-0.5));
}

// y = log of a normal positive x; gives the values at 0, below, at infinity and NaN.
template <Scalar S>
Val<S> with_log_edges(const Val<S>& y, const Val<S>& x) {
  using F = Format<S>;
  const Val<S> low = select(x < 0, Val<S>(F::kNaN), Val<S>(-F::kInf));
  return select(x < F::kMin, low, select(x < F::kInf, y, x));
}

template <Scalar S>
Val<S> log_of_parts(const Val<S>& e, const Val<S>& f) {
  using T = typename Format<S>::Tables;
  return fma(e, Val<S>(T::ln2[0]), f + fma(e, Val<S>(T::ln2[1]), log1p_rest(f)));
}

template <Scalar S>
Val<S> log_of(const Val<S>& x) {
  const Parts<S> p = parts_of(x);
  return with_log_edges(log_of_parts(p.exponent, p.mantissa - 1), x);
}

template <Scalar S>
Val<S> log2_of(const Val<S>& x) {
  using T = typename Format<S>::Tables;
  const Parts<S> p = parts_of(x);
  const Val<S> f = p.mantissa - 1;
  const Val<S> low = fma(log1p_rest(f), Val<S>(T::log2e[0]), f * T::log2e[1]);
  return with_log_edges(p.exponent + fma(f, Val<S>(T::log2e[0]), low), x);
}

// 1 + x = 2^e (1 + f) gives f = 2^-e x + (2^-e - 1), without the digits that 1 + x loses.
template <Scalar S>
Val<S> log1p_of(const Val<S>& x) {
  using F = Format<S>;
  const Val<S> u = 1 + x;
  const Parts<S> p = parts_of(u);
  const Val<S> scale = from_bits<S>(static_cast<i64>(F::kOne) - p.power_bits);
  const Val<S> f = select(x < 2 / std::numeric_limits<typename F::Host>::epsilon(),
                          fma(x, scale, scale - 1), p.mantissa - 1);
  return with_sign(with_log_edges(log_of_parts(p.exponent, f), u), sign_of(x));
}

// One Newton step on 1/sqrt with the residual 1 - x r^2 to twice the working precision.
template <Scalar S>
Val<S> rsqrt_of(const Val<S>& x) {
  const Val<S> r = 1 / sqrt(x);
  const Val<S> root = x * r;
  const Val<S> residual = fma(-fma(x, r, -root), r, fma(-root, r, 1));
  const Val<S> better = fma(r * 0.5, residual, r);
  return select(is_nan(better), r, better);  // 0 and infinity have no residual
}

// A sum of two values, the first rounded to half the digits so that products of such are exact.
template <Scalar S>
struct Double {
  Val<S> high;
  Val<S> low;
};

template <Scalar S>
Val<S> leading(const Val<S>& x) {
  return from_bits<S>(bits_of(x) & Format<S>::kHalfMask);
}
template <Scalar S>
Double<S> halves(const Val<S>& x) {
  const Val<S> high = leading(x);
  return {high, x - high};
}
// a + b for |a| >= |b|, or a = 0.
template <Scalar S>
Double<S> add(const Val<S>& a, const Val<S>& b, const Val<S>& low) {
  const Val<S> sum = a + b;
  const Val<S> rest = (b - (sum - a)) + low;
  const Val<S> high = leading(sum + rest);
  return {high, (sum - high) + rest};
}
template <Scalar S>
Double<S> multiply(const Double<S>& a, const Double<S>& b) {
  return {a.high * b.high, fma(a.high, b.low, a.low * (b.high + b.low))};
}

// log2 of a normal positive x to about one and a half times the working precision:
// with s = (m - 1) / (m + 1), log2(m) = 2 log2(e) atanh(s) = s (K + K s^2 / 3 + s^4 P(s^2)).
template <Scalar S>
Double<S> precise_log2(const Val<S>& x) {
  using T = typename Format<S>::Tables;
  const Parts<S> parts = parts_of(x);
  const Val<S>& m = parts.mantissa;
  const Val<S> f = m - 1, d = m + 1, inverse = 1 / d;
  const Val<S> s_high = leading(f * inverse), d_high = leading(d), d_low = m - (d_high - 1);
  const Double<S> s = {s_high, inverse * ((f - s_high * d_high) - s_high * d_low)};
  const Val<S> s_sum = s.high + s.low;
  // s^2 and K s^2 / 3.
  const Val<S> square = s_sum * s_sum;
  const Double<S> top = halves(s.high * s.high);
  const Double<S> third = multiply(Double<S>{top.high, fma(s.low, s.high + s_sum, top.low)},
                                   Double<S>{Val<S>(T::two_log2e_3[0]), Val<S>(T::two_log2e_3[1])});
  const Val<S> tail = square * square * horner(T::log2_tail, square);
  const Double<S> factor =
      add(Val<S>(T::two_log2e[0]), third.high, (T::two_log2e[1] + third.low) + tail);
  const Double<S> product = multiply(s, factor);
  return add(parts.exponent, product.high, product.low);
}

template <Scalar S>
Val<S> pow_of(const Val<S>& x, const Val<S>& y_in) {
  using F = Format<S>;
  const Val<S> a = abs(x);
  // Beyond 2^64 the result is 0, 1 or infinity already, and no product overflows.
  const Val<S> limit = 0x1p64;
  const Val<S> y = at_least(at_most(y_in, limit), -limit);

  const Double<S> product = multiply(halves(y), precise_log2(a));
  const Val<S> sum = product.high + product.low;
  const Power<S> power = power_of(at_most(sum + shift_of<S>(), Val<S>(F::kRound + 2 * F::kBias)));
  const Val<S> r = (product.high - power.n) + product.low;
  const Val<S> size = fma(horner(F::Tables::exp2, r), r, 1) * power.scale;
  Val<S> result = select(sum < -F::kBias, Val<S>(0), size);

  const Bool whole = floor(y) == y;
  const Val<S> half = y * 0.5;
  const Bool odd = whole & (floor(half) != half);
  result = select((x < 0) & !whole, Val<S>(F::kNaN), result);
  const Bool edge = (a < F::kMin) | (a == F::kInf);
  result = select(edge, select((a > 1) ^ (y < 0), Val<S>(F::kInf), Val<S>(0)), result);
  result = with_sign(result, select(odd, sign_of(x), typename F::Bits(0)));
  result = select(is_nan(x) | is_nan(y_in), x + y_in, result);
  return select((x == 1) | (y == 0), Val<S>(1), result);
}

}  // namespace

Value log(const Value& x) {
  return by_format("kernel::log", x, [](auto v) -> Value { return log_of(v); });
}
Value log2(const Value& x) {
  return by_format("kernel::log2", x, [](auto v) -> Value { return log2_of(v); });
}
Value log1p(const Value& x) {
  return by_format("kernel::log1p", x, [](auto v) -> Value { return log1p_of(v); });
}
Value rsqrt(const Value& x) {
  return by_format("kernel::rsqrt", x, [](auto v) -> Value { return rsqrt_of(v); });
}
Value pow(const Value& x, const Value& y) {
  if (y.type != x.type) {
    fail(ErrorKind::Internal, "kernel::pow", "exponent has the wrong type, got {}, expected {}",
         name(y.scalar()), name(x.scalar()));
  }
  const Value result =
      by_format("kernel::pow", x, [&](auto v) -> Value { return pow_of(v, decltype(v)(y)); });
  mark_function("kernel::pow", {x, y}, result);
  return result;
}

}  // namespace oa::kernel
