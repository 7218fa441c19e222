#include "oa/ml/training/plateau_scheduler.h"

#include "oa/ml/training/state_text.h"

namespace oa::ml::training {
namespace {

constexpr std::string_view kOp = "PlateauScheduler";

}  // namespace

PlateauScheduler::PlateauScheduler(std::shared_ptr<ReduceOnPlateau> schedule)
    : PlateauScheduler(
          std::move(schedule), "loss", [](const TrainingSnapshot& s) { return s.epoch_mean_loss; },
          0, std::nullopt) {}

PlateauScheduler::PlateauScheduler(std::shared_ptr<ReduceOnPlateau> schedule, std::string name,
                                   Monitor monitor, u64 step_interval,
                                   std::optional<ValidationMetric> metric)
    : schedule_(std::move(schedule)),
      name_(std::move(name)),
      monitor_(std::move(monitor)),
      step_interval_(step_interval),
      metric_(std::move(metric)),
      seen_(metric_ ? metric_->revision() : 0) {
  if (!schedule_) invalid(kOp, "schedule, got none, expected one");
  if (!metric_ && !monitor_) invalid(kOp, "monitor, got none, expected a function");
}

PlateauScheduler PlateauScheduler::with_monitor(std::shared_ptr<ReduceOnPlateau> schedule,
                                                std::string name, Monitor monitor,
                                                u64 step_interval) {
  return {std::move(schedule), std::move(name), std::move(monitor), step_interval, std::nullopt};
}

PlateauScheduler PlateauScheduler::with_validation_metric(std::shared_ptr<ReduceOnPlateau> schedule,
                                                          const ValidationMetric& metric) {
  return {std::move(schedule), metric.name(), nullptr, 0, metric};
}

void PlateauScheduler::report(const TrainingCallbackContext& context, f64 value) {
  context.optimizer().set_learning_rate(schedule_->step(value));
}

bool PlateauScheduler::has_new_value() {
  if (metric_->revision() == seen_) return false;
  seen_ = metric_->revision();
  return true;
}

TrainingControl PlateauScheduler::on_train_begin(const TrainingCallbackContext& context) {
  context.optimizer().set_learning_rate(schedule_->rate(context.snapshot().step_count));
  return TrainingControl::Continue;
}

TrainingControl PlateauScheduler::on_step_end(const TrainingCallbackContext& context) {
  const TrainingSnapshot& s = context.snapshot();
  if (metric_) {
    if (has_new_value()) report(context, metric_->result());
  } else if (s.epoch == 0 && step_interval_ != 0 && s.step_count % step_interval_ == 0) {
    report(context, monitor_(s));
  }
  return TrainingControl::Continue;
}

TrainingControl PlateauScheduler::on_epoch_end(const TrainingCallbackContext& context) {
  if (!metric_) {
    report(context, monitor_(context.snapshot()));
  } else if (has_new_value()) {
    report(context, metric_->result());
  }
  return TrainingControl::Continue;
}

std::string PlateauScheduler::save_state() const {
  const ReduceOnPlateau::State& s = schedule_->state();
  return nlohmann::json{{"rate", to_state(s.rate)}, {"best", to_state(s.best)}, {"bad", s.bad}}
      .dump();
}

void PlateauScheduler::load_state(std::string_view text) {
  const StateReader state(kOp, text);
  const f64 rate = state.number("rate");
  if (!std::isfinite(rate) || rate < 0) state.wrong("rate", "a finite number of 0 or more");
  schedule_->restore({rate, state.number("best"), state.natural("bad")});
}

}  // namespace oa::ml::training
