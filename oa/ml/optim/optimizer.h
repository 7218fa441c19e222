// What all optimizers share: the parameters, the learning rate in device memory, the count of
// steps.
//
// step() records the update of every parameter that has a gradient; it submits nothing. Numbers
// that change from step to step (the count of steps, the rates of the coming ones) live in device
// memory, and recorded work moves from one to the next, so that a captured program may replay a
// step.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "oa/core/error.h"
#include "oa/ml/optim/schedule.h"
#include "oa/ml/parameter.h"

namespace oa::ml {

// What a checkpoint keeps of an optimizer.
struct OptimizerState {
  std::string kind;  // "SGD", "Adam", "AdamW", "Muon"
  f32 learning_rate = 0;
  f32 beta1 = 0;  // SGD: momentum
  f32 beta2 = 0;
  f32 epsilon = 0;
  f32 weight_decay = 0;
  i64 step = 0;
  // Moments of all parameters one after the other, in the optimizer's order; empty where the kind
  // has none or no step was made.
  std::vector<f32> first_moment, second_moment;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  virtual void zero_grad() = 0;  // drops every gradient
  // Records the update of every parameter that has a gradient.
  virtual void step() = 0;
  // The same, but where `value` (F32, one element, such as the norm that clip_grad_norm returns) is
  // NaN or infinite the device changes nothing: no parameter, no moment, not its count of steps.
  virtual void step_if_finite(const Matrix& value) = 0;
  // As it was set, or with a schedule that of the latest step.
  virtual f64 learning_rate() const = 0;
  // Finite, 0 or more; else InvalidArgument. In the order of recorded work: steps recorded before
  // keep the old rate, submissions of a captured step that follow have the new one. Ends a schedule
  // unless it says the same. FailedPrecondition during a capture.
  virtual void set_learning_rate(f64 rate) = 0;
  // The next step has the rate schedule.rate(next_step), the one after it the next, and so on,
  // replays too: the rates are laid down in device memory ahead of time. A schedule whose rates are
  // not known ahead gives only the first one.
  virtual void follow_schedule(const LrSchedulerRef& schedule, u64 next_step);
  // Steps recorded outside of captures, and replays that were counted. A step that the device
  // skipped counts here, but not in a checkpoint's state.
  virtual u64 step_count() const = 0;
  // Told by who submits a captured step, after or right before each replay.
  virtual void count_replays(u64 replays) = 0;
  virtual bool belongs_to(const Engine& engine) const = 0;

  // For programs that replay a step: another number where a step recorded now would differ from one
  // recorded before in what is no runtime value (betas, decays, which parameters are trained).
  virtual u64 step_form() const { return 0; }
  // U32, what every step moves on in place; empty if there is no such thing.
  virtual Matrix step_counter() const { return {}; }
  // Names, among the parameters, one without a gradient that should have one; empty: there is none.
  virtual std::string without_gradient() const { return {}; }
  // Names, among the parameters, one that shows an average; empty: there is none.
  virtual std::string showing_average() const { return {}; }
  std::weak_ptr<const void> life() const { return life_; }  // ends with the optimizer

 private:
  std::shared_ptr<const void> life_ = std::make_shared<char>();
};

inline void Optimizer::follow_schedule(const LrSchedulerRef& schedule, u64 next_step) {
  if (!schedule) invalid("follow_schedule", "the schedule is empty, expected one");
  set_learning_rate(schedule->rate(next_step));
}

// An optimizer whose state a checkpoint can hold. The hooks are the library's own.
class CheckpointOptimizer : public Optimizer {
 public:
  virtual const std::vector<Parameter>& parameters() const = 0;
  virtual OptimizerState checkpoint_state() const = 0;  // host boundary
  // Throws what is wrong with a state, without changing anything.
  virtual void validate_checkpoint_state(const OptimizerState& state) const = 0;
  virtual void restore_checkpoint_state(const OptimizerState& state) = 0;
};

}  // namespace oa::ml
