// The identity of a kernel: equal hashes mean the same program.
#pragma once

#include "oa/core/hash.h"
#include "oa/kernel/ir.h"

namespace oa::kernel {

// Hash of everything that a lowering may look at. The name, unused entries of Kernel::instrs and
// the numbering of values do not count: values are numbered in the order of the regions.
Hash128 hash(const Kernel& kernel);

}  // namespace oa::kernel
