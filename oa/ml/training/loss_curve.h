// LossCurve: a picture of how the loss went, kept up to date while a training runs.
#pragma once

#include <filesystem>

#include "oa/ml/training/callback.h"
#include "oa/ml/training/chart.h"
#include "oa/ml/training/metric.h"

namespace oa::ml::training {

// Numbers over steps in bounded memory: when there are too many points, neighbours become their
// mean.
class Curve {
 public:
  void add(u64 step, f64 value);
  std::vector<ChartPoint> points() const;

 private:
  friend class LossCurve;
  static constexpr size_t kMaxPoints = 1000;
  struct Bucket {
    f64 steps = 0, values = 0;  // sums
    u64 count = 0;
  };
  u64 per_bucket_ = 1;
  std::vector<Bucket> buckets_;
};

// Writes `stem`.svg and `stem`.png at the ends of epochs and of the training, and at most every
// `interval` seconds in between. The training's losses are a line, those of validations have dots.
// A training that goes on continues the lines. Register it after Validations. Errors: Io.
class LossCurve final : public TrainingCallback {
 public:
  explicit LossCurve(std::filesystem::path stem, f64 interval = 10);
  LossCurve& add_metric(const ValidationMetric& metric);
  LossCurve& set_title(std::string title);

  Chart chart() const;

  TrainingControl on_train_begin(const TrainingCallbackContext& context) override;
  TrainingControl on_step_end(const TrainingCallbackContext& context) override;
  TrainingControl on_epoch_end(const TrainingCallbackContext& context) override;
  TrainingControl on_train_end(const TrainingCallbackContext& context) override;
  std::string state_key() const override { return "loss_curve"; }
  std::string save_state() const override;
  void load_state(std::string_view state) override;

 private:
  struct Validated {
    ValidationMetric metric;
    u64 seen;  // revision
    Curve curve;
  };
  void take_metrics(u64 step);
  void write(const TrainingCallbackContext& context);

  std::filesystem::path stem_;
  f64 interval_;
  std::string title_ = "loss";
  Curve train_;
  std::vector<Validated> validated_;
  f64 last_write_ = 0;
};

}  // namespace oa::ml::training
