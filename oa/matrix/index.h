// Reading and writing at computed positions, and what is built from it.
//
// Indices are I32, U32 or U8 of any shape. One that is out of range (negative ones included) never
// leaves the table: the op says what it yields instead, and the next synchronisation raises
// OutOfRange with the op, the row and the value.
#pragma once

#include "oa/matrix/matrix.h"

namespace oa::matrix {

// Rows of a table: table [R, W...], indices [I...] -> [I..., W...]. Out of range: a row of NaN, or
// of 0 where the dtype has no NaN. The row of the error is the flat position in `indices`.
Matrix gather(const Matrix& table, const Matrix& indices);
// The same along any axis: the axis is replaced by the shape of `indices`.
Matrix index_select(const Matrix& x, const Matrix& indices, i64 axis);
// x [..., C], indices [..., K] -> [..., K]: element indices[..., k] of each row of x. Out of range:
// 0. The row of the error is the flat row of x.
Matrix gather_last_dim(const Matrix& x, const Matrix& indices);

// indices [I...], updates [I..., W...] -> [rows, W...]: row r is the sum of the updates whose index
// is r, added in the order of their positions, so the result is the same in every run. Out of
// range: adds nothing. Floats of 16 bits accumulate in 32; integers wrap.
Matrix scatter_add_rows(i64 rows, const Matrix& indices, const Matrix& updates);
// indices [..., K], updates [..., K] -> [..., extent]: element c of a row is the sum of the row's
// updates whose index is c. Out of range: adds nothing; not reported.
Matrix scatter_add_last_dim(i64 extent, const Matrix& indices, const Matrix& updates);

// [I...] -> [I..., classes]: 1 at the index, 0 elsewhere; out of range: zeros, not reported.
Matrix one_hot(const Matrix& indices, i64 classes, DType dtype = DType::F32);

// logits [..., C] of rank 2 or more, labels [...] -> U32 [1]: rows whose first maximum is at the
// label. A label out of range matches nothing.
Matrix categorical_accuracy_count(const Matrix& logits, const Matrix& labels);
// The same over rows where `mask` [...] (F32) is not 0.
Matrix masked_categorical_accuracy_count(const Matrix& logits, const Matrix& labels,
                                         const Matrix& mask);

}  // namespace oa::matrix
