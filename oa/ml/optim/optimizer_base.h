// What the optimizers with parameters share: groups, the learning rate and the count of steps in
// device memory, and the checks at construction. Start reading at run().
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "oa/graph/op.h"
#include "oa/ml/optim/optimizer.h"

namespace oa {
class EngineCore;
}

namespace oa::ml {

// Parameters with settings of their own.
struct ParameterGroup {
  std::vector<Parameter> parameters;
  f64 rate_scale = 1;               // multiplies the learning rate; finite, 0 or more
  std::optional<f64> weight_decay;  // empty: the optimizer's
};

class OptimizerBase : public CheckpointOptimizer {
 public:
  void zero_grad() override;
  u64 step_form() const override;
  Matrix step_counter() const override { return step_; }
  std::string without_gradient() const override;
  std::string showing_average() const override;
  void step() override { run(nullptr); }
  void step_if_finite(const Matrix& value) override { run(&value); }
  f64 learning_rate() const override { return rate_value_; }
  void set_learning_rate(f64 rate) override;
  void follow_schedule(const LrSchedulerRef& schedule, u64 next_step) override;
  u64 step_count() const override { return step_count_; }
  void count_replays(u64 replays) override;
  bool belongs_to(const Engine& engine) const override;

  // Of all groups, one after the other; the order of a checkpoint's moments.
  const std::vector<Parameter>& parameters() const override { return parameters_; }
  f64 weight_decay() const { return weight_decay_; }

  OptimizerState checkpoint_state() const override;
  void validate_checkpoint_state(const OptimizerState& state) const override;
  void restore_checkpoint_state(const OptimizerState& state) override;

 protected:
  // InvalidArgument, with `kind` in front: no parameters, one of them empty, twice, not F32 or of
  // another engine; rate, scales or decay negative or not finite.
  OptimizerBase(std::string_view kind, std::vector<ParameterGroup> groups, f64 rate,
                f64 weight_decay);

  // Records the updates of the parameters `live`, which have gradients. `guard` is F32 [1].
  virtual void update(std::span<const u32> live, const Matrix& guard) = 0;
  // The numbers of the kind as a checkpoint has them, without rate, step and moments.
  virtual OptimizerState hyperparameters() const = 0;
  virtual void check_hyperparameters(const OptimizerState& state) const = 0;
  virtual void set_hyperparameters(const OptimizerState& state) = 0;

  // Keeps a zero for every element of the parameters, in their shapes.
  std::vector<Matrix> make_moments() const;
  void hold_moments(std::vector<Matrix>* first, std::vector<Matrix>* second);

  // One op on values of this engine, whose attributes are made once for many calls.
  Matrix record(const graph::OpDef& op, const graph::AttrsPtr& attrs,
                std::initializer_list<Matrix> operands) const;
  Matrix gradient(u32 parameter) const { return *parameters_[parameter].gradient(); }

  struct Group {
    f64 rate_scale = 1;
    std::optional<f64> weight_decay;
  };
  f64 decay_of(const Group& group) const { return group.weight_decay.value_or(weight_decay_); }
  void set_weight_decay(f64 decay) { weight_decay_ = decay; }

  std::string_view kind_;
  std::vector<Parameter> parameters_;
  std::vector<Group> groups_;
  std::vector<u32> group_of_;  // per parameter
  Matrix rates_;               // F32 [kRates], that of turn t at t modulo kRates
  Matrix step_;                // U32 [2]: completed steps, up to the largest value; turns

 private:
  void run(const Matrix* guard);
  void check_gradients() const;
  EngineCore& core() const;
  i64 element_count() const;
  u32 device_step() const;

  static constexpr u64 kRates = 256;  // a power of two
  void write_rates(const std::vector<f32>& rates);
  void lay_down_rates();
  void take_turns(u64 count);
  f64 planned_rate(u64 turn) const;

  f64 rate_value_;
  f64 weight_decay_;
  u64 step_count_ = 0;
  u64 turns_ = 0;     // steps and replays since the device's turn was 0
  u64 revision_ = 0;  // of the hyperparameters
  // The schedule that rates_ is filled from; empty: all of it is rate_value_.
  LrSchedulerRef schedule_;
  u64 schedule_step_ = 0;  // of the schedule, in turn schedule_turn_
  u64 schedule_turn_ = 0;
  u64 laid_down_ = 0;  // turns before this one have their rates
  Matrix always_;      // F32 [1], finite: the guard of an unguarded step
  std::vector<std::vector<Matrix>*> moments_;
};

// --- Checks that the kinds share; `what` names the number in the message ---

void need_rate(std::string_view op, std::string_view what, f64 x);      // finite in F32, 0 or more
void need_fraction(std::string_view op, std::string_view what, f64 x);  // 0 <= x < 1, in F32 too
void need_positive(std::string_view op, std::string_view what, f64 x);  // a normal F32 number

// `stored` as a checkpoint keeps it (F32), unless that is just `own` rounded.
inline f64 restored(f32 stored, f64 own) {
  return static_cast<f32>(own) == stored ? own : static_cast<f64>(stored);
}

// One group with everything as the optimizer has it.
inline std::vector<ParameterGroup> one_group(std::vector<Parameter> parameters) {
  std::vector<ParameterGroup> groups(1);
  groups[0].parameters = std::move(parameters);
  return groups;
}

}  // namespace oa::ml
