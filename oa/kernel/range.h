// Intervals of integer values: what a value can be, from constants, the lane and the shape of the
// program. Lets the simplifier drop bounds checks and loops whose outcome is certain.
#pragma once

#include "oa/kernel/ir.h"

namespace oa::kernel {

// lo <= value <= hi, read as the value's own type. `known` is false where i64 cannot tell (U64 with
// no bound, floats).
struct Range {
  bool known = false;
  i64 lo = 0;
  i64 hi = 0;

  bool exact() const { return known && lo == hi; }
};

// The whole of a type.
Range full_range(Scalar s);

// Range of one instruction from the ranges of its operands.
Range range_of(const Kernel& kernel, const Instr& instr, const Range* args);

enum class Verdict : u8 { Unknown, False, True };

// Outcome of an integer comparison for all values of two ranges.
Verdict compare_ranges(Op op, const Range& a, const Range& b);

// How often a For runs: never, exactly once, at least once, or unknown.
enum class Trips : u8 { Unknown, None, One, Some };
Trips trips_of(Scalar s, const Range& begin, const Range& end, const Range& step);

}  // namespace oa::kernel
