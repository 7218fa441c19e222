// Bookkeeping of sparse mixtures of experts.
#pragma once

#include "oa/matrix/matrix.h"

namespace oa::matrix {

// Routes of T tokens to experts: slot t K + k is the k-th choice of token t. Rows are the slots in
// the order of their experts, within an expert in the order of the slots. All U32.
struct MoeExpertPlan {
  Matrix counts;         // [E] rows of each expert
  Matrix offsets;        // [E + 1] first row of each expert; the last is the number of rows
  Matrix packed_token;   // [T K] token of each row
  Matrix packed_expert;  // [T K]
  Matrix packed_slot;    // [T K]
  Matrix inverse;        // [T K] row of each slot
};

// indices I32 [T, K]. An index outside 0 .. E-1 is reported at the next synchronisation and its
// slot dropped: it has no row. Rows that are left over and the inverse of dropped slots hold
// 0xffffffff.
MoeExpertPlan moe_expert_plan(const Matrix& indices, i64 experts);

// Balances the load without a loss term, in place: bias e of `bias` [E] or [1, E] (F32) falls by
// gamma where more than T K / E of the tokens chose the expert, rises by gamma where fewer did, and
// stays where exactly as many did. mask F32 [T, E], as of top_k_mask; k of 1 .. E; gamma above 0.
void moe_routing_bias_update(const Matrix& mask, const Matrix& bias, i64 k, f64 gamma);

}  // namespace oa::matrix
