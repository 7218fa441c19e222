// TensorBoardLogger: the numbers of a training for TensorBoard.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "oa/ml/training/callback.h"
#include "oa/ml/training/event_file.h"
#include "oa/ml/training/metric.h"

namespace oa::ml::training {

// Seconds since 1970.
f64 wall_seconds();

// Scalars "train/loss", "train/samples_per_second" and "train/learning_rate" of every step (or
// every few), those of validations when they are new, and others that are asked for. A training
// that goes on writes a new file in the same folder and marks the later steps of the old ones as
// outdated. Written out every second, at the ends of epochs and of the training.
//
// "train/learning_rate" is the rate that the step has used when this is registered before a
// LearningRateScheduler. Register it after Validations.
class TensorBoardLogger final : public TrainingCallback {
 public:
  using Scalar = std::function<f64(const TrainingCallbackContext&)>;

  // `wall_clock`: another one for tests.
  explicit TensorBoardLogger(std::filesystem::path folder, Clock wall_clock = wall_seconds);

  TensorBoardLogger& set_every(u64 steps);  // default 1
  TensorBoardLogger& add_scalar(std::string tag, Scalar value);
  TensorBoardLogger& add_metric(const ValidationMetric& metric);  // under its name

  // Of the file in use; empty before the training.
  std::filesystem::path path() const { return file_ ? file_->path() : std::filesystem::path(); }

  TrainingControl on_train_begin(const TrainingCallbackContext& context) override;
  TrainingControl on_step_end(const TrainingCallbackContext& context) override;
  TrainingControl on_epoch_end(const TrainingCallbackContext& context) override;
  TrainingControl on_train_end(const TrainingCallbackContext& context) override;
  void before_save() override;

 private:
  void write_metrics(const TrainingCallbackContext& context);

  std::filesystem::path folder_;
  Clock wall_clock_;
  u64 every_ = 1;
  std::vector<std::pair<std::string, Scalar>> scalars_;
  std::vector<std::pair<ValidationMetric, u64>> metrics_;  // and the revision that is written
  std::unique_ptr<EventFile> file_;
  f64 last_flush_ = 0;
};

}  // namespace oa::ml::training
