// Functions of floats, from the kernel language's own math library (docs/math.md states the error
// bounds). 16-bit floats are computed in F32.
#pragma once

#include "oa/matrix/matrix.h"

namespace oa::matrix {

Matrix exp(const Matrix& x);
Matrix expm1(const Matrix& x);
Matrix log(const Matrix& x);
Matrix log1p(const Matrix& x);
Matrix sin(const Matrix& x);
Matrix cos(const Matrix& x);
Matrix tanh(const Matrix& x);
Matrix sigmoid(const Matrix& x);
Matrix softplus(const Matrix& x);
Matrix erf(const Matrix& x);
Matrix rsqrt(const Matrix& x);
Matrix pow(const Matrix& x, f64 exponent);  // the exponent is a runtime value
Matrix pow(const Matrix& x, const Matrix& y);

}  // namespace oa::matrix
