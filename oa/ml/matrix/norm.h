// Normalisation along the last axis, and lengths of vectors. Statistics are taken in F32 at least,
// whatever the dtype, in a stable way: a constant row gives exactly the bias.
#pragma once

#include <optional>

#include "oa/matrix/matrix.h"

namespace oa::ml::matrix {

// (x - mean) / sqrt(variance + epsilon) weight + bias with the population's variance: x [..., D],
// weight and bias [D], all of one float dtype, epsilon > 0 and finite.
Matrix layer_norm(const Matrix& x, const Matrix& weight, const Matrix& bias, f64 epsilon);

// x / sqrt(mean(x^2) + epsilon) weight: x [..., D], weight [D].
Matrix rms_norm(const Matrix& x, const Matrix& weight, f64 epsilon);

// (x / sqrt(mean(x^2) + epsilon) weight + bias) silu(gate): x and gate [..., D]; weight, and bias
// if given, [..., groups, D]; row r of x uses group r % groups, and groups divides the rows.
Matrix rms_norm_gated(const Matrix& x, const Matrix& weight, const std::optional<Matrix>& bias,
                      const Matrix& gate, f64 epsilon);

struct RmsNormGatedBackward {
  Matrix input;
  Matrix weight;
  std::optional<Matrix> bias;
  Matrix gate;
};

// The gradients of rms_norm_gated's operands, given that of its result.
RmsNormGatedBackward rms_norm_gated_backward(const Matrix& x, const Matrix& weight,
                                             const std::optional<Matrix>& bias, const Matrix& gate,
                                             const Matrix& output_gradient, f64 epsilon);

// The length (2-norm) of the vectors along an axis; without one, of all elements, of shape [].
// Floats. The gradient of a vector of zeros is 0.
Matrix norm(const Matrix& x, i64 axis, bool keepdims = false);
Matrix norm(const Matrix& x);

}  // namespace oa::ml::matrix
