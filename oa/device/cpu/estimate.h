// A guess at the time that one group of a kernel takes, from its IR. It steers only how a dispatch
// is split over threads; a factor of three does no harm.
#pragma once

#include "oa/core/types.h"
#include "oa/kernel/ir.h"

namespace oa::device {

struct GroupCost {
  f64 ns = 0;
  bool certain = true;  // false: the trips of some loop are known only at run time
};

GroupCost estimate_group(const kernel::Kernel& kernel, const kernel::Target& target);

}  // namespace oa::device
