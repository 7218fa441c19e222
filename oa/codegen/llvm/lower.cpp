// The table of lowerings, and the frame of the function: its loop over groups, variables and shared
// arrays.
#include "oa/codegen/llvm/lower.h"

#include <algorithm>

#include "oa/core/error.h"

namespace oa::codegen {

using kernel::kNoSlot;
using kernel::Op;

Lowering::Lowering(const kernel::Kernel& kernel, const CpuTarget& target, LLVMModuleRef module,
                   const std::string& symbol)
    : k_(kernel),
      target_(target),
      width_(kernel.width),
      uniformity_(kernel),
      b_(module),
      entry_(module) {
  if (kernel.subgroup != kernel.width) {
    fail(ErrorKind::Internal, "codegen", "subgroup of {} on the CPU, got {}, expected the width {}",
         kernel.name, kernel.subgroup, kernel.width);
  }
  first_cell_.reserve(kernel.instrs.size());
  u32 cells = 0;
  for (const Instr& instr : kernel.instrs) {
    first_cell_.push_back(cells);
    cells += parts(instr.type);
  }
  cells_.resize(cells);
  exact_.assign(kernel.instrs.size(), -1);
  seen_.resize(kernel.vars.size());
  home_of_.resize(kernel.vars.size());
  home_level_.resize(kernel.vars.size());
  std::vector<const Region*> open;
  find_homes(kernel.body, open);
  for (u32 slot = 0; slot < home_of_.size(); ++slot) {
    if (home_of_[slot]) homes_[home_of_[slot]].push_back(slot);
  }
  function(symbol);
}

void Lowering::function(const std::string& symbol) {
  LlvmType types[] = {b_.ptr, b_.i32, b_.i32, b_.i32};
  const LlvmType type = LLVMFunctionType(LLVMVoidTypeInContext(b_.context), types, 4, false);
  const LlvmValue fn = LLVMAddFunction(b_.module, symbol.c_str(), type);
  const auto attribute = [&](const char* key, const std::string& value) {
    LLVMAddAttributeAtIndex(
        fn, static_cast<LLVMAttributeIndex>(LLVMAttributeFunctionIndex),
        LLVMCreateStringAttribute(b_.context, key,
                                  static_cast<unsigned>(std::string_view(key).size()),
                                  value.c_str(), static_cast<unsigned>(value.size())));
  };
  // Vectors of the target's full size, which LLVM shuns by itself on some CPUs.
  attribute("prefer-vector-width", std::to_string(8 * target_.vector_bytes));
  attribute("min-legal-vector-width", std::to_string(8 * target_.vector_bytes));
  LLVMAddAttributeAtIndex(
      fn, static_cast<LLVMAttributeIndex>(LLVMAttributeFunctionIndex),
      LLVMCreateEnumAttribute(b_.context, LLVMGetEnumAttributeKindForName("nounwind", 8), 0));
  LLVMAddAttributeAtIndex(
      fn, 1, LLVMCreateEnumAttribute(b_.context, LLVMGetEnumAttributeKindForName("noalias", 7), 0));
  params_ = LLVMGetParam(fn, 0);
  const LlvmValue first = LLVMGetParam(fn, 1), last = LLVMGetParam(fn, 2);
  group_count_ = LLVMGetParam(fn, 3);

  const LlvmBlock entry = LLVMAppendBasicBlockInContext(b_.context, fn, "entry");
  entry_.enter(entry);
  b_.enter(entry);
  const LlvmBlock body = b_.new_block("group");
  const LlvmBlock exit = b_.new_block("exit");
  make_vars();
  make_shared();

  b_.enter(body);
  group_ = b_.phi(b_.i32);
  b_.incoming(group_, first, entry);
  region(k_.body);
  const LlvmValue next = b_.add(group_, b_.integer(b_.i32, 1));
  b_.incoming(group_, next, b_.block());
  b_.branch(b_.icmp(LLVMIntULT, next, last), body, exit);

  entry_.branch(entry_.icmp(LLVMIntULT, first, last), body, exit);
  b_.enter(exit);
  // Streaming stores are ordered with what other threads do next only by a fence.
  const bool streams = std::any_of(k_.instrs.begin(), k_.instrs.end(),
                                   [](const Instr& i) { return i.op == Op::Store && i.imm == 1; });
  if (streams) b_.call("llvm.x86.sse.sfence", {}, {});
  LLVMBuildRetVoid(b_.at);
}

void Lowering::region(const Region& region) {
  const Scope scope(*this);
  if (const auto it = homes_.find(&region); it != homes_.end()) {
    for (const u32 slot : it->second) home_level_[slot] = level_;
  }
  for (const ValueId id : region) lower(id);
}

// clang-format off
void Lowering::lower(ValueId id) {
  const Instr& instr = k_[id];
  switch (instr.op) {
    case Op::Const:
      return set(id, 0, kernel::is_float(instr.type.scalar)
                            ? LLVMConstBitCast(b_.integer(instr.type.scalar == Scalar::F64 ? b_.i64 : b_.i32, instr.imm),
                                               b_.value_type(instr.type.scalar))
                            : b_.integer(b_.value_type(instr.type.scalar), instr.imm));
    case Op::Param: return param(id);
    case Op::LaneId: return lane_id(id);
    case Op::GroupId: return set(id, 0, group_);
    case Op::GroupCount: return set(id, 0, group_count_);

    case Op::Neg: case Op::Abs: case Op::Not: case Op::Sqrt:
    case Op::Floor: case Op::Ceil: case Op::Trunc: case Op::RoundEven:
    case Op::Add: case Op::Sub: case Op::Mul: case Op::Div: case Op::Rem:
    case Op::Min: case Op::Max: case Op::MulHi:
    case Op::And: case Op::Or: case Op::Xor: case Op::Shl: case Op::Shr:
    case Op::Fma:
    case Op::Eq: case Op::Ne: case Op::Lt: case Op::Le: case Op::Gt: case Op::Ge:
    case Op::Cast: case Op::Bitcast:
      return arithmetic(id);
    case Op::Select: return select(id);

    case Op::VecBuild: return vec_build(id);
    case Op::VecExtract: return vec_extract(id);

    case Op::Load: case Op::SharedLoad: return load(id);
    case Op::Store: case Op::SharedStore: return store(id);
    case Op::Atomic: case Op::AtomicCas: case Op::SharedAtomic: return atomic(id);
    case Op::VarLoad: return var_load(id);
    case Op::VarStore: return var_store(instr);

    case Op::Shuffle: return shuffle(id);
    case Op::ShuffleXor: return shuffle_xor(id);
    case Op::SubgroupAny: case Op::SubgroupAll: return subgroup_vote(id);
    case Op::Barrier: return;  // a gang advances in lockstep

    case Op::FragFill: return frag_fill(id);
    case Op::FragLoad: return frag_load(id);
    case Op::FragStore: return frag_store(id);
    case Op::FragMulAdd: return frag_mul_add(id);
    case Op::FragAdd: case Op::FragMul: case Op::FragCast: return frag_elementwise(id);

    case Op::If: return if_else(id);
    case Op::For: return for_loop(id);
    case Op::While: return while_loop(id);
    case Op::Yield: yield_id_ = instr.args[0]; return;
  }
  fail(ErrorKind::Internal, "codegen", "no lowering for instruction {}", static_cast<int>(instr.op));
}
// clang-format on

// Parameters are read once, before the loop over groups.
void Lowering::param(ValueId id) {
  const Instr& instr = k_[id];
  Builder& at = k_.params <= kernel::kMostHeldParams ? entry_ : b_;
  const LlvmValue from = at.element(b_.i64, params_, b_.integer(b_.i64, instr.imm));
  const LlvmValue v = at.load(b_.value_type(instr.type.scalar), from, 8);
  set(id, 0, v);
}

LlvmValue Lowering::slot_in_frame(LlvmType type, u32 align) {
  const LlvmValue slot = LLVMBuildAlloca(entry_.at, type, "");
  if (align) LLVMSetAlignment(slot, align);
  return slot;
}

void Lowering::make_vars() {
  for (u32 slot = 0; slot < k_.vars.size(); ++slot) {
    const kernel::Type& type = k_.vars[slot].type;
    const bool one = uniformity_.var(slot).affine;
    const u32 lanes = type.is_fragment() ? type.cols : one ? 0 : width_;
    auto& slots = vars_.emplace_back();
    for (u32 p = 0; p < parts(type); ++p) {
      slots.push_back(slot_in_frame(Builder::vector(b_.value_type(type.scalar), lanes), 0));
    }
  }
}

void Lowering::make_shared() {
  constexpr u32 kLine = 64;
  u64 total = 0;
  for (const kernel::SharedSlot& s : k_.shared) {
    const u64 bytes = (u64{s.count} * size_bytes(s.elem) + kLine - 1) / kLine * kLine;
    total += bytes;
    if (total > kMaxSharedBytes) {
      invalid("codegen", "workgroup memory of {} in bytes, got at least {}, expected at most {}",
              k_.name, total, kMaxSharedBytes);
    }
    shared_.push_back(slot_in_frame(LLVMArrayType2(b_.i8, std::max<u64>(bytes, kLine)), kLine));
  }
}

}  // namespace oa::codegen
