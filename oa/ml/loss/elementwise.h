// Losses that compare a prediction with a target element by element. Both have the same shape and
// float dtype; the result is F32 (F64 for F64), [] or of their shape without a reduction. Targets
// have no gradient. Where there is nothing to average the result is 0.
#pragma once

#include "oa/matrix/matrix.h"
#include "oa/ml/loss/reduction.h"

namespace oa::ml::loss {

Matrix mse(const Matrix& prediction, const Matrix& target, Reduction reduction = Reduction::Mean);
// |p - t|, with gradient 0 where they are equal.
Matrix l1(const Matrix& prediction, const Matrix& target, Reduction reduction = Reduction::Mean);
// d^2 / 2 where |d| < 1, else |d| - 1/2.
Matrix smooth_l1(const Matrix& prediction, const Matrix& target,
                 Reduction reduction = Reduction::Mean);
// -(t log p + (1 - t) log(1 - p)) of probabilities, with p kept 1e-7 away from 0 and 1; the
// gradient is taken at the kept p and does not stop there.
Matrix bce(const Matrix& prediction, const Matrix& target, Reduction reduction = Reduction::Mean);
// The same of logits, exact for large ones.
Matrix bce_with_logits(const Matrix& logits, const Matrix& target,
                       Reduction reduction = Reduction::Mean);

}  // namespace oa::ml::loss
