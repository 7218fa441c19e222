// A device for finding mistakes: runs every kernel in the reference interpreter with all its
// checks (oa/kernel/interpret.h), so any program can be tested for races within and between
// workgroups, missing barriers between dispatches, accesses out of bounds and reads of memory that
// nobody wrote. Slow; never chosen by itself.
#pragma once

#include <memory>

#include "oa/device/device.h"

namespace oa::device {

// What kernels are traced for: the CPU's shape (one subgroup a workgroup) or a GPU's (several).
enum class CheckedShape : u8 { Cpu, Gpu };

std::unique_ptr<Device> open_checked(CheckedShape shape);

}  // namespace oa::device
