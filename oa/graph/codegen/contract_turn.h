// 16-bit operands whose rows run along k, copied so that they run across it: a product reads those
// in longer pieces.
#pragma once

#include "oa/graph/codegen/contract_tiles.h"

namespace oa::graph {

// Launches the copy of an operand that lies in memory in packs of 8 along k, with a number of lines
// (rows of A, columns of B) that 8 divides. The temporary has [batch][k][line].
u32 lower_turned(ContractNest& c, u32 operand, Launches& out);

}  // namespace oa::graph
