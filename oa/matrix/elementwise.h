// Elementwise arithmetic, comparisons and conversions. Operands broadcast and have equal dtypes.
#pragma once

#include "oa/matrix/matrix.h"

namespace oa::matrix {

// Arithmetic, on every dtype but Bool; integers wrap, floats follow IEEE.
Matrix add(const Matrix& a, const Matrix& b);
Matrix sub(const Matrix& a, const Matrix& b);
Matrix mul(const Matrix& a, const Matrix& b);
Matrix div(const Matrix& a,
           const Matrix& b);  // integers truncate; division by 0 gives an unspecified integer
Matrix maximum(const Matrix& a, const Matrix& b);  // NaN if either is NaN
Matrix minimum(const Matrix& a, const Matrix& b);

// With a number, which may change from call to call without compiling anything. Floats only.
Matrix scale(const Matrix& x, f64 s);
Matrix add_scalar(const Matrix& x, f64 s);
Matrix sub_scalar(const Matrix& x, f64 s);
Matrix div_scalar(const Matrix& x, f64 s);
Matrix clamp_min(const Matrix& x, f64 minimum);
Matrix clamp_max(const Matrix& x, f64 maximum);

// One operand. neg, abs, sign: signed numbers; the others floats.
Matrix neg(const Matrix& x);
Matrix abs(const Matrix& x);
Matrix sign(const Matrix& x);  // -1, 0 or 1; NaN stays
Matrix sqrt(const Matrix& x);
Matrix reciprocal(const Matrix& x);
Matrix square(const Matrix& x);
Matrix floor(const Matrix& x);
Matrix ceil(const Matrix& x);
Matrix round(const Matrix& x);  // to nearest, ties to even
Matrix copy(const Matrix& x);   // any dtype

// Comparisons give Bool. Floats: comparisons with NaN are false, not_equal is true.
Matrix equal(const Matrix& a, const Matrix& b);
Matrix not_equal(const Matrix& a, const Matrix& b);
Matrix less(const Matrix& a, const Matrix& b);
Matrix less_equal(const Matrix& a, const Matrix& b);
Matrix greater(const Matrix& a, const Matrix& b);
Matrix greater_equal(const Matrix& a, const Matrix& b);
Matrix equal(const Matrix& x, f64 value);  // F32 mask of 0 and 1; NaN never equal
Matrix is_nan(const Matrix& x);

Matrix logical_and(const Matrix& a, const Matrix& b);  // Bool
Matrix logical_or(const Matrix& a, const Matrix& b);
Matrix logical_xor(const Matrix& a, const Matrix& b);
Matrix logical_not(const Matrix& a);

// a where cond holds, else b. cond is Bool; what is not chosen has no influence.
Matrix where(const Matrix& cond, const Matrix& a, const Matrix& b);

// Conversion between dtypes: floats to integers truncate and saturate, NaN becomes 0; numbers to
// Bool are != 0.
Matrix cast(const Matrix& x, DType dtype);

}  // namespace oa::matrix

namespace oa {

inline Matrix operator+(const Matrix& a, const Matrix& b) { return matrix::add(a, b); }
inline Matrix operator-(const Matrix& a, const Matrix& b) { return matrix::sub(a, b); }
inline Matrix operator*(const Matrix& a, const Matrix& b) { return matrix::mul(a, b); }
inline Matrix operator/(const Matrix& a, const Matrix& b) { return matrix::div(a, b); }
inline Matrix operator-(const Matrix& a) { return matrix::neg(a); }
inline Matrix operator+(const Matrix& a, f64 s) { return matrix::add_scalar(a, s); }
inline Matrix operator-(const Matrix& a, f64 s) { return matrix::sub_scalar(a, s); }
inline Matrix operator*(const Matrix& a, f64 s) { return matrix::scale(a, s); }
inline Matrix operator/(const Matrix& a, f64 s) { return matrix::div_scalar(a, s); }
inline Matrix operator+(f64 s, const Matrix& a) { return matrix::add_scalar(a, s); }
inline Matrix operator*(f64 s, const Matrix& a) { return matrix::scale(a, s); }

}  // namespace oa
