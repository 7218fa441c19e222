#include "oa/ml/training/training_summary.h"

#include <algorithm>
#include <cstdio>

#include "oa/ml/training/state_text.h"
#include "oa/ml/training/text_output.h"

namespace oa::ml::training {

void message_to_stderr(const std::string& message) {
  const std::string line = message + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

TrainingSummary::TrainingSummary(bool track_initial_loss, MessageSink sink)
    : track_initial_loss_(track_initial_loss), sink_(std::move(sink)) {
  if (!sink_) invalid("TrainingSummary", "sink, got none, expected a function");
}

TrainingSummary& TrainingSummary::set_validation_metric(const ValidationMetric& metric) {
  metric_ = metric;
  return *this;
}

std::optional<f64> TrainingSummary::wall_gpu_gap_percent(const TrainingSnapshot& s) {
  if (s.gpu_samples_per_second <= 0) return std::nullopt;
  return std::clamp(100 * (1 - s.wall_samples_per_second / s.gpu_samples_per_second), 0.0, 100.0);
}

std::string TrainingSummary::render_report(const TrainingSnapshot& s,
                                           const ItTrainingConfig& c) const {
  std::string out = fmt::format("{} steps", s.step_count);
  if (s.total_steps && *s.total_steps != s.step_count) out += fmt::format(" of {}", *s.total_steps);
  if (s.epoch != 0) out += fmt::format(", epoch {}", s.epoch);
  if (s.total_epochs != 0) out += fmt::format(" of {}", s.total_epochs);
  out += ", " + short_duration(s.elapsed);
  if (s.last_loss) {
    out += fmt::format("\n  loss    {:.4f}", *s.last_loss);
    if (initial_loss_) out += fmt::format(" from {:.4f}", *initial_loss_);
    out += fmt::format(", mean {:.4f}", s.training_mean_loss);
  }
  if (metric_ && metric_->value()) {
    out += fmt::format("\n  {:7} {:.4f}", metric_->name(), *metric_->value());
  }
  out += fmt::format("\n  wall    {:.2f} ms/step, {} sample/s", s.wall_ms_per_step,
                     short_number(s.wall_samples_per_second));
  if (c.sequence_length > 0) {
    out += fmt::format(", {} {}/s", short_number(s.wall_units_per_second), c.sequence_unit);
  }
  if (s.total_source_units > 0) {
    out += fmt::format(", {} {}/s", short_number(s.wall_source_units_per_second), c.source_unit);
  }
  if (s.gpu_timing_stats) {
    const GpuTimingStats& g = *s.gpu_timing_stats;
    out += fmt::format(
        "\n  device  mean {:.2f}, median {:.2f}, p95 {:.2f}, min {:.2f}, max {:.2f} ms, {} "
        "sample/s",
        g.mean_ms, g.median_ms, g.p95_ms, g.min_ms, g.max_ms,
        short_number(s.gpu_samples_per_second));
    if (const auto gap = wall_gpu_gap_percent(s)) {
      out += fmt::format("\n  idle    the device waits for {:.1f} % of the wall time", *gap);
    }
  }
  return out;
}

TrainingControl TrainingSummary::on_step_end(const TrainingCallbackContext& context) {
  if (track_initial_loss_ && !initial_loss_) initial_loss_ = context.snapshot().last_loss;
  return TrainingControl::Continue;
}

TrainingControl TrainingSummary::on_train_end(const TrainingCallbackContext& context) {
  sink_(render_report(context.snapshot(), context.config()));
  return TrainingControl::Continue;
}

std::string TrainingSummary::save_state() const {
  nlohmann::json state = nlohmann::json::object();
  if (initial_loss_) state["initial_loss"] = to_state(*initial_loss_);
  return state.dump();
}

void TrainingSummary::load_state(std::string_view text) {
  const StateReader state("TrainingSummary", text);
  std::optional<f64> loss;
  if (state.has("initial_loss")) loss = state.number("initial_loss");
  initial_loss_ = loss;
}

}  // namespace oa::ml::training
