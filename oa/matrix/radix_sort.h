// Stable sorting of U32 keys in the kernel language, for ops that order things: any number of rows
// of any length, the same result on every device.
#pragma once

#include "oa/graph/lower.h"

namespace oa::matrix {

// Rows of n pairs (U32 key, U32 position), one row after another. A sort works in two such sets and
// leaves its result in one of them.
struct SortPairs {
  graph::ArgRef keys[2];
  graph::ArgRef positions[2];
  u32 current = 0;  // the set that holds the pairs
  const graph::ArgRef& sorted_keys() const { return keys[current]; }
  const graph::ArgRef& sorted_positions() const { return positions[current]; }
};
SortPairs make_pairs(graph::Lower& l, i64 rows, i64 n);

// Sorts each row of the current set by the low `bits` bits of its keys; equal keys keep their
// order.
void radix_sort(graph::Lower& l, i64 rows, i64 n, u32 bits, SortPairs& pairs);

}  // namespace oa::matrix
