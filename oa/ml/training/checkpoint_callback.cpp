#include "oa/ml/training/checkpoint_callback.h"

#include <cmath>

#include "oa/ml/training/state_text.h"

namespace oa::ml::training {

Checkpoint& Checkpoint::set_save_every(u64 steps) {
  save_every_ = steps;
  return *this;
}

Checkpoint& Checkpoint::set_validation_metric(const ValidationMetric& metric) {
  metric_ = metric;
  seen_revision_ = metric.revision();
  return *this;
}

Checkpoint& Checkpoint::set_restore_best(bool on) {
  restore_best_ = on;
  return *this;
}

Checkpoint& Checkpoint::set_verbose(bool on) {
  verbose_ = on;
  return *this;
}

Checkpoint& Checkpoint::set_message_sink(MessageSink sink) {
  if (!sink) invalid("set_message_sink", "sink, got none, expected a function");
  sink_ = std::move(sink);
  return *this;
}

Checkpoint& Checkpoint::set_extra(Extra extra) {
  extra_ = std::move(extra);
  return *this;
}

f64 Checkpoint::metric_of(const TrainingSnapshot& snapshot) const {
  return metric_ ? metric_->result() : snapshot.epoch_mean_loss;
}

void Checkpoint::finish(const TrainingCallbackContext& context, f64 begin, std::string_view what) {
  context.exclude_wall_time(std::max(0.0, context.now() - begin));
  if (verbose_) sink_(fmt::format("step {}: {}", context.snapshot().step_count, what));
}

// The state in the file must be the one after this save, so it changes first.
void Checkpoint::save(const TrainingCallbackContext& context, f64 metric, bool force) {
  const TrainingSnapshot& s = context.snapshot();
  const f64 begin = context.now();
  if (!std::isfinite(static_cast<f32>(metric))) {
    finish(context, begin, fmt::format("not saved, {} is {}", manager_.metric_name(), metric));
    return;
  }
  const bool improved = manager_.is_better(metric);
  if (!improved && !force) return;
  const u64 before[] = {best_epoch_, best_step_, saved_step_};
  if (improved) {
    best_epoch_ = s.epoch;
    best_step_ = s.step_count;
  }
  saved_step_ = s.step_count;
  manager_.set_extra([&] { return extra_ ? extra_(context) : context.training_state(); });
  try {
    manager_.maybe_save(model_, context.checkpoint_optimizer(), s.step_count, metric, force);
  } catch (...) {
    best_epoch_ = before[0];
    best_step_ = before[1];
    saved_step_ = before[2];
    manager_.set_extra({});
    throw;
  }
  manager_.set_extra({});
  finish(
      context, begin,
      fmt::format("saved {}{}", manager_.latest()->first.string(), improved ? ", the best" : ""));
}

void Checkpoint::save_interval(const TrainingCallbackContext& context) {
  const TrainingSnapshot& s = context.snapshot();
  const f64 begin = context.now(), loss = *s.last_loss;
  if (!std::isfinite(static_cast<f32>(loss))) {
    finish(context, begin, fmt::format("not saved, loss is {}", loss));
    return;
  }
  const u64 before = std::exchange(saved_step_, s.step_count);
  manager_.set_extra([&] { return extra_ ? extra_(context) : context.training_state(); });
  try {
    const auto path = manager_.save_incremental(model_, context.checkpoint_optimizer(),
                                                s.step_count, loss, "loss");
    manager_.set_extra({});
    finish(context, begin, "saved " + path.string());
  } catch (...) {
    saved_step_ = before;
    manager_.set_extra({});
    throw;
  }
}

TrainingControl Checkpoint::on_step_end(const TrainingCallbackContext& context) {
  const TrainingSnapshot& s = context.snapshot();
  if (s.is_epoch_boundary) return TrainingControl::Continue;  // saved there
  if (s.epoch == 0 && metric_ && metric_->revision() != seen_revision_) {
    seen_revision_ = metric_->revision();
    save(context, metric_->result(), false);
  }
  if (save_every_ != 0 && s.step_count % save_every_ == 0 && saved_step_ != s.step_count) {
    save_interval(context);
  }
  return TrainingControl::Continue;
}

TrainingControl Checkpoint::on_epoch_end(const TrainingCallbackContext& context) {
  if (metric_ && !metric_->value()) {
    save_interval(context);  // nothing to compare yet
  } else {
    save(context, metric_of(context.snapshot()), true);
  }
  return TrainingControl::Continue;
}

TrainingControl Checkpoint::on_train_end(const TrainingCallbackContext& context) {
  const TrainingSnapshot& s = context.snapshot();
  if (s.last_loss && saved_step_ != s.step_count && s.step_count > context.config().initial_step) {
    // An unfinished epoch has no metric of its own.
    const bool fresh = !metric_ || metric_->revision() != seen_revision_;
    if (s.epoch == 0 && fresh) {
      save(context, metric_of(s), true);
    } else {
      save_interval(context);
    }
  }
  if (restore_best_ && manager_.config().save_best && best_step_ != 0 &&
      best_step_ != s.step_count) {
    manager_.load_best_into(model_, context.checkpoint_optimizer());
    if (verbose_)
      sink_(fmt::format("step {}: the model of step {} is the best and is back", s.step_count,
                        best_step_));
  }
  return TrainingControl::Continue;
}

std::string Checkpoint::save_state() const {
  return nlohmann::json{{"best_epoch", best_epoch_}, {"best_step", best_step_}}.dump();
}

void Checkpoint::load_state(std::string_view text) {
  const StateReader state("Checkpoint", text);
  const u64 epoch = state.natural("best_epoch"), step = state.natural("best_step");
  best_epoch_ = epoch;
  best_step_ = step;
}

}  // namespace oa::ml::training
