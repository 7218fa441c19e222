// Matrix products. The last two axes multiply, leading axes are batches that broadcast. Equal
// dtypes; 16-bit floats accumulate in F32. An inner extent of 0 gives zeros.
#pragma once

#include "oa/matrix/matrix.h"

namespace oa::matrix {

Matrix mat_mul(const Matrix& a, const Matrix& b);     // [.., M, K] x [.., K, N]
Matrix mat_mul_nt(const Matrix& a, const Matrix& b);  // [.., M, K] x [.., N, K]
Matrix mat_mul_tn(const Matrix& a, const Matrix& b);  // [.., K, M] x [.., K, N]

}  // namespace oa::matrix
