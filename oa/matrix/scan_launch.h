// Launches of running sums, for the op and for kernels that place things one after another.
#pragma once

#include "oa/graph/lower.h"

namespace oa::matrix {

struct ScanShape {
  i64 outer = 1;
  i64 count = 0;  // elements of a line
  i64 inner = 1;  // elements between neighbours of a line
};

struct ScanTypes {
  kernel::Scalar in;   // in memory
  kernel::Scalar out;  // in memory; sums are held as its value
  bool exclusive = false;
  bool reverse = false;
};

// Sums of the lines of [outer, count, inner] from `in` to `out`.
void launch_scan(graph::Lower& l, const ScanShape& shape, const ScanTypes& types,
                 const graph::ArgRef& in, const graph::ArgRef& out);

}  // namespace oa::matrix
