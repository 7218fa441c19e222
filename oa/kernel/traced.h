// The kernel being traced, as differentiate.h reads it, and the marks that math.h leaves there.
#pragma once

#include <initializer_list>
#include <string_view>

#include "oa/kernel/lang.h"

namespace oa::kernel {

// The instruction that yields a value is the end of a function of math.h.
struct FunctionMark {
  std::string_view function;  // e.g. "kernel::exp"
  ValueId args[2] = {kNoValue, kNoValue};
};

const Instr& traced_instr(ValueId id);
const FunctionMark* traced_function(ValueId id);  // null where no function ends
void mark_function(std::string_view function, std::initializer_list<Value> args,
                   const Value& result);

}  // namespace oa::kernel
