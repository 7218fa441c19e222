// Values of the IR as scalars and vectors of LLVM, and indices in 64 bits.
#include <algorithm>

#include "oa/codegen/llvm/lower.h"
#include "oa/core/error.h"

namespace oa::codegen {

using kernel::Op;

Lowering::Scope::~Scope() {
  while (l_.cached_.size() > mark_) {
    *l_.cached_.back() = nullptr;
    l_.cached_.pop_back();
  }
}

void Lowering::remember(LlvmValue& cache, LlvmValue v) {
  cache = v;
  cached_.push_back(&cache);
}

u32 Lowering::parts(const kernel::Type& type) {
  return type.is_fragment() ? type.rows : std::max<u32>(type.lanes, 1);
}

void Lowering::set(ValueId id, u32 part, LlvmValue v) {
  Cell& c = cell(id, part);
  c = Cell{};
  (shape(id).affine ? c.scalar : c.vector) = v;
}

LlvmValue Lowering::scalar(ValueId id, u32 part) {
  const Cell& c = cell(id, part);
  OA_CHECK(c.scalar && shape(id).affine);
  return c.scalar;
}

LlvmValue Lowering::vector(ValueId id, u32 part) {
  Cell& c = cell(id, part);
  if (c.vector) return c.vector;
  OA_CHECK(c.scalar);
  const Instr& instr = k_[id];
  const i64 stride = shape(id).stride;
  LlvmValue v = nullptr;
  if (stride != 0 && instr.op == Op::Cast &&
      size_bytes(instr.type.scalar) > size_bytes(k_[instr.args[0]].type.scalar)) {
    // Lane by lane, so that lanes below zero of a 32-bit index come out as they would alone.
    v = widened(k_[instr.args[0]].type.scalar, vector(instr.args[0]));
  } else {
    v = b_.splat(c.scalar, width_);
    if (stride != 0) v = b_.add(v, b_.steps(Builder::type_of(c.scalar), width_, 0, stride));
  }
  remember(c.vector, v);
  return v;
}

LlvmValue Lowering::widened(Scalar s, LlvmValue v) {
  if (size_bytes(s) == 8) return v;
  return kernel::is_signed(s) ? b_.sext(v, b_.i64) : b_.zext(v, b_.i64);
}

// Whether wide_term() may take a 32-bit value apart: its leaves are then numbers that stand for
// themselves, not negative numbers that wrapped around in U32.
bool Lowering::exact_term(ValueId id) {
  if (exact_[id] < 0) exact_[id] = compute_exact_term(id);
  return exact_[id] != 0;
}

bool Lowering::compute_exact_term(ValueId id) {
  const Instr& instr = k_[id];
  const auto args_exact = [&](size_t first) {
    for (size_t i = first; i < instr.args.size(); ++i) {
      if (!exact_term(instr.args[i])) return false;
    }
    return true;
  };
  if (!uniformity_.shape(id).affine) return false;
  switch (instr.op) {
    case Op::Const:
    case Op::Param:
    case Op::LaneId:
    case Op::GroupId:
    case Op::GroupCount:
    case Op::For:
    case Op::Load:
    case Op::SharedLoad:
    case Op::Div:
    case Op::Rem:
    case Op::And:
    case Op::Shr:
    case Op::Min:
    case Op::MulHi: return true;
    case Op::Add:
    case Op::Sub: return args_exact(0);
    case Op::Mul:
      for (const ValueId a : instr.args) {
        if (k_[a].op == Op::Const && static_cast<i32>(k_[a].imm) < 0) return false;
      }
      return args_exact(0);
    case Op::Shl: return k_[instr.args[1]].op == Op::Const && exact_term(instr.args[0]);
    case Op::Select: return uniformity_.uniform(instr.args[0]) && args_exact(1);
    case Op::Cast:
    case Op::Bitcast: return kernel::is_signed(k_[instr.args[0]].type.scalar) || args_exact(0);
    default: return kernel::is_signed(instr.type.scalar);
  }
}

// Sums and products of indices are widened at their leaves: the index then stays a plain induction
// variable for LLVM, and lane 0 of a masked access may lie below element 0.
LlvmValue Lowering::wide_term(ValueId id) {
  const Instr& instr = k_[id];
  const Scalar s = instr.type.scalar;
  Cell& c = cell(id, 0);
  if (c.wide) return c.wide;
  if (size_bytes(s) == 8 && instr.op != Op::Cast) return scalar(id);
  if (instr.op == Op::Const)
    return b_.integer(b_.i64, static_cast<u64>(i64{static_cast<i32>(instr.imm)}));
  LlvmValue v = nullptr;
  if (exact_term(id)) {
    switch (instr.op) {
      case Op::Add: v = b_.add(wide_term(instr.args[0]), wide_term(instr.args[1])); break;
      case Op::Sub: v = b_.sub(wide_term(instr.args[0]), wide_term(instr.args[1])); break;
      case Op::Mul: v = b_.mul(wide_term(instr.args[0]), wide_term(instr.args[1])); break;
      case Op::Shl:
        v = LLVMBuildShl(b_.at, wide_term(instr.args[0]), b_.integer(b_.i64, k_[instr.args[1]].imm),
                         "");
        break;
      case Op::Select:
        v = b_.select(scalar(instr.args[0]), wide_term(instr.args[1]), wide_term(instr.args[2]));
        break;
      case Op::Cast:
      case Op::Bitcast: {
        const Scalar from = k_[instr.args[0]].type.scalar;
        if (size_bytes(from) == 4 && kernel::is_integer(from)) v = wide_term(instr.args[0]);
        break;
      }
      default: break;
    }
  }
  if (!v) v = widened(s, scalar(id));
  remember(c.wide, v);
  return v;
}

LlvmValue Lowering::wide_index(ValueId id) {
  const Instr& instr = k_[id];
  if (instr.op == Op::Const && size_bytes(instr.type.scalar) == 4) {
    return widened(instr.type.scalar, scalar(id));
  }
  const i64 stride = shape(id).stride;
  if (mask_ && stride != 0 && size_bytes(instr.type.scalar) == 4 && !exact_term(id)) {
    // Lane 0 may be switched off and wrapped around; count back from a lane that is on.
    const LlvmValue lane = first_active();
    const LlvmValue index = widened(instr.type.scalar, b_.extract(vector(id), lane));
    return b_.sub(index, b_.mul(lane, b_.integer(b_.i64, static_cast<u64>(stride))));
  }
  return wide_term(id);
}

LlvmValue Lowering::wide_lanes(ValueId id) { return widened(k_[id].type.scalar, vector(id)); }

}  // namespace oa::codegen
