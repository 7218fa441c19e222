// Cross entropy of logits with classes or with distributions, along the last axis.
#pragma once

#include <optional>

#include "oa/matrix/matrix.h"
#include "oa/ml/loss/reduction.h"

namespace oa::ml::loss {

struct CrossEntropyOptions {
  Reduction reduction = Reduction::Mean;
  // Rows with this target count for nothing, neither in the sum nor in what it is divided by. It
  // skips rows, not classes. A target that is neither this nor a class is an error.
  std::optional<i64> ignore_index;
  // [C], of the logits' dtype: the weight of a class; Mean divides by the sum of the targets'
  // weights. No gradient.
  Matrix class_weights;
  // In [0, 1]: the share of a target that is spread evenly over all classes.
  f64 label_smoothing = 0;
};

// logits [..., C] of a float dtype, and either
// - targets [...] of I32, U32 or U8: classes 0 .. C - 1;
// - targets [..., C] of the logits' dtype: distributions (ignore_index does not apply, Mean divides
//   by the number of rows, and they have a gradient).
// The result is F32 (F64 for F64 logits), [] or [...] without a reduction. Where there is nothing
// to average it is 0, with a gradient of 0. A bad class is an error (OutOfRange) with row and value
// at the next synchronisation, and a row of NaN where the check is off.
Matrix cross_entropy(const Matrix& logits, const Matrix& targets,
                     const CrossEntropyOptions& options = {});

// logits [N, C], targets [N], mask [N] of F32: the sum over the rows with mask != 0, divided by
// valid_count (1 .. N; it is not compared with the mask). The targets of other rows are not looked
// at.
Matrix cross_entropy_masked(const Matrix& logits, const Matrix& targets, const Matrix& mask,
                            u32 valid_count);

}  // namespace oa::ml::loss
