// What the tools around the IR know about each instruction: operand counts, which fields of Instr
// it uses, and how it may be moved. Keep in step with `Op` in ir.h.
#pragma once

#include "oa/kernel/ir.h"

namespace oa::kernel {

// What `imm` means.
enum class ImmUse : u8 { None, Bits, Number, Atomic, Scope, Layout, Hint };

// What `slot` means.
enum class SlotUse : u8 { None, Shared, OptionalShared, Var };

struct OpInfo {
  u8 min_args = 0;
  u8 max_args = 0;
  u8 regions = 0;
  ImmUse imm = ImmUse::None;
  SlotUse slot = SlotUse::None;
  bool elem = false;        // uses Instr::elem
  bool pure = false;        // a function of its operands (and the lane) without effects or faults
  bool collective = false;  // lanes act together: only in uniform control flow
};

const OpInfo& info(Op op);

constexpr bool is_compare(Op op) { return op >= Op::Eq && op <= Op::Ge; }

// Names of AtomicOp, and of an instruction's one hint (ImmUse::Hint).
const char* name(AtomicOp op);
const char* hint_name(Op op);

}  // namespace oa::kernel
