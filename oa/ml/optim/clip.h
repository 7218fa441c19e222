// Clipping of gradients by their joint norm, and accumulation over micro-batches.
#pragma once

#include <span>

#include "oa/ml/parameter.h"

namespace oa::ml {

// Scales the gradients in place by max_norm / norm where their joint Euclidean norm is greater than
// max_norm (no epsilon), and returns the norm before that (F32 []). Any number of F32 values of one
// engine; a few dispatches, nothing is read by the host. The norm is computed without overflow. A
// norm that is NaN or infinite changes nothing: read the result, or hand it to
// Optimizer::step_if_finite. InvalidArgument: no gradients, max_norm negative or not finite, not
// F32, engines differ, the same storage twice.
Matrix clip_grad_norm(std::span<const Matrix> gradients, f64 max_norm);
// The same for the gradients that the parameters have, which may share elements; they get new ones.
Matrix clip_grad_norm(std::span<const Parameter> parameters, f64 max_norm);

// Gradients summed over several micro-batches count as the gradient of their mean:
//
//   for (...) { tape.backward(batches.scale(loss)); if (batches.complete()) { step; zero_grad; } }
class GradientAccumulation {
 public:
  explicit GradientAccumulation(u32 micro_batches);  // 1 or more; else InvalidArgument
  u32 micro_batches() const { return micro_batches_; }
  Matrix scale(const Matrix& loss) const;  // loss / micro_batches
  // Counts a micro-batch; true after the last one of a step.
  bool complete();
  u32 pending() const { return pending_; }  // micro-batches since the last step

 private:
  u32 micro_batches_;
  u32 pending_ = 0;
};

}  // namespace oa::ml
