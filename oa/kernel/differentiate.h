// Derivatives of straight-line code of the kernel being traced.
//
// The gradient of an elementwise op is made from the op's own scalar function: the code that the
// function has just recorded is walked once more, in forward mode. Functions of math.h count as one
// step each, with the derivative that mathematics gives them.
#pragma once

#include "oa/kernel/lang.h"

namespace oa::kernel {

// A value equal to `v` that nothing else stands for, so that derivative() can tell its uses apart.
// The simplifier removes it.
Value independent(const Value& v);

// dy/dx, a value of y's type that is recorded after y. x comes from independent(), y is a float.
// Where min or max has equal operands they share the derivative evenly; abs has 0 at 0; rounding,
// comparisons and conversions to integers count as constant. An invalid Value if y does not depend
// on x. Throws Internal if y depends on x through memory, variables or bits.
Value derivative(const Value& y, const Value& x);

}  // namespace oa::kernel
