// Exchange between lanes, votes, and questions to masks.
#include <numeric>

#include "oa/codegen/llvm/lower.h"
#include "oa/core/error.h"

namespace oa::codegen {

using kernel::Op;

LlvmValue Lowering::mask_or_all() {
  return mask_ ? mask_ : b_.all_ones(Builder::vector(b_.i1, width_));
}

// The mask as an integer, lane 0 lowest.
LlvmValue Lowering::bits(LlvmValue mask) {
  if (LLVMIsConstant(mask) && width_ <= 64) {  // LLVM's builder does not fold this cast
    u64 word = 0;
    bool known = true;
    for (u32 l = 0; l < width_; ++l) {
      const LlvmValue lane = LLVMGetAggregateElement(mask, l);
      known = known && lane && LLVMIsAConstantInt(lane);
      if (known) word |= static_cast<u64>(LLVMConstIntGetZExtValue(lane)) << l;
    }
    if (known) return b_.integer(b_.int_type(width_), word);
  }
  return b_.bitcast(mask, b_.int_type(width_));
}

LlvmValue Lowering::any(LlvmValue mask) {
  return b_.icmp(LLVMIntNE, bits(mask), b_.zero(b_.int_type(width_)));
}

LlvmValue Lowering::all(LlvmValue mask) {
  return b_.icmp(LLVMIntEQ, bits(mask), b_.all_ones(b_.int_type(width_)));
}

// Index (64 bits) of the first or last active lane; there is one.
LlvmValue Lowering::first_active() {
  const LlvmType type = b_.int_type(width_);
  const LlvmValue n = b_.call("llvm.cttz", {type}, {bits(mask_), b_.integer(b_.i1, 1)});
  return width_ < 64 ? b_.zext(n, b_.i64) : width_ > 64 ? b_.trunc(n, b_.i64) : n;
}

LlvmValue Lowering::last_active() {
  const LlvmType type = b_.int_type(width_);
  const LlvmValue n = b_.call("llvm.ctlz", {type}, {bits(mask_), b_.integer(b_.i1, 1)});
  const LlvmValue lane = b_.sub(b_.integer(type, width_ - 1), n);
  return width_ < 64 ? b_.zext(lane, b_.i64) : width_ > 64 ? b_.trunc(lane, b_.i64) : lane;
}

void Lowering::shuffle(ValueId id) {
  const Instr& instr = k_[id];
  const ValueId value = instr.args[0], source = instr.args[1];
  for (u32 part = 0; part < parts(instr.type); ++part) {
    if (shape(value).uniform()) {
      set(id, part, scalar(value, part));
    } else if (shape(id).affine) {  // one source for all lanes
      const LlvmValue lane = b_.and_(scalar(source), b_.integer(b_.i32, width_ - 1));
      set(id, part, b_.extract(vector(value, part), lane));
    } else {
      set(id, part, permute(vector(value, part), vector(source)));
    }
  }
}

LlvmValue Lowering::permute(LlvmValue v, LlvmValue source) {
  if (LLVMIsConstant(source)) {
    std::vector<u32> lanes(width_);
    for (u32 l = 0; l < width_; ++l) {
      const LlvmValue at = LLVMGetAggregateElement(source, l);
      lanes[l] = at && LLVMIsAConstantInt(at)
                     ? static_cast<u32>(LLVMConstIntGetZExtValue(at)) & (width_ - 1)
                     : 0;
    }
    return b_.shuffle(v, lanes);
  }
  const LlvmType elem = Builder::elem_of(Builder::type_of(v));
  if (elem == b_.i1) {
    return b_.trunc(permute(b_.zext(v, b_.i32), source), b_.i1);
  }
  source = b_.and_(source, b_.integer(Builder::type_of(source), width_ - 1));
  const bool word = elem == b_.i32 || elem == b_.f32;
  const bool avx512 = target_.has("avx512f") && target_.vector_bytes >= 64;
  if (word && ((width_ == 16 && avx512) || (width_ == 8 && target_.has("avx2")))) {
    const LlvmValue ints = b_.bitcast(v, Builder::vector(b_.i32, width_));
    const LlvmValue moved = width_ == 16
                                ? b_.call("llvm.x86.avx512.permvar.si.512", {}, {ints, source})
                                : b_.call("llvm.x86.avx2.permd", {}, {ints, source});
    return b_.bitcast(moved, Builder::type_of(v));
  }
  // Through memory: one vector store, then a load per lane.
  const LlvmValue slot = slot_in_frame(Builder::type_of(v), 64);
  b_.store(v, slot, 64);
  LlvmValue result = b_.undefined(Builder::type_of(v));
  const u32 size = elem == b_.i64 || elem == b_.f64 ? 8 : 4;
  for (u32 l = 0; l < width_; ++l) {
    const LlvmValue from = b_.element(elem, slot, b_.zext(b_.extract(source, l), b_.i64));
    result = b_.insert(result, b_.load(elem, from, size), b_.integer(b_.i64, l));
  }
  return result;
}

void Lowering::shuffle_xor(ValueId id) {
  const Instr& instr = k_[id];
  std::vector<u32> lanes(width_);
  for (u32 l = 0; l < width_; ++l) lanes[l] = (l ^ static_cast<u32>(instr.imm)) & (width_ - 1);
  for (u32 part = 0; part < parts(instr.type); ++part) {
    if (shape(id).affine) {
      set(id, part, scalar(instr.args[0], part));
    } else {
      set(id, part, b_.shuffle(vector(instr.args[0], part), lanes));
    }
  }
}

void Lowering::subgroup_vote(ValueId id) {
  const Instr& instr = k_[id];
  if (shape(instr.args[0]).uniform()) return set(id, 0, scalar(instr.args[0]));
  const LlvmValue v = vector(instr.args[0]);
  if (instr.op == Op::SubgroupAny) return set(id, 0, any(mask_ ? b_.and_(mask_, v) : v));
  set(id, 0, all(mask_ ? b_.or_(b_.not_(mask_), v) : v));
}

}  // namespace oa::codegen
