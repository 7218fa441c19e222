#include "oa/ml/training/it_training.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "oa/engine/engine_core.h"
#include "oa/ml/training/automatic_capture.h"

namespace oa::ml::training {
namespace {

constexpr f64 kNaN = std::numeric_limits<f64>::quiet_NaN();

f64 ratio(f64 amount, f64 by) { return by > 0 ? amount / by : 0; }

f64 mean(f64 sum, u64 count) { return count == 0 ? kNaN : sum / static_cast<f64>(count); }

}  // namespace

ItTraining::ItTraining(Engine& engine, Optimizer& optimizer, CheckpointOptimizer* checkpointable,
                       ItTrainingConfig config, bool captures)
    : engine_(engine),
      optimizer_(&optimizer),
      checkpointable_(checkpointable),
      schedule_(std::move(config)),
      step_(schedule_.config().initial_step) {
  if (!optimizer.belongs_to(engine)) {
    invalid("ItTraining", "optimizer, got one of another engine, expected one of this engine");
  }
  if (captures) capture_ = std::make_unique<AutomaticCapture>(engine, optimizer);
}

ItTraining::~ItTraining() = default;

ItTraining ItTraining::create(Engine& engine, CheckpointOptimizer& optimizer,
                              ItTrainingConfig config) {
  return {engine, optimizer, &optimizer, std::move(config), true};
}

ItTraining ItTraining::create_eager(Engine& engine, Optimizer& optimizer, ItTrainingConfig config) {
  return {engine, optimizer, nullptr, std::move(config), false};
}

ItTraining ItTraining::create_eager_checkpointable(Engine& engine, CheckpointOptimizer& optimizer,
                                                   ItTrainingConfig config) {
  return {engine, optimizer, &optimizer, std::move(config), false};
}

void ItTraining::need_unstarted(std::string_view op) const {
  if (started_) fail(ErrorKind::FailedPrecondition, op, "the training has begun already");
}

void ItTraining::add_metric(TrainingMetric& metric) {
  need_unstarted("add_metric");
  metrics_.push_back(&metric);
}

void ItTraining::add_callback(TrainingCallback& callback) {
  need_unstarted("add_callback");
  callbacks_.push_back(&callback);
}

// An error inside ends the training.
template <class F>
decltype(auto) ItTraining::guarded(F&& body) {
  try {
    return body();
  } catch (...) {
    if (capture_ && capture_->inputs_are_open()) capture_->end_inputs();
    stop_ = failed_ = true;
    open_ = at_boundary_ = false;
    throw;
  }
}

bool ItTraining::dispatch(Hook hook, const TrainingSnapshot& snapshot) {
  const TrainingCallbackContext context(*this, snapshot);
  bool go_on = true;
  for (TrainingCallback* callback : callbacks_) {
    if ((callback->*hook)(context) == TrainingControl::Stop) go_on = false;
  }
  if (!go_on) request_stop();
  return go_on;
}

void ItTraining::begin_training() {
  started_ = true;
  for (TrainingMetric* metric : metrics_) {
    if (std::ranges::find(restored_, metric) == restored_.end()) metric->reset();
  }
  start_ = epoch_start_ = end_ = config().clock();
  dispatch(&TrainingCallback::on_train_begin, make_snapshot(schedule_.at(step_)));
  start_ = end_ = config().clock();
  excluded_since_ = 0;
}

bool ItTraining::begin_epoch(const EpochPosition& position) {
  const bool inside = position.step_in_epoch > 1 && steps_here_ == 0;  // goes on where it stopped
  if (!inside) {
    epoch_loss_sum_ = 0;
    epoch_loss_count_ = 0;
  }
  // The beginning of the training has reset those that were not restored.
  if (!inside) {
    for (TrainingMetric* metric : steps_here_ > 0 ? metrics_ : restored_) metric->reset();
  }
  epoch_source_units_ = 0;
  epoch_start_ = config().clock();
  EpochPosition before = position;
  before.step_in_epoch -= 1;
  const bool go_on = dispatch(&TrainingCallback::on_epoch_begin, make_snapshot(before));
  if (go_on) epoch_ = position.epoch;
  epoch_start_ = config().clock();
  epoch_excluded_ = -excluded_since_;  // lies before the epoch
  return go_on;
}

bool ItTraining::begin_step() {
  if (open_) return true;
  if (finished_) return false;
  return guarded([&] {
    if (!started_ && !stop_requested()) begin_training();
    if (stop_requested()) return false;
    if (config().total_steps != 0 && step_ >= config().total_steps) return false;
    const EpochPosition next = schedule_.at(step_ + 1);
    if (next.epoch != epoch_ && !begin_epoch(next)) return false;
    step_source_units_.reset();
    open_ = true;
    sealed_ = false;
    return true;
  });
}

void ItTraining::check_scalar(std::string_view op, std::string_view what,
                              const Matrix& value) const {
  if (!value.valid()) invalid(op, "{}, got an empty Matrix, expected one f32 element", what);
  if (value.dtype() != DType::F32 || value.num_elements() != 1) {
    invalid(op, "{}, got {} {}, expected one f32 element", what, token(value.dtype()),
            to_string(value.shape()));
  }
  if (&value.tensor()->recorder() != &engine_.core()) {
    invalid(op, "{}, got a value of another engine, expected one of the training's engine", what);
  }
}

void ItTraining::complete_step(const Matrix& loss) {
  if (!open_) fail(ErrorKind::FailedPrecondition, "complete_step", "no step is open");
  check_scalar("complete_step", "loss", loss);
  need_mode("complete_step", Mode::Recorded);
  complete(loss, nullptr);
}

void ItTraining::complete_step_if_finite(const Matrix& loss, const Matrix& guard) {
  constexpr std::string_view kOp = "complete_step_if_finite";
  if (!open_) fail(ErrorKind::FailedPrecondition, kOp, "no step is open");
  check_scalar(kOp, "loss", loss);
  check_scalar(kOp, "guard", guard);
  need_mode(kOp, Mode::Recorded);
  complete(loss, &guard);
}

void ItTraining::complete(const Matrix& loss, const Matrix* guard) {
  guarded([&] {
    if (guard != nullptr) {
      optimizer_->step_if_finite(*guard);
    } else {
      optimizer_->step();
    }
    submit_and_finish(loss);
  });
}

void ItTraining::submit_and_finish(const Matrix& loss) {
  std::optional<Event> timed;
  if (config().enable_gpu_timing && !engine_.core().graph().empty()) {
    timed = engine_.checkpoint_timed();
  } else {
    engine_.flush();
  }
  finish_step(loss, timed);
}

void ItTraining::finish_step(const Matrix& loss, const std::optional<Event>& timed) {
  const f64 value = loss.item();
  account(value, timed ? std::optional(timed->device_duration()) : std::nullopt);
}

// A training has one way of making steps; one that never captures may mix step() and
// complete_step(), which do the same there.
void ItTraining::need_mode(std::string_view op, Mode mode) {
  if (mode == Mode::Automatic && !capture_) mode = Mode::Recorded;
  if (mode_ == Mode::Undecided) mode_ = mode;
  if (mode_ == mode) return;
  constexpr std::string_view kNames[] = {"", "complete_step", "complete_program_step", "step"};
  fail(ErrorKind::FailedPrecondition, op,
       "the training makes its steps in another way, got {} after {}, expected one way for all",
       kNames[static_cast<int>(mode)], kNames[static_cast<int>(mode_)]);
}

bool ItTraining::step(const std::function<void()>& prepare, const StepFn& record) {
  if (!record) invalid("step", "record, got none, expected a function");
  need_mode("step", Mode::Automatic);
  if (!begin_step()) return false;
  guarded([&] {
    if (capture_) capture_->begin_inputs();
    if (prepare) {
      engine_.flush();
      prepare();
      if (!engine_.core().graph().empty()) {
        fail(ErrorKind::FailedPrecondition, "step",
             "prepare recorded operations, expected writes of inputs only");
      }
    }
    if (!sealed_) seal_replay_inputs();
    const StepFn checked = [&] {
      StepRecord r = record();
      check_scalar("step", "loss", r.loss);
      if (r.guard.valid()) check_scalar("step", "guard", r.guard);
      return r;
    };
    if (capture_) {
      const AutomaticCapture::Ran ran = capture_->step(checked, config().enable_gpu_timing);
      finish_step(ran.loss, ran.timed);
      return;
    }
    zero_grad();
    const StepRecord r = checked();
    record_update(*optimizer_, r);
    submit_and_finish(r.loss);
  });
  return true;
}

void ItTraining::seal_replay_inputs() {
  constexpr std::string_view kOp = "seal_replay_inputs";
  if (!open_) fail(ErrorKind::FailedPrecondition, kOp, "no step is open");
  if (sealed_) {
    fail(ErrorKind::FailedPrecondition, kOp, "the inputs of this step are sealed already");
  }
  sealed_ = true;
  if (capture_ && capture_->inputs_are_open()) capture_->end_inputs();
}

TrainingProgram* ItTraining::training_program() { return capture_ ? capture_->program() : nullptr; }

u64 ItTraining::program_capture_fallback_count() const {
  return capture_ ? capture_->fallbacks() : 0;
}

std::optional<std::string> ItTraining::last_program_capture_fallback() const {
  return capture_ ? capture_->last_fallback() : std::nullopt;
}

void ItTraining::request_program_recapture() {
  if (!capture_ || (mode_ != Mode::Undecided && mode_ != Mode::Automatic)) {
    fail(ErrorKind::FailedPrecondition, "request_program_recapture",
         "the training does not capture, expected one by create() with step()");
  }
  capture_->request_recapture();
}

void ItTraining::complete_program_step(TrainingProgram& program) {
  constexpr std::string_view kOp = "complete_program_step";
  if (!open_) fail(ErrorKind::FailedPrecondition, kOp, "no step is open");
  if (&program.optimizer() != optimizer_) {
    invalid(kOp, "the program has another optimizer, expected the training's");
  }
  need_mode(kOp, Mode::Program);
  guarded([&] {
    if (config().enable_gpu_timing) {
      const TimedLoss timed = program.replay_timed_and_wait();
      account(static_cast<f64>(timed.loss), timed.seconds);
    } else {
      account(static_cast<f64>(program.replay_and_wait()), std::nullopt);
    }
  });
}

void ItTraining::account(f64 loss, std::optional<f64> gpu_seconds) {
  step_ += 1;
  steps_here_ += 1;
  const u64 source = step_source_units_.value_or(schedule_.source_units_per_step());
  source_units_ += source;
  epoch_source_units_ += source;
  last_loss_ = loss;
  loss_sum_ += loss;
  loss_count_ += 1;
  epoch_loss_sum_ += loss;
  epoch_loss_count_ += 1;
  last_gpu_time_ = gpu_seconds;
  if (gpu_seconds) {
    gpu_times_.add(*gpu_seconds);
    gpu_source_units_ += source;
  }
  end_ = config().clock();
  excluded_ += excluded_since_;
  epoch_excluded_ += excluded_since_;
  excluded_since_ = 0;

  const EpochPosition position = schedule_.at(step_);
  const TrainingSnapshot snapshot = make_snapshot(position);
  for (TrainingMetric* metric : metrics_) metric->update_step(loss, snapshot);
  at_boundary_ = true;
  dispatch(&TrainingCallback::on_step_end, snapshot);
  if (snapshot.is_epoch_boundary) {
    dispatch(&TrainingCallback::on_epoch_end, make_snapshot(position));
  }
  at_boundary_ = open_ = false;
}

TrainingSnapshot ItTraining::make_snapshot(const EpochPosition& position) const {
  TrainingSnapshot s;
  const f64 batch = static_cast<f64>(config().batch_size);
  const f64 units = static_cast<f64>(schedule_.units_per_step());
  const f64 steps = static_cast<f64>(steps_here_);
  s.step_count = step_;
  if (config().total_steps != 0) s.total_steps = config().total_steps;
  s.epoch = position.epoch;
  s.total_epochs = schedule_.total_epochs();
  s.step_in_epoch = position.step_in_epoch;
  s.steps_in_epoch = position.steps_in_epoch;
  s.is_last_step = s.total_steps && step_ == *s.total_steps;
  s.is_epoch_boundary = position.epoch != 0 && position.step_in_epoch == position.steps_in_epoch;
  s.last_loss = last_loss_;
  s.training_mean_loss = mean(loss_sum_, loss_count_);
  s.epoch_mean_loss = mean(epoch_loss_sum_, epoch_loss_count_);
  s.total_samples = steps_here_ * config().batch_size;
  s.total_units = steps_here_ * schedule_.units_per_step();
  s.total_source_units = source_units_;
  s.elapsed = std::max(0.0, end_ - start_ - excluded_);
  s.epoch_elapsed = end_ > epoch_start_ ? std::max(0.0, end_ - epoch_start_ - epoch_excluded_) : 0;
  s.wall_ms_per_step = ratio(s.elapsed * 1e3, steps);
  s.wall_samples_per_second = ratio(steps * batch, s.elapsed);
  s.wall_units_per_second = ratio(steps * units, s.elapsed);
  s.wall_source_units_per_second = ratio(static_cast<f64>(source_units_), s.elapsed);
  s.epoch_source_units_per_second = ratio(static_cast<f64>(epoch_source_units_), s.epoch_elapsed);
  s.last_gpu_time = last_gpu_time_;
  s.gpu_timing_stats = gpu_timing_stats();
  if (s.gpu_timing_stats) {
    const f64 count = static_cast<f64>(s.gpu_timing_stats->count);
    const f64 seconds = gpu_times_.total_seconds();
    s.gpu_samples_per_second = ratio(count * batch, seconds);
    s.gpu_units_per_second = ratio(count * units, seconds);
    s.gpu_source_units_per_second = ratio(static_cast<f64>(gpu_source_units_), seconds);
  }
  return s;
}

void ItTraining::record_source_units(u64 units) {
  if (!open_) fail(ErrorKind::FailedPrecondition, "record_source_units", "no step is open");
  if (units > std::numeric_limits<u64>::max() - source_units_) {
    fail(ErrorKind::ResourceExhausted, "record_source_units", "got {} after {}", units,
         source_units_);
  }
  step_source_units_ = units;
}

void ItTraining::exclude_wall_time(f64 seconds) {
  if (!std::isfinite(seconds) || seconds < 0) {
    invalid("exclude_wall_time", "seconds, got {}, expected a finite number of 0 or more", seconds);
  }
  excluded_since_ += seconds;
}

TrainingSnapshot ItTraining::snapshot() const { return make_snapshot(schedule_.at(step_)); }

std::optional<GpuTimingStats> ItTraining::gpu_timing_stats() const {
  if (gpu_times_.stats().count == 0) return std::nullopt;
  return gpu_times_.stats();
}

TrainingSnapshot ItTraining::finish() {
  if (open_) fail(ErrorKind::FailedPrecondition, "finish", "a step is open");
  const TrainingSnapshot last = snapshot();
  if (std::exchange(finished_, true) || !started_ || failed_) return last;
  guarded([&] { dispatch(&TrainingCallback::on_train_end, last); });
  return snapshot();
}

}  // namespace oa::ml::training
