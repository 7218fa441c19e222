// Attention on GPUs: a workgroup keeps a tile of rows in its memory and goes over tiles of the
// other side; every lane computes a small rectangle of each product.
//
// Each function lowers one kernel of attention_kernels.cpp and returns true, or returns false where
// tiles do not fit: on the CPU, for f64, for head sizes that are no multiple of 32.
#pragma once

#include "oa/graph/lower.h"
#include "oa/ml/matrix/attention_kernels.h"

namespace oa::ml::matrix {

bool tiled_attention(graph::Lower& l, const Attention::Attrs& a);
bool tiled_query_gradient(graph::Lower& l, const Attention::Attrs& a);
bool tiled_key_gradient(graph::Lower& l, const Attention::Attrs& a);

}  // namespace oa::ml::matrix
