// Checks that a kernel is a legal program of ir.h.
#pragma once

#include "oa/kernel/ir.h"

namespace oa::kernel {

struct VerifyLimits {
  u64 shared_bytes = ~0ull;  // workgroup memory of the target
};

// Throws Error (Internal) `kernel::verify: NAME: INSTRUCTION: what is wrong` at the first fault:
// operands that are not visible, wrong types or counts, slots out of range, misplaced regions, or a
// barrier or another operation of the whole group in control flow that may differ between lanes.
void verify(const Kernel& kernel, const VerifyLimits& limits = {});

// Bytes of workgroup memory when the slots lie one behind the other, each aligned to 16 bytes.
u64 shared_bytes(const Kernel& kernel);

}  // namespace oa::kernel
