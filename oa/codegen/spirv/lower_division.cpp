// Division, square root and remainder of floats, better than Vulkan promises: quotients and roots
// are the nearest floats, remainders are exact.
#include <spirv/unified1/GLSL.std.450.h>

#include <cmath>

#include "oa/codegen/spirv/lowering.h"

namespace oa::codegen::spirv {

using kernel::Scalar;

Id Lowering::multiply_add(Scalar s, Id a, Id b, Id c) {
  if (target_.fused_fma) return b_.glsl(GLSLstd450Fma, scalar_type(s), {a, b, c});
  return arithmetic(spv::Op::OpFAdd, s, {arithmetic(spv::Op::OpFMul, s, {a, b}), c});
}

Id Lowering::residual(Scalar s, Id a, Id b, Id c) {
  const Id type = scalar_type(s);
  if (target_.fused_fma) {
    const Id minus_a = b_.emit(spv::Op::OpFNegate, type, {a});
    return b_.glsl(GLSLstd450Fma, type, {minus_a, b, c});
  }
  // The error of the product from halves of the factors (Dekker), which multiply exactly. Factors
  // are near one, so nothing overflows.
  const auto sub = [&](Id x, Id y) { return arithmetic(spv::Op::OpFSub, s, {x, y}); };
  const auto mul = [&](Id x, Id y) { return arithmetic(spv::Op::OpFMul, s, {x, y}); };
  const FloatFormat f = format(s);
  // The upper half by masking, so that no compiler can fold the split away.
  const u64 mask = ~((1ull << ((f.mantissa_bits + 2) / 2)) - 1);
  const Id mask_id = constant(f.bits, f.width == 32 ? static_cast<u32>(mask) : mask);
  const auto high = [&](Id x) {
    return float_of(s,
                    b_.emit(spv::Op::OpBitwiseAnd, scalar_type(f.bits), {bits_of(s, x), mask_id}));
  };
  const Id product = mul(a, b);
  const Id ah = high(a), bh = high(b);
  const Id al = sub(a, ah), bl = sub(b, bh);
  // product - a*b, each difference exact in this order
  const Id e1 = sub(product, mul(ah, bh));
  const Id e2 = sub(e1, mul(ah, bl));
  const Id e3 = sub(e2, mul(al, bh));
  const Id error = sub(e3, mul(al, bl));
  return arithmetic(spv::Op::OpFAdd, s, {sub(c, product), error});
}

// a / b, correctly rounded for normal operands and results: the quotient of the significands lies
// in [1, 2), one Newton step brings it within an ulp, the exact residual says which neighbour is
// nearest; exponents and sign are added as integers. Zeros, subnormals, infinities and NaN take the
// device's own division.
Id Lowering::float_divide(Scalar s, Id a, Id b) {
  const Id plain = arithmetic(spv::Op::OpFDiv, s, {a, b});
  if (target_.exact_division) return plain;
  const FloatFormat f = format(s);
  const Id int_type = scalar_type(f.bits);
  const auto integer = [&](spv::Op op, Id x, Id y) { return b_.emit(op, int_type, {x, y}); };
  const auto number = [&](u64 x) { return constant(f.bits, x); };
  const Id a_bits = bits_of(s, a), b_bits = bits_of(s, b);
  const auto significand = [&](Id bits) {
    const Id m = integer(spv::Op::OpBitwiseAnd, bits, number(f.mantissa_mask()));
    return integer(spv::Op::OpBitwiseOr, m, number(f.one()));
  };
  const auto exponent = [&](Id bits) {
    const Id e = integer(spv::Op::OpShiftRightLogical, bits, number(f.mantissa_bits));
    return integer(spv::Op::OpBitwiseAnd, e, number(f.exponent_mask));
  };
  const Id ma_bits = significand(a_bits), mb_bits = significand(b_bits);
  const Id ea = exponent(a_bits), eb = exponent(b_bits);
  // Doubles the dividend where the quotient would be below one.
  const Id below = b_.emit(spv::Op::OpULessThan, b_.type_bool(), {ma_bits, mb_bits});
  const Id shift = select(int_type, below, number(1), number(0));
  const Id up = integer(spv::Op::OpShiftLeftLogical, shift, number(f.mantissa_bits));
  const Id ma = float_of(s, integer(spv::Op::OpIAdd, ma_bits, up));
  const Id mb = float_of(s, mb_bits);

  const Id r = arithmetic(spv::Op::OpFDiv, s, {float_constant(s, 1.0), mb});
  Id q = arithmetic(spv::Op::OpFMul, s, {ma, r});
  q = multiply_add(s, residual(s, mb, q, ma), r, q);
  // ma / mb - q = residual / mb is more than half an ulp where the residual passes mb * ulp / 2.
  q = to_nearest(s, q, residual(s, mb, q, ma), mb, f.mantissa_bits + 1);

  // q * 2^(ea - eb) in two exact halves; only the last may round, to a subnormal.
  const Id difference = integer(spv::Op::OpISub, integer(spv::Op::OpISub, ea, eb), shift);
  const Id half = integer(spv::Op::OpShiftRightArithmetic, difference, number(1));
  const Id rest = integer(spv::Op::OpISub, difference, half);
  const auto power = [&](Id e) {
    const Id biased = integer(spv::Op::OpIAdd, e, number(f.bias()));
    return float_of(s, integer(spv::Op::OpShiftLeftLogical, biased, number(f.mantissa_bits)));
  };
  q = arithmetic(spv::Op::OpFMul, s, {q, power(half)});
  q = arithmetic(spv::Op::OpFMul, s, {q, power(rest)});
  const Id sign = integer(spv::Op::OpBitwiseAnd, integer(spv::Op::OpBitwiseXor, a_bits, b_bits),
                          number(f.sign()));
  q = float_of(s, integer(spv::Op::OpBitwiseOr, bits_of(s, q), sign));

  // Exponents 1 .. max-1 are normal: (e - 1) < max - 1 as unsigned numbers.
  const auto normal = [&](Id e) {
    return b_.emit(spv::Op::OpULessThan, b_.type_bool(),
                   {integer(spv::Op::OpISub, e, number(1)), number(f.exponent_mask - 1)});
  };
  const Id both = b_.emit(spv::Op::OpLogicalAnd, b_.type_bool(), {normal(ea), normal(eb)});
  return select(scalar_type(s), both, q, plain);
}

// Moves `q`, in [1, 2], by one ulp where the exact residual passes factor * 2^-log2_inverse.
// Neither quotients nor roots lie midway between two numbers, but the residual of a root just above
// the lower midpoint may equal the bound.
Id Lowering::to_nearest(Scalar s, Id q, Id left, Id factor, u32 log2_inverse) {
  const Id type = scalar_type(s);
  const f64 ulp = std::ldexp(1.0, -static_cast<int>(format(s).mantissa_bits));
  const Id bound =
      arithmetic(spv::Op::OpFMul, s,
                 {factor, float_constant(s, std::ldexp(1.0, -static_cast<int>(log2_inverse)))});
  const Id minus_bound = b_.emit(spv::Op::OpFNegate, type, {bound});
  const Id above = b_.emit(spv::Op::OpFOrdGreaterThan, b_.type_bool(), {left, bound});
  const Id below = b_.emit(spv::Op::OpFOrdLessThanEqual, b_.type_bool(), {left, minus_bound});
  const Id step = select(type, above, float_constant(s, ulp),
                         select(type, below, float_constant(s, -ulp), float_constant(s, 0.0)));
  return arithmetic(spv::Op::OpFAdd, s, {q, step});
}

// The square root of a significand in [1, 4): one Newton step, then the nearest neighbour.
Id Lowering::float_sqrt(Scalar s, Id a) {
  const Id type = scalar_type(s);
  const Id plain = b_.glsl(GLSLstd450Sqrt, type, {a});
  if (target_.exact_division) return plain;
  const FloatFormat f = format(s);
  const Id int_type = scalar_type(f.bits);
  const auto integer = [&](spv::Op op, Id x, Id y) { return b_.emit(op, int_type, {x, y}); };
  const auto number = [&](u64 x) { return constant(f.bits, x); };
  const Id bits = bits_of(s, a);
  const Id biased = integer(spv::Op::OpShiftRightLogical, bits, number(f.mantissa_bits));
  // a = m * 4^e with the exponent of m being 0 or 1: biased - bias = 2 e + odd; bias is odd.
  const Id odd =
      integer(spv::Op::OpBitwiseAnd, integer(spv::Op::OpIAdd, biased, number(1)), number(1));
  const Id mantissa = integer(spv::Op::OpBitwiseAnd, bits, number(f.mantissa_mask()));
  const Id m_exponent =
      integer(spv::Op::OpShiftLeftLogical, integer(spv::Op::OpIAdd, odd, number(f.bias())),
              number(f.mantissa_bits));
  const Id m = float_of(s, integer(spv::Op::OpBitwiseOr, mantissa, m_exponent));

  Id y = b_.glsl(GLSLstd450Sqrt, type, {m});
  const Id h = arithmetic(spv::Op::OpFDiv, s, {float_constant(s, 0.5), y});
  y = multiply_add(s, residual(s, y, y, m), h, y);
  // sqrt(m) - y is more than half an ulp where m - y * y passes y * ulp, on the grid of the
  // residual.
  y = to_nearest(s, y, residual(s, y, y, m), y, f.mantissa_bits);

  // (biased - bias - odd) / 2 + bias = (biased - odd + bias) / 2, the exponent of the result's
  // scale.
  const Id sum = integer(spv::Op::OpIAdd, integer(spv::Op::OpISub, biased, odd), number(f.bias()));
  const Id scale_exponent = integer(spv::Op::OpShiftRightLogical, sum, number(1));
  const Id scale =
      float_of(s, integer(spv::Op::OpShiftLeftLogical, scale_exponent, number(f.mantissa_bits)));
  const Id root = arithmetic(spv::Op::OpFMul, s, {y, scale});
  // Positive and normal: the sign bit would make `biased` large.
  const Id normal =
      b_.emit(spv::Op::OpULessThan, b_.type_bool(),
              {integer(spv::Op::OpISub, biased, number(1)), number(f.exponent_mask - 1)});
  return select(type, normal, root, plain);
}

// The exact remainder: |a| is reduced by shifted integer remainders, eight or eleven bits a turn.
Id Lowering::float_remainder(Scalar s, Id a, Id b) {
  const FloatFormat f = format(s);
  const Id type = scalar_type(s);
  const Id int_type = scalar_type(f.bits);
  const Id bool_type = b_.type_bool();
  const auto integer = [&](spv::Op op, Id x, Id y) { return b_.emit(op, int_type, {x, y}); };
  const auto number = [&](u64 x) { return constant(f.bits, x); };
  const auto test = [&](spv::Op op, Id x, Id y) { return b_.emit(op, bool_type, {x, y}); };
  const u64 infinity = static_cast<u64>(f.exponent_mask) << f.mantissa_bits;
  const Id a_bits = bits_of(s, a);
  const Id magnitude_mask = number(f.sign() - 1);
  const Id x = integer(spv::Op::OpBitwiseAnd, a_bits, magnitude_mask);
  const Id y = integer(spv::Op::OpBitwiseAnd, bits_of(s, b), magnitude_mask);
  const Id sign = integer(spv::Op::OpBitwiseAnd, a_bits, number(f.sign()));
  // Whole numbers m with value m * 2^(e - const); subnormals have e = 1 without the hidden bit.
  struct Parts {
    Id m, e;
  };
  const auto parts = [&](Id bits) {
    const Id e = integer(spv::Op::OpShiftRightLogical, bits, number(f.mantissa_bits));
    const Id m = integer(spv::Op::OpBitwiseAnd, bits, number(f.mantissa_mask()));
    const Id subnormal = test(spv::Op::OpIEqual, e, number(0));
    const Id hidden = integer(spv::Op::OpBitwiseOr, m, number(1ull << f.mantissa_bits));
    return Parts{select(int_type, subnormal, m, hidden), select(int_type, subnormal, number(1), e)};
  };
  const Parts px = parts(x), py = parts(y);
  // NaN where a is infinite or NaN, b is zero or NaN; a itself where |a| < |b|.
  const Id bad_x = test(spv::Op::OpUGreaterThanEqual, x, number(infinity));
  const Id bad_y = b_.emit(
      spv::Op::OpLogicalOr, bool_type,
      {test(spv::Op::OpIEqual, y, number(0)), test(spv::Op::OpUGreaterThan, y, number(infinity))});
  const Id bad = b_.emit(spv::Op::OpLogicalOr, bool_type, {bad_x, bad_y});
  const Id small = test(spv::Op::OpULessThan, x, y);
  const Id trivial = b_.emit(spv::Op::OpLogicalOr, bool_type, {bad, small});
  const Id divisor = select(int_type, trivial, number(1), py.m);
  const Id turns = select(int_type, trivial, number(0), integer(spv::Op::OpISub, px.e, py.e));
  const Id first = integer(spv::Op::OpUMod, px.m, divisor);

  const u32 step = f.width - f.mantissa_bits - 1;
  const Id before = b_.current_block();
  const Id header = b_.new_id(), body = b_.new_id(), next = b_.new_id(), merge = b_.new_id();
  const Id condition = b_.new_id();
  b_.effect(spv::Op::OpBranch, {header});
  b_.begin_block(header);
  const Builder::Phi left = b_.phi(int_type, turns, before);
  const Builder::Phi rest = b_.phi(int_type, first, before);
  b_.effect(spv::Op::OpLoopMerge, {merge, next, 0});
  b_.effect(spv::Op::OpBranch, {condition});
  b_.begin_block(condition);
  const Id go = test(spv::Op::OpINotEqual, left.id, number(0));
  b_.effect(spv::Op::OpBranchConditional, {go, body, merge});
  b_.begin_block(body);
  const Id few = test(spv::Op::OpULessThan, left.id, number(step));
  const Id shift = select(int_type, few, left.id, number(step));
  const Id shifted = integer(spv::Op::OpShiftLeftLogical, rest.id, shift);
  const Id reduced = integer(spv::Op::OpUMod, shifted, divisor);
  const Id still = integer(spv::Op::OpISub, left.id, shift);
  b_.effect(spv::Op::OpBranch, {next});
  b_.begin_block(next);
  b_.complete_phi(left, still, next);
  b_.complete_phi(rest, reduced, next);
  b_.effect(spv::Op::OpBranch, {header});
  b_.begin_block(merge);

  // rest * 2^(py.e - bias - mantissa_bits) in bits: shift the leading one into place, or keep a
  // subnormal. The leading bit comes from the exponent of the (exact) conversion to a float.
  const Id as_float = bits_of(s, b_.emit(spv::Op::OpConvertUToF, type, {rest.id}));
  const Id lead = integer(spv::Op::OpISub,
                          integer(spv::Op::OpShiftRightLogical, as_float, number(f.mantissa_bits)),
                          number(f.bias()));
  const Id up = integer(spv::Op::OpISub, number(f.mantissa_bits), lead);  // shift to normalise
  const Id is_normal = test(spv::Op::OpULessThan, up, py.e);  // exponent py.e - up is at least 1
  const Id top = integer(spv::Op::OpISub, py.e, number(1));
  const Id shift_by = select(int_type, is_normal, up, top);
  const Id zero = test(spv::Op::OpIEqual, rest.id, number(0));
  const Id safe_shift = select(int_type, zero, number(0), shift_by);
  const Id mantissa = integer(spv::Op::OpShiftLeftLogical, rest.id, safe_shift);
  // Adding, not or-ing, lets the hidden bit count as the first exponent.
  const Id exponent = integer(spv::Op::OpShiftLeftLogical,
                              integer(spv::Op::OpISub, top, safe_shift), number(f.mantissa_bits));
  const Id joined = select(int_type, zero, number(0), integer(spv::Op::OpIAdd, mantissa, exponent));
  const Id result = select(int_type, small, x, joined);
  const Id signed_result = integer(spv::Op::OpBitwiseOr, result, sign);
  const Id nan = number(infinity | 1ull << (f.mantissa_bits - 1));
  return float_of(s, select(int_type, bad, nan, signed_result));
}

}  // namespace oa::codegen::spirv
