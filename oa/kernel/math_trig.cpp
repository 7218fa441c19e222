// Sine and cosine: x = n pi/2 + r with n an integer and |r| <= pi/4. The low bits of n choose sine
// or cosine of r and the sign. Subtracting n pi/2 in four parts keeps r exact where it is small.
#include "oa/kernel/math.h"
#include "oa/kernel/math_parts.h"

namespace oa::kernel {
namespace {

// sin(x) for quarter = 0, sin(x + pi/2) = cos(x) for quarter = 1.
template <Scalar S>
Val<S> sin_shifted(const Val<S>& x, int quarter) {
  using F = Format<S>;
  using T = typename F::Tables;
  using Bits = typename F::Bits;
  const Val<S> shifted = fma(x, Val<S>(2 / 3.14159265358979323846), Val<S>(F::kRound));
  const Val<S> n = shifted - F::kRound;
  Val<S> r = x;
  for (const typename F::Host part : T::half_pi) r = fma(n, Val<S>(-part), r);
  const Val<S> z = r * r;
  const Val<S> sine = fma(r * z, horner(T::sin, z), r);
  const Val<S> cosine = fma(fma(horner(T::cos, z), z, Val<S>(-0.5)), z, 1);
  // The rounding constant ends in zero bits, so the low bits of the sum are those of n.
  Bits turn = bits_of(shifted);
  if (quarter) turn = turn + 1;
  const Val<S> y = select((turn & 1) == 0, sine, cosine);
  // Where n is too large to be exact, r has no meaning: at least stay in the range of the function.
  const Val<S> bounded = at_least(at_most(y, Val<S>(1)), Val<S>(-1));
  constexpr int kTop = F::kDouble ? 62 : 30;
  return from_bits<S>(bits_of(bounded) ^ ((turn & 2) << kTop));
}

}  // namespace

Value sin(const Value& x) {
  return by_format("kernel::sin", x, [](auto v) -> Value {
    return select(v == 0, v, sin_shifted(v, 0));  // keeps -0
  });
}
Value cos(const Value& x) {
  return by_format("kernel::cos", x, [](auto v) -> Value { return sin_shifted(v, 1); });
}

}  // namespace oa::kernel
