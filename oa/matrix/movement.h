// Ops that only move elements. They cost nothing where a fused kernel can follow them as an index
// map. Any dtype.
#pragma once

#include "oa/matrix/matrix.h"

namespace oa::matrix {

Matrix reshape(const Matrix& x, const Shape& shape);
Matrix broadcast_to(const Matrix& x, const Shape& shape);
// Axis i of the result is axis order[i] of x.
Matrix permute(const Matrix& x, const Dims& order);
Matrix transpose(const Matrix& x, i64 axis0, i64 axis1);
// Elements start <= i < end of an axis. Negative positions count from the end.
Matrix slice(const Matrix& x, i64 axis, i64 start, i64 end);
Matrix flip(const Matrix& x, i64 axis);
// Each element `repeats` times in a row along an axis.
Matrix repeat_interleave(const Matrix& x, i64 repeats, i64 axis);
// `before` and `after` elements of `value` around an axis.
Matrix pad(const Matrix& x, i64 axis, i64 before, i64 after, f64 value = 0);
// Joins values along an axis; the other extents are equal. At least one value.
Matrix concat(const std::vector<Matrix>& list, i64 axis);

}  // namespace oa::matrix
