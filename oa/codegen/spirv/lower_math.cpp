// Arithmetic and conversions. Vulkan promises less than the kernel language: conversions saturate
// by selects, NaNs travel by comparisons, integer divisors are made safe.
#include <spirv/unified1/GLSL.std.450.h>

#include <bit>
#include <cmath>

#include "oa/codegen/spirv/lowering.h"

namespace oa::codegen::spirv {

using kernel::Instr;
using kernel::Op;
using kernel::Scalar;
using kernel::Type;

Id Lowering::arithmetic(spv::Op op, Scalar s, std::initializer_list<Id> operands) {
  const Id id = b_.emit(op, scalar_type(s), operands);
  b_.decorate(id, spv::Decoration::NoContraction);
  return id;
}

Id Lowering::is_nan(Id a) { return b_.emit(spv::Op::OpFUnordNotEqual, b_.type_bool(), {a, a}); }

Id Lowering::bits_of(Scalar s, Id a) {
  return b_.emit(spv::Op::OpBitcast, scalar_type(format(s).bits), {a});
}

Id Lowering::float_of(Scalar s, Id bits) {
  return b_.emit(spv::Op::OpBitcast, scalar_type(s), {bits});
}

Id Lowering::float_min_max(Op op, Scalar s, Id a, Id b) {
  const auto less = op == Op::Min ? spv::Op::OpFOrdLessThan : spv::Op::OpFOrdGreaterThan;
  const Id first = b_.emit(spv::Op::OpLogicalOr, b_.type_bool(),
                           {b_.emit(less, b_.type_bool(), {a, b}), is_nan(a)});
  return select(scalar_type(s), first, a, b);
}

Id Lowering::integer_divide(const Instr& instr) {
  const Op op = instr.op;
  const Scalar s = instr.type.scalar;
  const Id type = scalar_type(s);
  const Id a = value(instr.args[0]);
  Id b = value(instr.args[1]);
  const u32 width = 8 * size_bytes(s);
  const u64 minus_one = width == 32 ? 0xffffffffu : ~0ull;
  const Instr& divisor = kernel_[instr.args[1]];
  const bool safe =
      divisor.op == Op::Const && divisor.imm != 0 && !(is_signed(s) && divisor.imm == minus_one);
  if (!safe) {
    // Zero, and -1 under the most negative number, would trap: divide by one instead.
    Id trap = b_.emit(spv::Op::OpIEqual, b_.type_bool(), {b, constant(s, 0)});
    if (is_signed(s)) {
      const Id lowest =
          b_.emit(spv::Op::OpIEqual, b_.type_bool(), {a, constant(s, 1ull << (width - 1))});
      const Id minus = b_.emit(spv::Op::OpIEqual, b_.type_bool(), {b, constant(s, minus_one)});
      const Id overflow = b_.emit(spv::Op::OpLogicalAnd, b_.type_bool(), {lowest, minus});
      trap = b_.emit(spv::Op::OpLogicalOr, b_.type_bool(), {trap, overflow});
    }
    b = select(type, trap, constant(s, 1), b);
  }
  if (!is_signed(s)) {
    return b_.emit(op == Op::Div ? spv::Op::OpUDiv : spv::Op::OpUMod, type, {a, b});
  }
  const Id quotient = b_.emit(spv::Op::OpSDiv, type, {a, b});
  if (op == Op::Div) return quotient;
  // OpSRem is undefined in Vulkan for negative operands.
  return b_.emit(spv::Op::OpISub, type, {a, b_.emit(spv::Op::OpIMul, type, {quotient, b})});
}

Id Lowering::compare(Op op, Scalar s, Id a, Id b) {
  using O = spv::Op;
  struct Row {
    O on_float, on_signed, on_unsigned;
  };
  static constexpr Row kRows[] = {
      {O::OpFOrdEqual, O::OpIEqual, O::OpIEqual},
      {O::OpFUnordNotEqual, O::OpINotEqual, O::OpINotEqual},
      {O::OpFOrdLessThan, O::OpSLessThan, O::OpULessThan},
      {O::OpFOrdLessThanEqual, O::OpSLessThanEqual, O::OpULessThanEqual},
      {O::OpFOrdGreaterThan, O::OpSGreaterThan, O::OpUGreaterThan},
      {O::OpFOrdGreaterThanEqual, O::OpSGreaterThanEqual, O::OpUGreaterThanEqual}};
  if (s == Scalar::Bool) {
    return b_.emit(op == Op::Eq ? O::OpLogicalEqual : O::OpLogicalNotEqual, b_.type_bool(), {a, b});
  }
  const Row& row = kRows[static_cast<int>(op) - static_cast<int>(Op::Eq)];
  const O chosen = is_float(s) ? row.on_float : is_signed(s) ? row.on_signed : row.on_unsigned;
  return b_.emit(chosen, b_.type_bool(), {a, b});
}

// Truncates, saturates, and sends NaN to 0: the conversion itself only sees what fits.
Id Lowering::saturating_cast(Scalar from, Scalar to, Id a) {
  const Id type = scalar_type(to);
  const Id bool_type = b_.type_bool();
  const u32 width = 8 * size_bytes(to);
  const bool sign = is_signed(to);
  const u64 lowest = sign ? 1ull << (width - 1) : 0;
  const u64 highest = sign ? lowest - 1 : width == 32 ? 0xffffffffu : ~0ull;
  const Id low = float_constant(from, sign ? -std::ldexp(1.0, static_cast<int>(width) - 1) : 0.0);
  const Id high = float_constant(from, std::ldexp(1.0, static_cast<int>(sign ? width - 1 : width)));
  const Id not_below = b_.emit(spv::Op::OpFOrdGreaterThanEqual, bool_type, {a, low});
  const Id below_high = b_.emit(spv::Op::OpFOrdLessThan, bool_type, {a, high});
  const Id fits = b_.emit(spv::Op::OpLogicalAnd, bool_type, {not_below, below_high});
  const Id safe = select(scalar_type(from), fits, a, float_constant(from, 0.0));
  Id result = b_.emit(sign ? spv::Op::OpConvertFToS : spv::Op::OpConvertFToU, type, {safe});
  if (sign) {
    const Id below = b_.emit(spv::Op::OpFOrdLessThan, bool_type, {a, low});
    result = select(type, below, constant(to, lowest), result);
  }
  const Id above = b_.emit(spv::Op::OpFOrdGreaterThanEqual, bool_type, {a, high});
  return select(type, above, constant(to, highest), result);
}

Id Lowering::cast(Scalar from, Scalar to, Id a) {
  if (from == to) return a;
  if (from == Scalar::Bool) {
    const u64 one = is_float(to) ? format(to).one() : 1;
    return select(scalar_type(to), a, constant(to, one), constant(to, 0));
  }
  if (to == Scalar::Bool) return compare(Op::Ne, from, a, constant(from, 0));
  const Id type = scalar_type(to);
  if (is_float(from) && is_float(to)) return b_.emit(spv::Op::OpFConvert, type, {a});
  if (is_float(from)) return saturating_cast(from, to, a);
  if (is_float(to)) {
    const auto op = is_signed(from) ? spv::Op::OpConvertSToF : spv::Op::OpConvertUToF;
    return b_.emit(op, type, {a});
  }
  if (size_bytes(from) == size_bytes(to)) return a;
  // Widening extends by the source's sign; narrowing drops bits either way.
  const bool extend = size_bytes(from) < size_bytes(to) && is_signed(from);
  return b_.emit(extend ? spv::Op::OpSConvert : spv::Op::OpUConvert, type, {a});
}

Id Lowering::lower_math(const Instr& instr) {
  using O = spv::Op;
  const Scalar s = instr.type.scalar;
  const Id type = type_of(instr.type);
  std::vector<Id> args;
  for (auto id : instr.args) args.push_back(value(id));
  if (args.empty()) malformed(instr, "has no operands");
  const Scalar from = type_of_value(instr.args[0]).scalar;
  const bool on_float = is_float(s);
  const bool on_bool = s == Scalar::Bool;
  const auto plain = [&](O op) { return b_.emit(op, type, args); };
  const auto either = [&](O float_op, O int_op) {
    if (on_bool) malformed(instr, "on bool");
    return on_float ? arithmetic(float_op, s, {args[0], args[1]}) : plain(int_op);
  };
  const auto rounding = [&](u32 instruction) {
    if (!on_float) malformed(instr, "on integers");
    return b_.glsl(instruction, type, {args[0]});
  };
  const auto on_bits = [&](O logical, O bitwise) {
    if (on_float) malformed(instr, "on floats");
    return plain(on_bool ? logical : bitwise);
  };

  switch (instr.op) {
    case Op::Neg: return plain(on_float ? O::OpFNegate : O::OpSNegate);
    case Op::Abs: {
      if (on_float) return b_.glsl(GLSLstd450FAbs, type, {args[0]});
      if (!is_signed(s)) return args[0];
      const Id negative = compare(Op::Lt, s, args[0], constant(s, 0));
      return select(type, negative, b_.emit(O::OpSNegate, type, {args[0]}), args[0]);
    }
    case Op::Not: return on_bits(O::OpLogicalNot, O::OpNot);
    case Op::Sqrt:
      if (!on_float) malformed(instr, "on integers");
      return float_sqrt(s, args[0]);
    case Op::Floor: return rounding(GLSLstd450Floor);
    case Op::Ceil: return rounding(GLSLstd450Ceil);
    case Op::Trunc: return rounding(GLSLstd450Trunc);
    case Op::RoundEven: return rounding(GLSLstd450RoundEven);
    case Op::Add: return either(O::OpFAdd, O::OpIAdd);
    case Op::Sub: return either(O::OpFSub, O::OpISub);
    case Op::Mul: return either(O::OpFMul, O::OpIMul);
    case Op::Div: return on_float ? float_divide(s, args[0], args[1]) : integer_divide(instr);
    case Op::Rem: return on_float ? float_remainder(s, args[0], args[1]) : integer_divide(instr);
    case Op::Min:
    case Op::Max: {
      if (on_float) return float_min_max(instr.op, s, args[0], args[1]);
      const Id first = compare(instr.op == Op::Min ? Op::Lt : Op::Gt, s, args[0], args[1]);
      return select(type, first, args[0], args[1]);
    }
    case Op::MulHi: {
      if (s != Scalar::U32) malformed(instr, "on a type other than u32");
      const Id pair = b_.emit(O::OpUMulExtended, b_.type_struct({type, type}), args);
      return b_.emit(O::OpCompositeExtract, type, {pair, 1});
    }
    case Op::And: return on_bits(O::OpLogicalAnd, O::OpBitwiseAnd);
    case Op::Or: return on_bits(O::OpLogicalOr, O::OpBitwiseOr);
    case Op::Xor: return on_bits(O::OpLogicalNotEqual, O::OpBitwiseXor);
    case Op::Shl: return plain(O::OpShiftLeftLogical);
    case Op::Shr: return plain(is_signed(s) ? O::OpShiftRightArithmetic : O::OpShiftRightLogical);
    case Op::Fma:
      if (!on_float) malformed(instr, "on integers");
      return b_.glsl(GLSLstd450Fma, type, {args[0], args[1], args[2]});
    case Op::Eq:
    case Op::Ne:
    case Op::Lt:
    case Op::Le:
    case Op::Gt:
    case Op::Ge:
      if (from == Scalar::Bool && instr.op > Op::Ne) malformed(instr, "on bool");
      return compare(instr.op, from, args[0], args[1]);
    case Op::Select: return plain(O::OpSelect);
    case Op::Cast: return cast(from, s, args[0]);
    case Op::Bitcast: {
      // Signed and unsigned integers share one type here.
      return type_of(type_of_value(instr.args[0])) == type ? args[0] : plain(O::OpBitcast);
    }
    case Op::VecBuild: return args.size() == 1 ? args[0] : plain(O::OpCompositeConstruct);
    case Op::VecExtract:
      if (type_of_value(instr.args[0]).lanes == 1) return args[0];
      return b_.emit(O::OpCompositeExtract, type, {args[0], static_cast<u32>(instr.imm)});
    default: malformed(instr, "has no lowering");
  }
}

}  // namespace oa::codegen::spirv
