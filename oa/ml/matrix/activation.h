// Activations. Elementwise on floats, of any shape; the dtype stays and the math runs in F32 at
// least. NaN stays NaN, and neither infinity gives NaN, in values or gradients, unless said.
#pragma once

#include "oa/matrix/matrix.h"

namespace oa::ml::matrix {

Matrix relu(const Matrix& x);                   // max(x, 0); gradient 0 at 0
Matrix leaky_relu(const Matrix& x, f64 alpha);  // x > 0 ? x : alpha x
Matrix elu(const Matrix& x, f64 alpha);         // x > 0 ? x : alpha (e^x - 1)
Matrix gelu(const Matrix& x);                   // x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
Matrix gelu_erf(const Matrix& x);               // x/2 (1 + erf(x / sqrt(2)))
Matrix silu(const Matrix& x);                   // x / (1 + e^-x)
Matrix mish(const Matrix& x);                   // x tanh(log(1 + e^x))
Matrix swiglu(const Matrix& gate, const Matrix& up);  // silu(gate) up, of equal shapes
// [..., 2 I] -> [..., I]: silu of the first half of the last axis times the second.
Matrix silu_mul(const Matrix& x, i64 intermediate_size);

}  // namespace oa::ml::matrix
