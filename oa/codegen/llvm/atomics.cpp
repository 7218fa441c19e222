// Atomics: every active lane performs its own, in the order of the lanes.
#include "oa/codegen/llvm/lower.h"
#include "oa/core/error.h"

namespace oa::codegen {

using kernel::AtomicOp;
using kernel::Op;

LlvmValue Lowering::atomic_once(const Instr& instr, LlvmValue pointer, LlvmValue value,
                                LlvmValue expected) {
  constexpr auto kRelaxed = LLVMAtomicOrderingMonotonic;
  if (instr.op == Op::AtomicCas) {
    const LlvmValue pair =
        LLVMBuildAtomicCmpXchg(b_.at, pointer, expected, value, kRelaxed, kRelaxed, false);
    return LLVMBuildExtractValue(b_.at, pair, 0, "");
  }
  const bool sign = kernel::is_signed(instr.elem);
  LLVMAtomicRMWBinOp op = LLVMAtomicRMWBinOpAdd;
  switch (static_cast<AtomicOp>(instr.imm)) {
    case AtomicOp::Add: op = LLVMAtomicRMWBinOpAdd; break;
    case AtomicOp::Min: op = sign ? LLVMAtomicRMWBinOpMin : LLVMAtomicRMWBinOpUMin; break;
    case AtomicOp::Max: op = sign ? LLVMAtomicRMWBinOpMax : LLVMAtomicRMWBinOpUMax; break;
    case AtomicOp::And: op = LLVMAtomicRMWBinOpAnd; break;
    case AtomicOp::Or: op = LLVMAtomicRMWBinOpOr; break;
    case AtomicOp::Exchange: op = LLVMAtomicRMWBinOpXchg; break;
  }
  return LLVMBuildAtomicRMW(b_.at, op, pointer, value, kRelaxed, false);
}

void Lowering::atomic(ValueId id) {
  const Instr& instr = k_[id];
  const bool is_shared = instr.op == Op::SharedAtomic;
  const size_t first = is_shared ? 0 : 1;  // position of the index
  const ValueId index = instr.args[first], value = instr.args.back();
  const bool cas = instr.op == Op::AtomicCas;
  const ValueId expected = cas ? instr.args[first + 1] : kernel::kNoValue;
  if (instr.elem != Scalar::I32 && instr.elem != Scalar::U32) {
    fail(ErrorKind::Internal, "codegen", "element of an atomic, got {}, expected i32 or u32",
         kernel::name(instr.elem));
  }
  LlvmValue base = nullptr;
  if (is_shared) {
    base = shared_[instr.slot];
  } else if (shape(instr.args[0]).uniform()) {
    base = LLVMBuildIntToPtr(b_.at, scalar(instr.args[0]), b_.ptr, "");
  }
  if (width_ == 1) {
    const LlvmValue to = b_.element(b_.i32, base, wide_index(index));
    return set(id, 0, atomic_once(instr, to, scalar(value), cas ? scalar(expected) : nullptr));
  }
  // A loop over the active lanes; their operands and results pass through the frame.
  const Access a{instr.elem, 1, base, instr.args[0], index};
  const LlvmValue pointers = lane_pointers(a, 0);
  const LlvmType lanes = Builder::vector(b_.i32, width_);
  const LlvmValue pointer_slot = slot_in_frame(Builder::type_of(pointers), 64);
  const LlvmValue value_slot = slot_in_frame(lanes, 64);
  const LlvmValue result_slot = slot_in_frame(lanes, 64);
  const LlvmValue expected_slot = cas ? slot_in_frame(lanes, 64) : nullptr;
  b_.store(pointers, pointer_slot, 64);
  b_.store(vector(value), value_slot, 64);
  b_.store(b_.zero(lanes), result_slot, 64);
  if (cas) b_.store(vector(expected), expected_slot, 64);
  const LlvmType word = b_.int_type(width_);
  const LlvmValue active = bits(mask_or_all());

  const LlvmBlock start = b_.block();
  const LlvmBlock loop = b_.new_block("atomic"), done = b_.new_block("atomic.done");
  b_.jump(loop);  // some lane is active here
  b_.enter(loop);
  const LlvmValue left = b_.phi(word);
  b_.incoming(left, active, start);
  LlvmValue lane = b_.call("llvm.cttz", {word}, {left, b_.integer(b_.i1, 1)});
  if (width_ < 64) lane = b_.zext(lane, b_.i64);
  if (width_ > 64) lane = b_.trunc(lane, b_.i64);
  const auto cell = [&](LlvmValue slot) { return b_.element(b_.i32, slot, lane); };
  const LlvmValue to = b_.load(b_.ptr, b_.element(b_.ptr, pointer_slot, lane), 8);
  const LlvmValue old = atomic_once(instr, to, b_.load(b_.i32, cell(value_slot), 4),
                                    cas ? b_.load(b_.i32, cell(expected_slot), 4) : nullptr);
  b_.store(old, cell(result_slot), 4);
  const LlvmValue rest = b_.and_(left, b_.sub(left, b_.integer(word, 1)));
  b_.incoming(left, rest, loop);
  b_.branch(b_.icmp(LLVMIntNE, rest, b_.zero(word)), loop, done);
  b_.enter(done);
  set(id, 0, b_.load(lanes, result_slot, 64));
}

}  // namespace oa::codegen
