// Values made from nothing but a shape.
#pragma once

#include "oa/matrix/matrix.h"

namespace oa::matrix {

// `value` everywhere; it may change from call to call without compiling anything.
Matrix full(const Engine& engine, const Shape& shape, f64 value, DType dtype = DType::F32);
Matrix zeros(const Engine& engine, const Shape& shape, DType dtype = DType::F32);
Matrix ones(const Engine& engine, const Shape& shape, DType dtype = DType::F32);
// Shape and dtype of another value.
Matrix full_like(const Matrix& x, const graph::Scalar& value);
// Dtype and engine of another value.
Matrix full_like(const Matrix& x, const Shape& shape, const graph::Scalar& value);
// start, start + 1, ... along the only axis.
Matrix arange(const Engine& engine, i64 count, f64 start = 0, DType dtype = DType::F32);
// The same on the engine of another value.
Matrix arange_like(const Matrix& x, i64 count, f64 start = 0, DType dtype = DType::F32);

}  // namespace oa::matrix
