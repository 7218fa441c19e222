#include "oa/ml/training/early_stopping.h"

#include <utility>

#include "oa/ml/training/state_text.h"

namespace oa::ml::training {
namespace {

constexpr std::string_view kOp = "EarlyStopping";

}  // namespace

EarlyStopping::EarlyStopping(u64 patience, f64 min_delta, EarlyStopMode mode)
    : EarlyStopping(patience, min_delta, mode, "loss",
                    [](const TrainingSnapshot& s) { return s.epoch_mean_loss; }) {}

EarlyStopping::EarlyStopping(u64 patience, f64 min_delta, EarlyStopMode mode, std::string name,
                             Monitor monitor)
    : patience_(patience),
      min_delta_(min_delta),
      mode_(mode),
      name_(std::move(name)),
      monitor_(std::move(monitor)),
      best_(mode == EarlyStopMode::Min ? HUGE_VAL : -HUGE_VAL) {
  if (patience == 0) invalid(kOp, "patience, got 0, expected 1 or more");
  if (!std::isfinite(min_delta) || min_delta < 0) {
    invalid(kOp, "min_delta, got {}, expected a finite number of 0 or more", min_delta);
  }
  if (!monitor_) invalid(kOp, "monitor, got none, expected a function");
}

EarlyStopping EarlyStopping::with_monitor(u64 patience, f64 min_delta, EarlyStopMode mode,
                                          std::string name, Monitor monitor) {
  return {patience, min_delta, mode, std::move(name), std::move(monitor)};
}

EarlyStopping EarlyStopping::with_validation_metric(u64 patience, f64 min_delta, EarlyStopMode mode,
                                                    const ValidationMetric& metric) {
  return {patience, min_delta, mode, metric.name(),
          [metric](const TrainingSnapshot&) { return metric.result(); }};
}

EarlyStopping& EarlyStopping::set_non_finite(NonFiniteMonitor action) {
  non_finite_ = action;
  return *this;
}

EarlyStopping& EarlyStopping::set_check_every(u64 steps) {
  check_every_ = steps;
  return *this;
}

TrainingControl EarlyStopping::on_step_end(const TrainingCallbackContext& context) {
  const TrainingSnapshot& s = context.snapshot();
  if (s.epoch != 0 || check_every_ == 0 || s.step_count % check_every_ != 0) {
    return TrainingControl::Continue;
  }
  return check(monitor_(s), s.step_count);
}

TrainingControl EarlyStopping::on_epoch_end(const TrainingCallbackContext& context) {
  return check(monitor_(context.snapshot()), context.snapshot().epoch);
}

TrainingControl EarlyStopping::check(f64 value, u64 at) {
  if (!std::isfinite(value) && non_finite_ == NonFiniteMonitor::Fail) {
    fail(ErrorKind::CallbackFailure, kOp, "{} at check {}, got {}, expected a finite number", name_,
         at, value);
  }
  const bool better =
      mode_ == EarlyStopMode::Min ? value < best_ - min_delta_ : value > best_ + min_delta_;
  if (std::isfinite(value) && better) {
    best_ = value;
    best_check_ = at;
    bad_ = 0;
    return TrainingControl::Continue;
  }
  bad_ += 1;
  if (bad_ >= patience_) should_stop_ = true;
  if (!std::isfinite(value) && non_finite_ == NonFiniteMonitor::Stop) should_stop_ = true;
  return should_stop_ ? TrainingControl::Stop : TrainingControl::Continue;
}

std::string EarlyStopping::save_state() const {
  return nlohmann::json{
      {"best", to_state(best_)}, {"best_check", best_check_}, {"bad", bad_}, {"stop", should_stop_}}
      .dump();
}

void EarlyStopping::load_state(std::string_view text) {
  const StateReader state(kOp, text);
  const f64 best = state.number("best");
  const u64 best_check = state.natural("best_check"), bad = state.natural("bad");
  const bool stop = state.boolean("stop");
  best_ = best;
  best_check_ = best_check;
  bad_ = bad;
  should_stop_ = stop;
}

}  // namespace oa::ml::training
