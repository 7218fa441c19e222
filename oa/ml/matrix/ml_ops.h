// The list of the ops of the machine-learning layer, family by family.
#pragma once

#include "oa/matrix/all_ops.h"

namespace oa::ml::matrix {

using oa::matrix::OpList;

OpList activation_ops();
OpList attention_ops();
OpList cross_entropy_ops();
OpList loss_ops();
OpList norm_ops();
OpList recurrent_ops();

// Every op, in the order of the families above.
std::vector<const graph::OpDef*> ml_ops();

}  // namespace oa::ml::matrix
