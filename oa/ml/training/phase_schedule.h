// PhaseSchedule: a training in phases, each of some epochs, with a hook where one begins.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "oa/ml/training/callback.h"

namespace oa::ml::training {

struct TrainingPhase {
  std::string id;
  u64 epochs = 0;
  u64 steps = 0;  // of the whole phase
};

// What a hook may do with the optimizer.
class PhaseOptimizer {
 public:
  explicit PhaseOptimizer(Optimizer& optimizer) : optimizer_(optimizer) {}
  f64 learning_rate() const { return optimizer_.learning_rate(); }
  void set_learning_rate(f64 rate) const { optimizer_.set_learning_rate(rate); }
  u64 step_count() const { return optimizer_.step_count(); }

 private:
  Optimizer& optimizer_;
};

// Drives nothing itself: the training's epochs and steps must be the sums over the phases, and its
// epochs must end where phases do (FailedPrecondition when it begins).
class PhaseSchedule final : public TrainingCallback {
 public:
  using Hook = std::function<void(u64 index, const TrainingPhase&, const PhaseOptimizer&)>;

  // InvalidArgument: no epochs, or fewer steps than epochs.
  PhaseSchedule& add_phase(std::string id, u64 epochs, u64 steps);
  // Called before the first step of a phase, and of a training that goes on inside of one.
  PhaseSchedule& set_on_phase_begin(Hook hook);

  const std::vector<TrainingPhase>& phases() const { return phases_; }
  const TrainingPhase* current_phase() const;  // null before the training
  u64 total_epochs() const;
  u64 total_steps() const;
  // Lengths of all epochs for ItTrainingConfig: the steps of a phase shared evenly, longer epochs
  // first.
  std::vector<u64> epoch_steps() const;

  TrainingControl on_train_begin(const TrainingCallbackContext& context) override;
  TrainingControl on_epoch_begin(const TrainingCallbackContext& context) override;

 private:
  std::vector<TrainingPhase> phases_;
  Hook hook_;
  size_t current_ = static_cast<size_t>(-1);
};

}  // namespace oa::ml::training
