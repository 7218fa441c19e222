// TrainingSummary: what a training came to, as a few lines at its end.
#pragma once

#include <functional>

#include "oa/ml/training/callback.h"
#include "oa/ml/training/metric.h"

namespace oa::ml::training {

// Takes one message, of one or more lines, without the last line end.
using MessageSink = std::function<void(const std::string&)>;
// Writes messages to standard error.
void message_to_stderr(const std::string& message);

class TrainingSummary final : public TrainingCallback {
 public:
  explicit TrainingSummary(bool track_initial_loss = true, MessageSink sink = message_to_stderr);
  TrainingSummary& set_validation_metric(const ValidationMetric& metric);

  const std::optional<f64>& initial_loss() const { return initial_loss_; }
  // How much of the wall time the device was idle, in percent; nothing without device times.
  static std::optional<f64> wall_gpu_gap_percent(const TrainingSnapshot& snapshot);
  std::string render_report(const TrainingSnapshot& snapshot, const ItTrainingConfig& config) const;

  TrainingControl on_step_end(const TrainingCallbackContext& context) override;
  TrainingControl on_train_end(const TrainingCallbackContext& context) override;
  std::string state_key() const override { return "summary"; }
  std::string save_state() const override;
  void load_state(std::string_view state) override;

 private:
  bool track_initial_loss_;
  MessageSink sink_;
  std::optional<ValidationMetric> metric_;
  std::optional<f64> initial_loss_;
};

}  // namespace oa::ml::training
