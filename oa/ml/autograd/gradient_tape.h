// GradientTape: notes what is computed from parameters, and walks it backwards.
//
//   GradientTape tape;
//   const Matrix loss = cross_entropy(model.forward(x), y);
//   tape.backward(loss);            // every parameter's gradient() is there
//
// Gradients are ordinary operations of the pending graph: they fuse, cache and replay like all
// others. Nothing is submitted here.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "oa/matrix/matrix.h"

namespace oa::ml {

class GradientTape {
 public:
  // Becomes the innermost tape of this thread: operations on the thread are noted here until
  // close(). An operation that would cut the way back to a parameter, because it has no gradient,
  // is refused when it is recorded (FailedPrecondition).
  GradientTape();
  ~GradientTape();  // stops without recording anything
  GradientTape(const GradientTape&) = delete;
  GradientTape& operator=(const GradientTape&) = delete;

  // Treats a float value like a parameter: gradient() has its gradient after backward().
  void watch(const Matrix& x);
  // Stops noting; backward() is still possible.
  void close();

  // Closes, and adds d root / d parameter to the gradient of every parameter that root depends on.
  // `root` has one float element. FailedPrecondition, before anything changes: second use, another
  // tape still active on this thread, a value that the way back needs was replaced since, root was
  // not noted here.
  void backward(const Matrix& root);

  // Of a watched value after backward(); empty if root does not depend on it.
  std::optional<Matrix> gradient(const Matrix& watched) const;

 private:
  friend class TapeCalls;
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// While one lives, no tape of this thread notes anything.
class NoGrad {
 public:
  NoGrad();
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  void* outer_;
};

// The same elements with no way back to what they were computed from.
Matrix detach(const Matrix& x);

// Runs `fn` without keeping what it computes inside: the backward pass runs it a second time. Less
// memory for more work. `fn` must do the same both times; dropout draws the same mask.
std::vector<Matrix> recompute(
    const std::function<std::vector<Matrix>(const std::vector<Matrix>&)>& fn,
    const std::vector<Matrix>& inputs);

// An operation with a gradient of the caller's own. `forward` runs unnoted; `backward` gets the
// gradients of the results (empty where nothing depends on one) and returns one per input (empty
// for none).
std::vector<Matrix> with_gradient(
    const std::vector<Matrix>& inputs,
    const std::function<std::vector<Matrix>(const std::vector<Matrix>&)>& forward,
    const std::function<std::vector<Matrix>(const std::vector<Matrix>&)>& backward);

// The value of a step counter for one random draw (U32 [1] or [2]); moves the counter on. Inside
// recompute() the second run gets the values of the first.
Matrix draw_step(const Matrix& counter);

}  // namespace oa::ml
