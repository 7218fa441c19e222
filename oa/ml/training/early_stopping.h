// EarlyStopping: ends a training whose monitored number does not improve any more.
#pragma once

#include <functional>

#include "oa/ml/training/callback.h"
#include "oa/ml/training/metric.h"

namespace oa::ml::training {

enum class EarlyStopMode : u8 { Min, Max };

// What a monitored NaN or infinity does. It never is an improvement.
enum class NonFiniteMonitor : u8 {
  CountAsBad,  // like a number that is no better
  Stop,        // ends the training at once
  Fail,        // raises CallbackFailure
};

// Looks at the end of every epoch; in a training without epochs every set_check_every() steps. The
// state (best value, number of bad checks) goes on when a training resumes. Register it after the
// Validation whose metric it monitors.
class EarlyStopping final : public TrainingCallback {
 public:
  using Monitor = std::function<f64(const TrainingSnapshot&)>;

  // Monitors the epoch's mean loss. An improvement is better than the best by more than `min_delta`
  // (finite, 0 or more); `patience` checks (1 or more) without one in a row end the training.
  explicit EarlyStopping(u64 patience = 5, f64 min_delta = 1e-4,
                         EarlyStopMode mode = EarlyStopMode::Min);
  static EarlyStopping with_monitor(u64 patience, f64 min_delta, EarlyStopMode mode,
                                    std::string name, Monitor monitor);
  static EarlyStopping with_validation_metric(u64 patience, f64 min_delta, EarlyStopMode mode,
                                              const ValidationMetric& metric);

  EarlyStopping& set_non_finite(NonFiniteMonitor action);
  EarlyStopping& set_check_every(u64 steps);  // 0: only at the ends of epochs

  bool should_stop() const { return should_stop_; }
  f64 best() const { return best_; }              // the worst infinity before the first check
  u64 best_check() const { return best_check_; }  // one-based: the epoch, or the step; 0: none
  u64 bad_epochs() const { return bad_; }
  const std::string& monitor_name() const { return name_; }

  TrainingControl on_step_end(const TrainingCallbackContext& context) override;
  TrainingControl on_epoch_end(const TrainingCallbackContext& context) override;
  std::string state_key() const override { return "early_stopping." + name_; }
  std::string save_state() const override;
  void load_state(std::string_view state) override;

 private:
  EarlyStopping(u64 patience, f64 min_delta, EarlyStopMode mode, std::string name, Monitor monitor);
  TrainingControl check(f64 value, u64 at);

  u64 patience_;
  f64 min_delta_;
  EarlyStopMode mode_;
  std::string name_;
  Monitor monitor_;
  NonFiniteMonitor non_finite_ = NonFiniteMonitor::CountAsBad;
  u64 check_every_ = 0;
  f64 best_;
  u64 best_check_ = 0;
  u64 bad_ = 0;
  bool should_stop_ = false;
};

}  // namespace oa::ml::training
