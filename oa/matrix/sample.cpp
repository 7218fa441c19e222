// Sampling by inversion: the first class whose running sum of weights passes u times the total.
#include <algorithm>
#include <cmath>

#include "oa/matrix/create.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/index.h"
#include "oa/matrix/movement.h"
#include "oa/matrix/random.h"
#include "oa/matrix/reduce.h"
#include "oa/matrix/scan.h"
#include "oa/matrix/sort.h"
#include "oa/matrix/transcendental.h"

namespace oa::matrix {
namespace {

constexpr std::string_view kOp = "sample_logits";

Matrix any(const Matrix& mask) {  // of each row
  const Matrix n = sum(mask, -1);
  return not_equal(n, full_like(n, 0));
}
Matrix first(const Matrix& mask) { return argmax(cast(mask, DType::I32), -1); }
Matrix last(const Matrix& mask) {
  const Matrix from_end = argmax(flip(cast(mask, DType::I32), -1), -1);
  return full_like(from_end, static_cast<f64>(mask.shape().back() - 1)) - from_end;
}

// Rows of logits, checked.
Matrix rows_of(const Matrix& logits, const SampleOptions& o) {
  if (!logits.valid()) invalid(kOp, "operand 0 is empty, expected a value");
  if (!is_float(logits.dtype()) || logits.rank() < 1 || logits.rank() > 2 ||
      logits.shape().back() == 0) {
    invalid(kOp, "bad logits, got {} {}, expected a float [V] or [R, V] with V of 1 or more",
            token(logits.dtype()), logits.shape());
  }
  if (std::isnan(o.temperature)) invalid(kOp, "bad temperature, got nan, expected a number");
  if (o.top_k < 0) invalid(kOp, "bad top_k, got {}, expected 0 or more", o.top_k);
  if (std::isnan(o.top_p)) invalid(kOp, "bad top_p, got nan, expected a number");
  const Matrix rows = logits.rank() == 1 ? logits.unsqueeze(0) : logits;
  return cast(rows, DType::F32);
}

}  // namespace

Matrix sample_logits_at(const Matrix& logits, const Matrix& u, const SampleOptions& o) {
  const Matrix x = rows_of(logits, o);
  const i64 rows = x.shape()[0], classes = x.shape()[1];
  if (!u.valid() || u.dtype() != DType::F32 || u.shape() != Shape{rows}) {
    invalid(kOp, "the random numbers do not fit, expected f32 {}", Shape{rows});
  }
  if (o.temperature <= 0) return argmax(x, -1);

  const f64 top_p = std::clamp(o.top_p, 1e-7, 1.0);
  const bool cut = o.top_k > 0 && o.top_k < classes;
  const bool sorted = cut || top_p < 1;
  TopKResult candidates{x, {}};
  if (sorted) candidates = top_k(x, cut ? o.top_k : classes);
  const Matrix& v = candidates.values;

  // The maximum counts 1 by comparison: it may be infinite, and so may 1 / temperature.
  const Matrix peak = max(v, -1, true);
  const Matrix weight = where(equal(v, peak), full_like(v, 1), exp((v - peak) / o.temperature));
  const Matrix running = cumsum(weight, -1);
  Matrix possible = greater(weight, full_like(weight, 0));
  if (top_p < 1) {
    const Matrix whole = max(running, -1, true);
    const Matrix before = cumsum(weight, -1, {.exclusive = true});
    possible = logical_and(possible, less(before, whole * top_p));
  }
  const Matrix total = max(where(possible, running, full_like(running, 0)), -1, true);
  const Matrix passed = logical_and(possible, greater(running, total * u.unsqueeze(1)));
  // Rounding in the running sum may leave nothing; a row with NaN has nothing possible.
  const Matrix choice =
      where(any(passed), first(passed), where(any(possible), last(possible), argmax(v, -1)));
  if (!sorted) return choice;
  return gather_last_dim(candidates.indices, choice.unsqueeze(1)).squeeze(1);
}

Matrix sample_logits(const Matrix& logits, const SampleOptions& o, const RandomSource& source) {
  const Matrix x = rows_of(logits, o);
  if (o.temperature <= 0) return argmax(x, -1);
  const Matrix row = slice(x, 1, 0, 1).squeeze(1);  // only its shape is used
  return sample_logits_at(x, philox_uniform(row, 0, 1, source), o);
}

}  // namespace oa::matrix
