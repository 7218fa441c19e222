// Dynamic loss scaling, for gradients that pass through 16-bit halves (Precision::F16).
//
// Gradients of a loss times a large number do not vanish below the smallest half. The number halves
// (times `backoff`) after a step whose gradients were not finite, which changes nothing, and grows
// after `interval` steps in a row that were.
//
//   tape.backward(scale.scaled(loss));
//   scale.unscale(parameters);
//   const Matrix norm = clip_grad_norm(parameters, max_norm);
//   optimizer.step_if_finite(norm);
//   scale.update(norm);
//
// All of it happens on the device, without a word to the host, so a captured program may replay it.
#pragma once

#include <span>

#include "oa/ml/parameter.h"

namespace oa::ml {

struct LossScaleOptions {
  f64 initial = 65536;
  f64 growth = 2;       // greater than 1
  f64 backoff = 0.5;    // between 0 and 1
  i64 interval = 2000;  // steps, 1 or more
};

class LossScale {
 public:
  // InvalidArgument for options out of their range.
  explicit LossScale(const Engine& engine, const LossScaleOptions& options = {});

  Matrix scaled(const Matrix& loss) const;  // an F32 scalar
  // Divides the gradients that the parameters have, in place.
  void unscale(std::span<const Parameter> parameters) const;
  // Takes the gradients' norm (F32, one element) as clip_grad_norm gives it.
  void update(const Matrix& norm);

  // For checkpoints. Host boundary.
  struct State {
    f32 scale = 0;
    i32 good_steps = 0;  // in a row
    bool operator==(const State&) const = default;
  };
  State state() const;
  // InvalidArgument for a scale that is not finite and positive, or negative steps.
  void restore(const State& state);

 private:
  LossScaleOptions options_;
  Matrix scale_;       // F32 [1]
  Matrix good_steps_;  // I32 [1]
};

}  // namespace oa::ml
