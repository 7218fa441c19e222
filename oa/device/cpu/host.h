// What the operating system tells about this machine.
#pragma once

#include <string>
#include <vector>

#include "oa/core/types.h"

namespace oa::device {

// The cores that this process may use, ascending; at least one.
std::vector<u32> usable_cores();

// Threads for a pool: `requested` if not 0, else OA_THREADS, else the usable cores, or fewer where
// a control group grants less time. Throws InvalidArgument if OA_THREADS is no thread count.
u32 thread_count(u32 requested);

// Bytes of memory that this process can have: the machine's, or its control group's if less.
u64 memory_limit();

std::string cpu_name();

}  // namespace oa::device
