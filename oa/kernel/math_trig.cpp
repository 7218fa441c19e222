// Sine and cosine: the angle is n pi/2 + r with n an integer and |r| <= pi/4. The low bits of n
// choose sine or cosine of r and the sign. n pi/2 is taken from x in five parts, three of them
// exactly, so that a small r keeps its digits.
#include "oa/kernel/math.h"
#include "oa/kernel/math_parts.h"

namespace oa::kernel {
namespace {

template <Scalar S>
struct Angle {
  Val<S> r;
  typename Format<S>::Bits turn;  // n in its low bits
};

template <Scalar S>
struct SinCos {
  Val<S> sine;
  Val<S> cosine;
};

// Format::kRound ends in zero bits, so the low bits of the sum are those of n.
template <Scalar S>
Angle<S> reduce(const Val<S>& x) {
  using F = Format<S>;
  const Val<S> shifted = fma(x, Val<S>(2 / 3.14159265358979323846), Val<S>(F::kRound));
  const Val<S> n = shifted - F::kRound;
  Val<S> r = x;
  for (const typename F::Host part : F::Tables::half_pi) r = fma(n, Val<S>(-part), r);
  return {r, bits_of(shifted)};
}

template <Scalar S>
SinCos<S> sin_cos_near_zero(const Val<S>& r) {
  using T = typename Format<S>::Tables;
  const Val<S> z = r * r;
  return {fma(r * z, horner(T::sin, z), r), fma(fma(horner(T::cos, z), z, Val<S>(-0.5)), z, 1)};
}

// sin(r + turn pi/2)
template <Scalar S>
Val<S> turned(const SinCos<S>& near, const typename Format<S>::Bits& turn) {
  const Val<S> y = select((turn & 1) == 0, near.sine, near.cosine);
  return from_bits<S>(bits_of(y) ^ ((turn & 2) << (Format<S>::kDouble ? 62 : 30)));
}

// Where x is too large for n to be exact, r has no meaning: at least stay in the range of the
// function.
template <Scalar S>
Val<S> bounded(const Val<S>& y) {
  return at_least(at_most(y, Val<S>(1)), Val<S>(-1));
}

template <Scalar S>
std::pair<Value, Value> sin_cos_turns_of(const Val<S>& x) {
  using F = Format<S>;
  using T = typename F::Tables;
  const Val<S> shifted = fma(x, 4, Val<S>(F::kRound));
  const Val<S> quarter = fma(x, 4, -(shifted - F::kRound));  // of a turn, exact
  const Val<S> r = fma(quarter, Val<S>(T::quarter_turn[0]), quarter * T::quarter_turn[1]);
  const SinCos<S> near = sin_cos_near_zero(r);
  const typename F::Bits turn = bits_of(shifted);
  return {turned(near, turn), turned(near, turn + 1)};
}

}  // namespace

Value sin(const Value& x) {
  return by_format("kernel::sin", x, [](auto v) -> Value {
    const auto angle = reduce(v);
    return select(v == 0, v, bounded(turned(sin_cos_near_zero(angle.r), angle.turn)));  // keeps -0
  });
}
Value cos(const Value& x) {
  return by_format("kernel::cos", x, [](auto v) -> Value {
    const auto angle = reduce(v);
    return bounded(turned(sin_cos_near_zero(angle.r), angle.turn + 1));
  });
}
std::pair<Value, Value> sin_cos_turns(const Value& x) {
  return by_format("kernel::sin_cos_turns", x, [](auto v) { return sin_cos_turns_of(v); });
}

}  // namespace oa::kernel
