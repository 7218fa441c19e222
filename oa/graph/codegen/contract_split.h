// Products of f32 by products of 16-bit parts on matrix units (Precision::F32x3, F32x6).
//
// A pass over each operand finds the largest element of every row of A and column of B; a second
// one scales them by powers of two and writes their 16-bit parts, k by k, padded to whole tiles.
// The product then sums in the matrix units over 64 of k at a time, because these truncate, and
// adds those sums in plain f32.
//
// Parts have a smallest number. An element below it takes part with fewer bits, which shows where
// most of what it is multiplied with is large and most of the rest is not. The second pass counts
// such elements of each row, and sums each column, from which a sufficient condition follows
// (SplitVerdict). Where it does not hold, the split product leaves the result to the plain kernel
// that is launched after it; of the two, one does nothing.
#pragma once

#include <optional>

#include "oa/graph/codegen/contract_parts.h"

namespace oa::graph {

// Whether the parts stand for the numbers at hand, known on the device only.
class SplitVerdict {
 public:
  SplitVerdict(const SplitParts& a, const SplitParts& b)
      : a_(a.control), b_(b.control), a_worst_(a.worst), b_worst_(b.worst) {}
  void add_args(Launch& launch) const;
  kernel::Bool holds() const;  // in a traced kernel: makes the parameters of add_args

 private:
  u32 a_, b_;              // temporaries
  u32 a_worst_, b_worst_;  // words there: most small elements of a line, ~(smallest sum of a line)
};

// Launches the split product if the precision asks for one and the device has the units. The
// kernel launched next must compute the product where the verdict does not hold.
std::optional<SplitVerdict> lower_contract_split(ContractNest& c, const DepthSlices& slices,
                                                 Launches& out);

}  // namespace oa::graph
