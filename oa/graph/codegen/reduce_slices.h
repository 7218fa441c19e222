// How long the slices of a reduction with few long rows are.
#pragma once

#include "oa/core/types.h"

namespace oa::graph {

inline constexpr i64 kSlice = 8192;     // elements of a slice of a split reduction
inline constexpr i64 kLaneSlice = 256;  // the same where every lane of a CPU has a row of its own
inline constexpr i64 kGpuLaneSlice = 1024;  // and where lanes of a GPU have

}  // namespace oa::graph
