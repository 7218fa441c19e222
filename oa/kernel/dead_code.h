// Removal of what has no effect; the last step of simplify().
#pragma once

#include "oa/kernel/ir.h"

namespace oa::kernel {

// Drops unused values, stores to variables and workgroup memory that nobody reads, control flow
// without effects, and unused slots. The result has no unused instructions and numbers them in the
// order of the text. Parameters keep their numbers. A while loop whose condition reads memory
// stays: it may wait for others.
Kernel remove_dead_code(Kernel kernel);

}  // namespace oa::kernel
