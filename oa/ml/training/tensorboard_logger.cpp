#include "oa/ml/training/tensorboard_logger.h"

#include <chrono>

#include "oa/core/error.h"

namespace oa::ml::training {
namespace {

constexpr f64 kFlushSeconds = 1;

}  // namespace

f64 wall_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<f64>(now).count();
}

TensorBoardLogger::TensorBoardLogger(std::filesystem::path folder, Clock wall_clock)
    : folder_(std::move(folder)), wall_clock_(std::move(wall_clock)) {
  if (!wall_clock_) invalid("TensorBoardLogger", "wall_clock, got none, expected a function");
}

TensorBoardLogger& TensorBoardLogger::set_every(u64 steps) {
  if (steps == 0) invalid("set_every", "steps, got 0, expected 1 or more");
  every_ = steps;
  return *this;
}

TensorBoardLogger& TensorBoardLogger::add_scalar(std::string tag, Scalar value) {
  if (!value) invalid("add_scalar", "value of {}, got none, expected a function", tag);
  scalars_.emplace_back(std::move(tag), std::move(value));
  return *this;
}

TensorBoardLogger& TensorBoardLogger::add_metric(const ValidationMetric& metric) {
  metrics_.emplace_back(metric, metric.revision());
  return *this;
}

TrainingControl TensorBoardLogger::on_train_begin(const TrainingCallbackContext& context) {
  const f64 wall = wall_clock_();
  file_ = std::make_unique<EventFile>(folder_, wall);
  file_->add_start(context.snapshot().step_count + 1, wall);
  file_->flush();
  last_flush_ = context.now();
  return TrainingControl::Continue;
}

void TensorBoardLogger::write_metrics(const TrainingCallbackContext& context) {
  for (auto& [metric, written] : metrics_) {
    if (metric.revision() == written) continue;
    written = metric.revision();
    file_->add_scalar(metric.name(), context.snapshot().step_count,
                      static_cast<f32>(metric.result()), wall_clock_());
  }
}

TrainingControl TensorBoardLogger::on_step_end(const TrainingCallbackContext& context) {
  const TrainingSnapshot& s = context.snapshot();
  if (s.step_count % every_ == 0 || s.is_last_step) {
    const f64 wall = wall_clock_();
    const auto write = [&](std::string_view tag, f64 value) {
      file_->add_scalar(tag, s.step_count, static_cast<f32>(value), wall);
    };
    write("train/loss", *s.last_loss);
    write("train/samples_per_second", s.wall_samples_per_second);
    write("train/learning_rate", context.optimizer().learning_rate());
    for (const auto& [tag, value] : scalars_) write(tag, value(context));
  }
  write_metrics(context);
  const f64 now = context.now();
  if (now - last_flush_ >= kFlushSeconds) {
    file_->flush();
    last_flush_ = now;
  }
  return TrainingControl::Continue;
}

TrainingControl TensorBoardLogger::on_epoch_end(const TrainingCallbackContext& context) {
  write_metrics(context);
  file_->flush();
  return TrainingControl::Continue;
}

void TensorBoardLogger::before_save() {
  if (file_) file_->flush();
}

TrainingControl TensorBoardLogger::on_train_end(const TrainingCallbackContext& context) {
  return on_epoch_end(context);
}

}  // namespace oa::ml::training
