#include "oa/ml/training/validation.h"

#include "oa/ml/training/state_text.h"

namespace oa::ml::training {
namespace {

constexpr std::string_view kOp = "Validation";

}  // namespace

Validation::Validation(Evaluate evaluate, std::string metric_name, u64 step_interval)
    : evaluate_(std::move(evaluate)),
      metric_(std::move(metric_name)),
      step_interval_(step_interval) {
  if (!evaluate_) invalid(kOp, "evaluate, got none, expected a function");
}

void Validation::measure(const TrainingCallbackContext& context) {
  const f64 begin = context.now();
  const ValidationResult result = evaluate_(context.snapshot());
  last_duration_ = std::max(0.0, context.now() - begin);
  context.exclude_wall_time(last_duration_);
  last_result_ = result;
  measured_step_ = context.snapshot().step_count;
  if (std::isfinite(result.loss) && result.batches > 0) {
    metric_.state_->value = result.loss;
    metric_.state_->revision += 1;
  }
}

TrainingControl Validation::on_step_end(const TrainingCallbackContext& context) {
  const TrainingSnapshot& s = context.snapshot();
  if (s.epoch == 0 && step_interval_ != 0 && s.step_count % step_interval_ == 0) measure(context);
  return TrainingControl::Continue;
}

TrainingControl Validation::on_epoch_end(const TrainingCallbackContext& context) {
  measure(context);
  return TrainingControl::Continue;
}

TrainingControl Validation::on_train_end(const TrainingCallbackContext& context) {
  const TrainingSnapshot& s = context.snapshot();
  if (s.epoch == 0 && s.step_count != measured_step_) measure(context);
  return TrainingControl::Continue;
}

std::string Validation::save_state() const {
  nlohmann::json state = {{"step", measured_step_}};
  if (metric_.value()) state["value"] = to_state(*metric_.value());
  return state.dump();
}

void Validation::load_state(std::string_view text) {
  const StateReader state(kOp, text);
  const u64 step = state.natural("step");
  std::optional<f64> value;
  if (state.has("value")) value = state.number("value");
  measured_step_ = step;
  metric_.state_->value = value;
}

}  // namespace oa::ml::training
