// The order of launches on a GPU, and which of them run side by side.
#pragma once

#include <vector>

#include "oa/graph/compile.h"

namespace oa::graph {

// Sorts the launches so that as few intervals as possible stand in a row. A CPU keeps the order of
// the graph, in which a value is read soon after it is made.
void order_launches(Compilation& c);

// Of each launch, the last one of its interval. On a GPU the values that launches of one interval
// share need no barrier between them, so memory is handed on between intervals only; where barriers
// stand is decided later, by memory. On a CPU each launch has an interval of its own.
std::vector<u32> interval_ends(const Compilation& c);

}  // namespace oa::graph
