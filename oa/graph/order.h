// The order of launches on a GPU, and which of them run side by side.
#pragma once

#include <vector>

#include "oa/graph/compile.h"

namespace oa::graph {

// Sorts the launches so that as few intervals as possible stand in a row. A CPU keeps the order of
// the graph, in which a value is read soon after it is made.
void order_launches(Compilation& c);

// Of each launch, the last one of its interval. On a GPU launches of one interval need no barrier
// between them, unless they share memory that is theirs one after the other; on a CPU each has an
// interval of its own.
std::vector<u32> interval_ends(const Compilation& c);

}  // namespace oa::graph
