// Cleans a kernel up before it is lowered. The result computes the same bits.
//
// One walk over the program folds constants, applies identities that are exact, shares equal
// values, follows variables through straight code, moves what does not change out of loops,
// resolves branches and loops whose outcome is certain; then dead code and unused slots go, and
// values are numbered in the order of the text. Time is about linear in the size.
//
// Where ir.h leaves a result open (integer division by zero, the sign of a zero minimum, the bits
// of a NaN) the result may be another one of those allowed. Out-of-bounds accesses whose value
// nobody uses may vanish; none is ever added.
#pragma once

#include "oa/kernel/ir.h"

namespace oa::kernel {

Kernel simplify(const Kernel& kernel);

}  // namespace oa::kernel
