// TrainingCallback: what a training calls at its boundaries.
#pragma once

#include <string>
#include <string_view>

#include "oa/ml/optim/optimizer.h"
#include "oa/ml/training/config.h"
#include "oa/ml/training/snapshot.h"

namespace oa::ml::training {

class ItTraining;

enum class TrainingControl : u8 { Continue, Stop };

// What a callback sees; valid during the call.
class TrainingCallbackContext {
 public:
  const TrainingSnapshot& snapshot() const { return snapshot_; }
  const ItTrainingConfig& config() const;
  Optimizer& optimizer() const;
  // FailedPrecondition when the training was made by create_eager.
  CheckpointOptimizer& checkpoint_optimizer() const;
  // Takes `seconds` (finite, 0 or more) out of the training's times and rates.
  void exclude_wall_time(f64 seconds) const;
  f64 now() const { return config().clock(); }
  // The state of the whole training at this moment; see ItTraining::save_state.
  std::string training_state() const;

 private:
  friend class ItTraining;
  TrainingCallbackContext(ItTraining& training, const TrainingSnapshot& snapshot)
      : training_(training), snapshot_(snapshot) {}
  ItTraining& training_;
  const TrainingSnapshot& snapshot_;
};

// Hooks that do nothing unless they are overridden. All callbacks of a boundary run even after one
// answered Stop; an error ends the training at once.
class TrainingCallback {
 public:
  virtual ~TrainingCallback() = default;
  virtual TrainingControl on_train_begin(const TrainingCallbackContext& /*context*/) {
    return TrainingControl::Continue;
  }
  virtual TrainingControl on_epoch_begin(const TrainingCallbackContext& /*context*/) {
    return TrainingControl::Continue;
  }
  virtual TrainingControl on_step_end(const TrainingCallbackContext& /*context*/) {
    return TrainingControl::Continue;
  }
  virtual TrainingControl on_epoch_end(const TrainingCallbackContext& /*context*/) {
    return TrainingControl::Continue;
  }
  virtual TrainingControl on_train_end(const TrainingCallbackContext& /*context*/) {
    return TrainingControl::Continue;
  }

  // The training's state is about to be saved: what was reported so far should not get lost any
  // more, else a training that goes on from there has a gap.
  virtual void before_save() {}
  // The name of this callback's state within a training's; empty: it has none.
  virtual std::string state_key() const { return {}; }
  // What a resumed training must know again, as JSON text.
  virtual std::string save_state() const { return "{}"; }
  // Takes over such a text before the training begins. DataLoss when it is none of this callback's;
  // then nothing has changed.
  virtual void load_state(std::string_view /*state*/) {}
};

}  // namespace oa::ml::training
