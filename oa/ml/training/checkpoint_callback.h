// Checkpoint: saves a model during its training.
#pragma once

#include "oa/ml/checkpoint/checkpoint_manager.h"
#include "oa/ml/training/callback.h"
#include "oa/ml/training/metric.h"
#include "oa/ml/training/training_summary.h"

namespace oa::ml::training {

// With epochs: at the end of every epoch, by the validation metric or the epoch's mean loss.
// Without: when the validation metric got better, and at the end. Everywhere every set_save_every()
// steps; and whatever the last step was, it is saved when the training ends, also after a stop.
//
// Every file has the state of the training in its extra text, unless set_extra() says otherwise, so
// register this after the callbacks that have a state. A metric that is not finite saves nothing,
// which leaves the last good files. Saving counts neither for times nor for rates.
class Checkpoint final : public TrainingCallback {
 public:
  using Extra = std::function<std::string(const TrainingCallbackContext&)>;

  Checkpoint(CheckpointManager& manager, Module& model) : manager_(manager), model_(model) {}

  Checkpoint& set_save_every(u64 steps);  // 0: never; these files are about "loss"
  Checkpoint& set_validation_metric(const ValidationMetric& metric);
  // At the end the model and the optimizer get the best state back, unless the last is the best.
  Checkpoint& set_restore_best(bool on);           // default true
  Checkpoint& set_verbose(bool on);                // default true: a line per file
  Checkpoint& set_message_sink(MessageSink sink);  // default standard error
  Checkpoint& set_extra(Extra extra);

  u64 best_epoch() const { return best_epoch_; }  // 0: none yet, or no epochs
  u64 best_step() const { return best_step_; }

  TrainingControl on_step_end(const TrainingCallbackContext& context) override;
  TrainingControl on_epoch_end(const TrainingCallbackContext& context) override;
  TrainingControl on_train_end(const TrainingCallbackContext& context) override;
  std::string state_key() const override { return "checkpoint"; }
  std::string save_state() const override;
  void load_state(std::string_view state) override;

 private:
  f64 metric_of(const TrainingSnapshot& snapshot) const;
  void save(const TrainingCallbackContext& context, f64 metric, bool force);
  void save_interval(const TrainingCallbackContext& context);
  void finish(const TrainingCallbackContext& context, f64 begin, std::string_view what);

  CheckpointManager& manager_;
  Module& model_;
  u64 save_every_ = 0;
  std::optional<ValidationMetric> metric_;
  u64 seen_revision_ = 0;
  bool restore_best_ = true;
  bool verbose_ = true;
  MessageSink sink_ = message_to_stderr;
  Extra extra_;
  u64 best_epoch_ = 0, best_step_ = 0, saved_step_ = 0;
};

}  // namespace oa::ml::training
