// Reductions, softmax and statistics.
//
// Without an axis the result covers all elements and has shape []; with one, the axis goes, or
// stays with extent 1 if `keepdims`. 16-bit floats accumulate in 32 bits. Sums run in a fixed
// order, so results are the same in every run and for every thread count.
#pragma once

#include "oa/matrix/matrix.h"

namespace oa::matrix {

Matrix sum(const Matrix& x);  // no elements: 0
Matrix sum(const Matrix& x, i64 axis, bool keepdims = false);
Matrix sum(const Matrix& x, const Dims& axes, bool keepdims = false);
// Sums over the axes that a broadcast from `shape` to x's shape expands: the adjoint of
// broadcast_to.
Matrix sum_to(const Matrix& x, const Shape& shape);
Matrix mean(const Matrix& x);  // floats; no elements: NaN
Matrix mean(const Matrix& x, i64 axis, bool keepdims = false);
Matrix mean(const Matrix& x, const Dims& axes, bool keepdims = false);
Matrix prod(const Matrix& x);  // no elements: 1
Matrix prod(const Matrix& x, i64 axis, bool keepdims = false);

// NaN wins over every number. No elements: InvalidArgument.
Matrix max(const Matrix& x);
Matrix max(const Matrix& x, i64 axis, bool keepdims = false);
Matrix min(const Matrix& x);
Matrix min(const Matrix& x, i64 axis, bool keepdims = false);
// I32 position of the first maximum (minimum), of the first NaN if there is one.
Matrix argmax(const Matrix& x, i64 axis, bool keepdims = false);
Matrix argmin(const Matrix& x, i64 axis, bool keepdims = false);

// Mean of squared distances from the mean, over n - correction. Two passes over data at hand, so
// large means cost no digits.
Matrix variance(const Matrix& x, i64 axis, bool keepdims = false, i64 correction = 0);
Matrix variance(const Matrix& x);

// log(sum(exp(x))) without overflow; -inf for a row of -inf.
Matrix log_sum_exp(const Matrix& x, i64 axis, bool keepdims = false);
Matrix softmax(const Matrix& x, i64 axis = -1);
Matrix log_softmax(const Matrix& x, i64 axis = -1);

}  // namespace oa::matrix
