// What the recurrent ops check of their operands.
#pragma once

#include "oa/graph/op.h"

namespace oa::ml::matrix {

// Rejects operands that do not fit: operand 0 is the gates [B, gates H] or
// [B, S, gates H], as `rank` says. The
// others are given by their positions, 0 for none: weight [gates H, H], bias [gates H], state
// [B, H].
void need_recurrent(const graph::Infer& in, i64 gates, u32 rank, u32 bias, u32 state, u32 weight);

}  // namespace oa::ml::matrix
