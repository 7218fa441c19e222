// Sorting and selection of the greatest. Stable: equal elements keep their order (+0 and -0 are
// equal). NaN is greater than every number. Any dtype, any extent below 2^31.
#pragma once

#include "oa/matrix/matrix.h"

namespace oa::matrix {

Matrix sort(const Matrix& x, i64 axis = -1, bool descending = false);
// I32 positions of the elements in sorted order.
Matrix argsort(const Matrix& x, i64 axis = -1, bool descending = false);

struct TopKResult {
  Matrix values;
  Matrix indices;  // I32
};
// The k greatest elements along an axis, descending; of equal ones the lower index first. k is
// clamped to the extent.
TopKResult top_k(const Matrix& x, i64 k, i64 axis = -1);

// indices [T, K] -> F32 [T, classes]: 1 where a class is among the row's indices, else 0.
Matrix top_k_mask(const Matrix& indices, i64 classes);

}  // namespace oa::matrix
