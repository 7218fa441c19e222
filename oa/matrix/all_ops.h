// The list of all ops, family by family: an op is its struct and one line in its family's list.
#pragma once

#include <span>
#include <vector>

#include "oa/graph/op.h"

namespace oa::matrix {

using OpList = std::span<const graph::OpDef* const>;

OpList graph_ops();  // that the graph itself needs
OpList elementwise_ops();
OpList transcendental_ops();
OpList reduce_ops();
OpList movement_ops();
OpList create_ops();
OpList matmul_ops();
OpList index_ops();
OpList scatter_ops();
OpList random_ops();
OpList scan_ops();
OpList sort_ops();
OpList moe_ops();

// Every op, in the order of the families above.
std::vector<const graph::OpDef*> all_ops();

}  // namespace oa::matrix
