// PlateauScheduler: feeds a ReduceOnPlateau schedule and gives the optimizer its learning rate.
#pragma once

#include <functional>
#include <memory>

#include "oa/ml/optim/schedule.h"
#include "oa/ml/training/callback.h"
#include "oa/ml/training/metric.h"

namespace oa::ml::training {

// The schedule's state (rate, best value, number of bad reports) goes on when a training resumes.
// Register it after the Validation whose metric it takes and before callbacks that save.
class PlateauScheduler final : public TrainingCallback {
 public:
  using Monitor = std::function<f64(const TrainingSnapshot&)>;

  // Reports the mean loss of every epoch. InvalidArgument without a schedule.
  explicit PlateauScheduler(std::shared_ptr<ReduceOnPlateau> schedule);
  // Reports `monitor` at the end of every epoch; in a training without epochs every
  // `step_interval` steps (0: never).
  static PlateauScheduler with_monitor(std::shared_ptr<ReduceOnPlateau> schedule, std::string name,
                                       Monitor monitor, u64 step_interval = 0);
  // Reports each new value of the metric, once.
  static PlateauScheduler with_validation_metric(std::shared_ptr<ReduceOnPlateau> schedule,
                                                 const ValidationMetric& metric);

  const ReduceOnPlateau& schedule() const { return *schedule_; }

  TrainingControl on_train_begin(const TrainingCallbackContext& context) override;
  TrainingControl on_step_end(const TrainingCallbackContext& context) override;
  TrainingControl on_epoch_end(const TrainingCallbackContext& context) override;
  std::string state_key() const override { return "plateau." + name_; }
  std::string save_state() const override;
  void load_state(std::string_view state) override;

 private:
  PlateauScheduler(std::shared_ptr<ReduceOnPlateau> schedule, std::string name, Monitor monitor,
                   u64 step_interval, std::optional<ValidationMetric> metric);
  void report(const TrainingCallbackContext& context, f64 value);
  bool has_new_value();

  std::shared_ptr<ReduceOnPlateau> schedule_;
  std::string name_;
  Monitor monitor_;  // where there is no metric
  u64 step_interval_;
  std::optional<ValidationMetric> metric_;
  u64 seen_ = 0;  // the metric's revision that was reported last
};

}  // namespace oa::ml::training
