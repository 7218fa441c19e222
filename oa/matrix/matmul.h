// Matrix products. The last two axes multiply, leading axes are batches that broadcast. Equal
// dtypes; 16-bit floats accumulate in F32. An inner extent of 0 gives zeros. The precision is that
// of F32 operands (oa/core/precision.h); gradients are computed in the same.
#pragma once

#include "oa/matrix/matrix.h"

namespace oa::matrix {

Matrix mat_mul(const Matrix& a, const Matrix& b,
               Precision precision = Precision::Engine);  // [.., M, K] x [.., K, N]
Matrix mat_mul_nt(const Matrix& a, const Matrix& b,
                  Precision precision = Precision::Engine);  // [.., M, K] x [.., N, K]
Matrix mat_mul_tn(const Matrix& a, const Matrix& b,
                  Precision precision = Precision::Engine);  // [.., K, M] x [.., K, N]

// The precision that products of `a` have: that of the engine for Precision::Engine, and F32 where
// the dtype is not F32 or the device has no units for it.
Precision precision_of(const Matrix& a, Precision precision);

}  // namespace oa::matrix
