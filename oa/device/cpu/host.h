// What the operating system tells about this machine.
#pragma once

#include <string>
#include <vector>

#include "oa/core/types.h"

namespace oa::device {

// A processor as the system counts them. Hyper-threads of one core share its `home`, the lowest
// number among those that this process may use.
struct Core {
  u32 number = 0;
  u32 home = 0;
};

// The processors that this process may use, ascending; at least one.
std::vector<Core> usable_cores();
// Their distinct homes, ascending: one processor for each physical core.
std::vector<u32> homes(const std::vector<Core>& cores);

// Threads for a pool: `requested` if not 0, else OA_THREADS, else the physical cores, or fewer
// where a control group grants less time. Throws InvalidArgument if OA_THREADS is no thread count.
u32 thread_count(u32 requested);

// Bytes of memory that this process can have: the machine's, or its control group's if less.
u64 memory_limit();

std::string cpu_name();

}  // namespace oa::device
