// Normalisation along the last axis, and lengths of vectors. Statistics are taken in F32 at least,
// whatever the dtype, in a stable way: a constant row gives exactly the bias.
#pragma once

#include "oa/matrix/matrix.h"

namespace oa::ml::matrix {

// (x - mean) / sqrt(variance + epsilon) weight + bias with the population's variance: x [..., D],
// weight and bias [D], all of one float dtype, epsilon > 0 and finite.
Matrix layer_norm(const Matrix& x, const Matrix& weight, const Matrix& bias, f64 epsilon);

// x / sqrt(mean(x^2) + epsilon) weight: x [..., D], weight [D].
Matrix rms_norm(const Matrix& x, const Matrix& weight, f64 epsilon);

}  // namespace oa::ml::matrix
