// Attention on matrix units, where the precision rounds operands to 16 bits (Precision::F16, BF16):
// f32 in memory, 16 bits in products, f32 in sums and everything between.
//
// Each function lowers one kernel of attention_kernels.cpp and returns true, or returns false where
// the device has no such units, the lengths or the head size are no multiples of 32, or the
// precision does not round.
#pragma once

#include "oa/graph/lower.h"
#include "oa/ml/matrix/attention_kernels.h"

namespace oa::ml::matrix {

bool fragment_attention(graph::Lower& l, const Attention::Attrs& a);
bool fragment_query_gradient(graph::Lower& l, const Attention::Attrs& a);
bool fragment_key_gradient(graph::Lower& l, const Attention::Attrs& a);

}  // namespace oa::ml::matrix
