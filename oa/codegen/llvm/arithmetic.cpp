// Arithmetic, comparisons, conversions and vectors of components. Every function here works alike
// on the scalar of a uniform value and on the vector of a varying one.
#include <limits>

#include "oa/codegen/llvm/lower.h"
#include "oa/core/error.h"

namespace oa::codegen {

using kernel::is_float;
using kernel::is_signed;
using kernel::Op;

void Lowering::lane_id(ValueId id) {
  set(id, 0, b_.integer(b_.i32, 0));  // affine with stride 1, or the only lane
}

void Lowering::arithmetic(ValueId id) {
  const Instr& instr = k_[id];
  const bool as_scalar = shape(id).affine;
  if (instr.op == Op::Cast && shape(id).affine && shape(id).stride != 0 &&
      size_bytes(instr.type.scalar) > size_bytes(k_[instr.args[0]].type.scalar)) {
    return set(id, 0, wide_index(instr.args[0]));
  }
  for (u32 part = 0; part < parts(instr.type); ++part) {
    LlvmValue args[3] = {};
    for (size_t i = 0; i < instr.args.size(); ++i)
      args[i] = operand(instr.args[i], part, as_scalar);
    set(id, part, compute(instr, args[0], args[1], args[2]));
  }
}

LlvmValue Lowering::compute(const Instr& instr, LlvmValue a, LlvmValue b, LlvmValue c) {
  const Scalar s = k_[instr.args[0]].type.scalar;  // of the operands
  const LlvmType type = Builder::type_of(a);
  const bool real = is_float(s);
  const auto unary = [&](const char* intrinsic) { return b_.call(intrinsic, {type}, {a}); };
  switch (instr.op) {
    case Op::Neg: return real ? LLVMBuildFNeg(b_.at, a, "") : LLVMBuildNeg(b_.at, a, "");
    case Op::Abs:
      if (real) return unary("llvm.fabs");
      return is_signed(s) ? b_.call("llvm.abs", {type}, {a, b_.integer(b_.i1, 0)}) : a;
    case Op::Not: return b_.not_(a);
    case Op::Sqrt: return unary("llvm.sqrt");
    case Op::Floor: return unary("llvm.floor");
    case Op::Ceil: return unary("llvm.ceil");
    case Op::Trunc: return unary("llvm.trunc");
    case Op::RoundEven: return unary("llvm.roundeven");
    case Op::Add: return real ? LLVMBuildFAdd(b_.at, a, b, "") : b_.add(a, b);
    case Op::Sub: return real ? LLVMBuildFSub(b_.at, a, b, "") : b_.sub(a, b);
    case Op::Mul: return real ? LLVMBuildFMul(b_.at, a, b, "") : b_.mul(a, b);
    case Op::Div: return real ? LLVMBuildFDiv(b_.at, a, b, "") : divide(instr, a, b);
    case Op::Rem: return real ? LLVMBuildFRem(b_.at, a, b, "") : divide(instr, a, b);
    case Op::Min:
    case Op::Max: return min_max(instr, a, b);
    case Op::MulHi: {
      const LlvmValue product = b_.mul(b_.zext(a, b_.i64), b_.zext(b, b_.i64));
      const LlvmValue high =
          LLVMBuildLShr(b_.at, product, b_.integer(Builder::type_of(product), 32), "");
      return b_.trunc(high, b_.i32);
    }
    case Op::And: return b_.and_(a, b);
    case Op::Or: return b_.or_(a, b);
    case Op::Xor: return LLVMBuildXor(b_.at, a, b, "");
    case Op::Shl: return LLVMBuildShl(b_.at, a, b, "");
    case Op::Shr:
      return is_signed(s) ? LLVMBuildAShr(b_.at, a, b, "") : LLVMBuildLShr(b_.at, a, b, "");
    case Op::Fma: return b_.call("llvm.fma", {type}, {a, b, c});
    case Op::Eq:
    case Op::Ne:
    case Op::Lt:
    case Op::Le:
    case Op::Gt:
    case Op::Ge: return compare(instr.op, s, a, b);
    case Op::Cast: return cast(s, instr.type.scalar, a);
    case Op::Bitcast: return b_.bitcast(a, Builder::like(b_.value_type(instr.type.scalar), a));
    default: fail(ErrorKind::Internal, "codegen", "{} is no arithmetic", kernel::name(instr.op));
  }
}

LlvmValue Lowering::compare(Op op, Scalar s, LlvmValue a, LlvmValue b) {
  const bool real = is_float(s), sign = is_signed(s);
  const auto pick = [&](LLVMRealPredicate f, LLVMIntPredicate i, LLVMIntPredicate u) {
    return real ? b_.fcmp(f, a, b) : b_.icmp(sign ? i : u, a, b);
  };
  switch (op) {
    case Op::Eq: return pick(LLVMRealOEQ, LLVMIntEQ, LLVMIntEQ);
    case Op::Ne: return pick(LLVMRealUNE, LLVMIntNE, LLVMIntNE);
    case Op::Lt: return pick(LLVMRealOLT, LLVMIntSLT, LLVMIntULT);
    case Op::Le: return pick(LLVMRealOLE, LLVMIntSLE, LLVMIntULE);
    case Op::Gt: return pick(LLVMRealOGT, LLVMIntSGT, LLVMIntUGT);
    case Op::Ge: return pick(LLVMRealOGE, LLVMIntSGE, LLVMIntUGE);
    default: fail(ErrorKind::Internal, "codegen", "{} is no comparison", kernel::name(op));
  }
}

// NaN when either is NaN; the sign of a zero is left open, which saves half of the instructions.
// The test for NaN falls on the operand that comes last here, so that a running maximum, usually
// written first, waits for fewer of them.
LlvmValue Lowering::min_max(const Instr& instr, LlvmValue a, LlvmValue b) {
  const Scalar s = instr.type.scalar;
  const bool min = instr.op == Op::Min;
  if (s == Scalar::Bool) return min ? b_.and_(a, b) : b_.or_(a, b);
  if (!is_float(s)) {
    const char* name =
        is_signed(s) ? (min ? "llvm.smin" : "llvm.smax") : (min ? "llvm.umin" : "llvm.umax");
    return b_.call(name, {Builder::type_of(a)}, {a, b});
  }
  const LlvmValue v = b_.call(min ? "llvm.minimum" : "llvm.maximum", {Builder::type_of(a)}, {b, a});
  if (LLVMCanValueUseFastMathFlags(v)) LLVMSetFastMathFlags(v, LLVMFastMathNoSignedZeros);
  return v;
}

// Division that never traps: a zero divisor and the one overflow of signed division are replaced.
LlvmValue Lowering::divide(const Instr& instr, LlvmValue a, LlvmValue b) {
  const Scalar s = instr.type.scalar;
  const bool sign = is_signed(s), div = instr.op == Op::Div;
  const LlvmType type = Builder::type_of(b);
  const LlvmValue one = b_.integer(type, 1);
  LlvmValue safe = b_.select(b_.icmp(LLVMIntEQ, b, b_.zero(type)), one, b);
  if (Builder::count(b) && size_bytes(s) == 4 && !LLVMIsConstant(b)) {
    return divide_by_double(instr.op, sign, a, safe);
  }
  if (sign) {
    const u64 least = size_bytes(s) == 8 ? static_cast<u64>(std::numeric_limits<i64>::min())
                                         : static_cast<u32>(std::numeric_limits<i32>::min());
    const LlvmValue overflow = b_.and_(b_.icmp(LLVMIntEQ, a, b_.integer(type, least)),
                                       b_.icmp(LLVMIntEQ, b, b_.all_ones(type)));
    safe = b_.select(overflow, one, safe);
    return div ? LLVMBuildSDiv(b_.at, a, safe, "") : LLVMBuildSRem(b_.at, a, safe, "");
  }
  return div ? LLVMBuildUDiv(b_.at, a, safe, "") : LLVMBuildURem(b_.at, a, safe, "");
}

// CPUs divide no vectors of integers, and LLVM would do it lane by lane. The quotient of two 32-bit
// integers in double precision, truncated, is exact: a quotient that is no integer is further than
// 2^-32 (relative) from the next one.
LlvmValue Lowering::divide_by_double(Op op, bool is_signed, LlvmValue a, LlvmValue b) {
  const LlvmType real = Builder::like(b_.f64, a);
  const auto to_double = [&](LlvmValue v) {
    return is_signed ? LLVMBuildSIToFP(b_.at, v, real, "") : LLVMBuildUIToFP(b_.at, v, real, "");
  };
  const LlvmValue q = LLVMBuildFDiv(b_.at, to_double(a), to_double(b), "");
  LlvmValue n = nullptr;
  if (is_signed) {
    // INT_MIN / -1 is the one quotient out of range; it wraps.
    const LlvmValue over = b_.fcmp(LLVMRealOGE, q, b_.real(real, 0x1p31));
    n = b_.select(over, b_.integer(Builder::type_of(a), 0x80000000u),
                  LLVMBuildFPToSI(b_.at, q, Builder::type_of(a), ""));
  } else if (target_.has("avx512f")) {
    n = LLVMBuildFPToUI(b_.at, q, Builder::type_of(a), "");
  } else {
    n = b_.trunc(LLVMBuildFPToUI(b_.at, q, Builder::like(b_.i64, a), ""), b_.i32);
  }
  return op == Op::Div ? n : b_.sub(a, b_.mul(n, b));
}

// Saturating, NaN to 0. On vectors LLVM's own intrinsic goes lane by lane; here the plain
// conversion, whose result out of range is never picked.
LlvmValue Lowering::float_to_int(Scalar to, LlvmValue v) {
  const LlvmType type = Builder::like(b_.value_type(to), v), real = Builder::type_of(v);
  const bool sign = is_signed(to), wide = size_bytes(to) == 8;
  if (!Builder::count(v))
    return b_.call(sign ? "llvm.fptosi.sat" : "llvm.fptoui.sat", {type, real}, {v});
  const f64 limit = wide ? (sign ? 0x1p63 : 0x1p64) : (sign ? 0x1p31 : 0x1p32);
  const u64 top = (wide ? ~0ull : 0xffffffffull) >> sign;
  const LlvmValue over = b_.fcmp(LLVMRealOGE, v, b_.real(real, limit));
  if (!sign) {
    const LlvmValue n = b_.select(over, b_.integer(type, top), LLVMBuildFPToUI(b_.at, v, type, ""));
    return b_.select(b_.fcmp(LLVMRealOGE, v, b_.zero(real)), n, b_.zero(type));
  }
  // The least integer is a float, so the lower end is a maximum; it takes NaN along.
  const LlvmValue least = b_.real(real, -limit);
  const LlvmValue raised = b_.select(b_.fcmp(LLVMRealOGT, v, least), v, least);
  const LlvmValue n =
      b_.select(over, b_.integer(type, top), LLVMBuildFPToSI(b_.at, raised, type, ""));
  return b_.select(b_.fcmp(LLVMRealORD, v, b_.zero(real)), n, b_.zero(type));
}

LlvmValue Lowering::cast(Scalar from, Scalar to, LlvmValue v) {
  if (from == to) return v;
  const LlvmType type = Builder::like(b_.value_type(to), v);
  const bool from_real = is_float(from), to_real = is_float(to);
  if (to == Scalar::Bool) {
    const LlvmValue zero = b_.zero(Builder::type_of(v));
    return from_real ? b_.fcmp(LLVMRealUNE, v, zero) : b_.icmp(LLVMIntNE, v, zero);
  }
  if (from == Scalar::Bool) {
    if (!to_real) return b_.zext(v, b_.value_type(to));
    return b_.select(v, b_.real(type, 1.0), b_.real(type, 0.0));
  }
  if (from_real && to_real) {
    if (Builder::type_of(v) == type) return v;
    return size_bytes(to) > size_bytes(from) ? LLVMBuildFPExt(b_.at, v, type, "")
                                             : LLVMBuildFPTrunc(b_.at, v, type, "");
  }
  if (from_real) return float_to_int(to, v);
  if (to_real) {
    return is_signed(from) ? LLVMBuildSIToFP(b_.at, v, type, "")
                           : LLVMBuildUIToFP(b_.at, v, type, "");
  }
  const u32 old_size = size_bytes(from), new_size = size_bytes(to);
  if (new_size == old_size) return v;
  if (new_size < old_size) return b_.trunc(v, b_.value_type(to));
  return is_signed(from) ? b_.sext(v, b_.value_type(to)) : b_.zext(v, b_.value_type(to));
}

void Lowering::select(ValueId id) {
  const Instr& instr = k_[id];
  const bool as_scalar = shape(id).affine;
  const LlvmValue c =
      shape(instr.args[0]).uniform() ? scalar(instr.args[0]) : vector(instr.args[0]);
  for (u32 part = 0; part < parts(instr.type); ++part) {
    set(id, part,
        b_.select(c, operand(instr.args[1], part, as_scalar),
                  operand(instr.args[2], part, as_scalar)));
  }
}

void Lowering::vec_build(ValueId id) {
  const Instr& instr = k_[id];
  for (u32 part = 0; part < instr.args.size(); ++part) {
    set(id, part, operand(instr.args[part], 0, shape(id).affine));
  }
}

void Lowering::vec_extract(ValueId id) {
  const Instr& instr = k_[id];
  set(id, 0, operand(instr.args[0], static_cast<u32>(instr.imm), shape(id).affine));
}

}  // namespace oa::codegen
