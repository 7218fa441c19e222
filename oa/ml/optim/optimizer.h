// What all optimizers share: the parameters, the learning rate in device memory, the count of
// steps.
//
// step() records the update of every parameter that has a gradient; it submits nothing. Numbers
// that change from step to step (learning rate, step) live in device memory and are moved on by
// recorded work, so that a captured program may replay a step.
#pragma once

#include <string>
#include <vector>

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
  virtual void step() = 0;
  virtual f64 learning_rate() const = 0;
  virtual void set_learning_rate(f64 rate) = 0;  // finite, 0 or more; else InvalidArgument
  virtual u64 step_count() const = 0;            // completed steps
  virtual bool belongs_to(const Engine& engine) const = 0;
};

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
