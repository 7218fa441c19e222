// The affine map of linear layers.
#pragma once

#include "oa/matrix/matrix.h"

namespace oa::ml::matrix {

// x [..., I] of rank 1 or more, weight [O, I], bias [O] or empty -> [..., O]: x weightT + bias.
Matrix linear(const Matrix& x, const Matrix& weight, const Matrix& bias = {});

}  // namespace oa::ml::matrix
