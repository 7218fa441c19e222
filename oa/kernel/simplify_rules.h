// The program that simplify() builds, and the algebraic rules that it applies to each instruction.
#pragma once

#include <optional>
#include <vector>

#include "oa/kernel/ir.h"
#include "oa/kernel/range.h"

namespace oa::kernel {

// A kernel under construction. Values come from emit(), which applies the rules and shares.
class Builder {
 public:
  virtual ~Builder() = default;

  const Instr& at(ValueId id) const { return out_.instrs[id]; }
  const Range& range(ValueId id) const { return ranges_[id]; }
  const Kernel& kernel() const { return out_; }

  virtual ValueId emit(Instr instr) = 0;
  ValueId constant(Scalar s, u64 bits) {
    return emit({.op = Op::Const, .type = Type{s}, .imm = bits});
  }

  // Bits of a constant scalar.
  std::optional<u64> constant_of(ValueId id) const {
    const Instr& i = at(id);
    return i.op == Op::Const ? std::optional(i.imm) : std::nullopt;
  }

 protected:
  Kernel out_;
  std::vector<Range> ranges_;  // by value
};

// A value that equals `instr` and is known already or simpler, else kNoValue; `instr` may be
// rewritten to an equal instruction either way. Only for pure instructions.
ValueId apply_rules(Builder& b, Instr& instr);

}  // namespace oa::kernel
