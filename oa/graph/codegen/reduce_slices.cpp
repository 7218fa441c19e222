// When a reduction is cut into slices: by its shape alone, so that the order of additions is too.
#include "oa/graph/codegen/reduce_slices.h"

#include <algorithm>

#include "oa/graph/codegen/loops.h"

namespace oa::graph {

i64 kept_elements(const Shape& domain, const std::vector<u32>& axes) {
  i64 n = 1;
  for (u32 i = 0; i < domain.rank(); ++i) {
    if (std::find(axes.begin(), axes.end(), i) == axes.end()) n *= domain[i];
  }
  return n;
}

bool is_split_reduction(const kernel::Target& target, const Shape& domain,
                        const std::vector<u32>& axes) {
  i64 count = 1;
  for (u32 a : axes) count *= domain[a];
  const i64 rows = kept_elements(domain, axes);
  // Rows that lanes share fill the machine by themselves from 64 workgroups on.
  const bool lane_rows = !axes.empty() && axes.back() != domain.rank() - 1 && domain.back() > 1;
  const i64 workgroups = lane_rows ? ceil_div(rows, 16) : rows;
  // Threads of a CPU part what they reduce as they part what they wrote: by the outer axis.
  if (lane_rows && target.is_cpu()) return count >= 2 * kLaneSlice && workgroups < 64;
  return count >= 4 * kSlice / (lane_rows ? 16 : 1) && workgroups < 64;
}

}  // namespace oa::graph
