// Validation: measures a model on other data now and then.
#pragma once

#include <functional>

#include "oa/ml/training/callback.h"
#include "oa/ml/training/metric.h"

namespace oa::ml::training {

// With epochs: at the end of every epoch. Without: every `step_interval` steps (0: never), and at
// the end of the training unless its last step has been measured. The time it takes counts neither
// for times nor for rates. Register it before callbacks that use its metric.
class Validation final : public TrainingCallback {
 public:
  using Evaluate = std::function<ValidationResult(const TrainingSnapshot&)>;

  explicit Validation(Evaluate evaluate, std::string metric_name = "val_loss",
                      u64 step_interval = 0);

  // Changes only when a result is finite and of one batch or more.
  const ValidationMetric& metric() const { return metric_; }
  const std::optional<ValidationResult>& last_result() const { return last_result_; }
  f64 last_duration() const { return last_duration_; }  // seconds

  TrainingControl on_step_end(const TrainingCallbackContext& context) override;
  TrainingControl on_epoch_end(const TrainingCallbackContext& context) override;
  TrainingControl on_train_end(const TrainingCallbackContext& context) override;
  std::string state_key() const override { return "validation." + metric_.name(); }
  std::string save_state() const override;
  void load_state(std::string_view state) override;

 private:
  void measure(const TrainingCallbackContext& context);

  Evaluate evaluate_;
  ValidationMetric metric_;
  u64 step_interval_;
  u64 measured_step_ = 0;
  std::optional<ValidationResult> last_result_;
  f64 last_duration_ = 0;
};

}  // namespace oa::ml::training
