// ItTraining: the loop of a training, step by step, with what it calls at the boundaries.
//
//   ItTraining training = ItTraining::create(engine, optimizer, {.total_steps = 1000});
//   training.add_callback(progress);
//   while (training.step([&] { batch.write(next()); },
//                        [&] {
//                          GradientTape tape;
//                          const Matrix loss = cross_entropy(model(batch), targets);
//                          tape.backward(loss);
//                          return loss;
//                        })) {
//   }
//   training.finish();
//
// A training made by create() captures its steps: the first one is recorded and run, the second
// becomes a program if it does the same on the same values, and from then on step() replays that
// without calling `record`. So `record` must not depend on anything of the host that changes: what
// does is written into values, by `prepare` or between the steps. Inputs of other shapes have
// programs of their own. Bits are those of recorded steps.
//
// At a boundary: the step is accounted, metrics are updated, then on_step_end and, at the end of an
// epoch, on_epoch_end of every callback, in the order of registration.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "oa/matrix/matrix.h"
#include "oa/ml/training/callback.h"
#include "oa/ml/training/metric.h"
#include "oa/ml/training/training_program.h"

namespace oa::ml::training {

class AutomaticCapture;

// Belongs to its engine's thread, except request_stop(). Borrows the engine, the optimizer, metrics
// and callbacks. Destruction calls nobody.
class ItTraining {
 public:
  // Errors: those of Schedule; InvalidArgument when the optimizer belongs to another engine. step()
  // captures.
  static ItTraining create(Engine& engine, CheckpointOptimizer& optimizer, ItTrainingConfig config);
  // Any optimizer; callbacks get no access to checkpoints.
  static ItTraining create_eager(Engine& engine, Optimizer& optimizer, ItTrainingConfig config);
  // Every step is recorded anew, callbacks get access to checkpoints.
  static ItTraining create_eager_checkpointable(Engine& engine, CheckpointOptimizer& optimizer,
                                                ItTrainingConfig config);
  ItTraining(const ItTraining&) = delete;
  ItTraining& operator=(const ItTraining&) = delete;
  ~ItTraining();

  // FailedPrecondition after the first begin_step().
  void add_metric(TrainingMetric& metric);
  void add_callback(TrainingCallback& callback);

  // Ends the training before its next step. May be called from any thread and from a signal
  // handler.
  void request_stop() noexcept { stop_.store(true, std::memory_order_relaxed); }
  bool stop_requested() const noexcept { return stop_.load(std::memory_order_relaxed); }

  // One whole step: begin_step(), `prepare` (may make and write inputs, but record nothing, else
  // FailedPrecondition), zero_grad(), `record` (forward and backward pass; returns the loss, and
  // more if there is a guard), the optimizer's update, the boundary. False, without calling either,
  // when the training is over. An error of either ends the training.
  bool step(const std::function<void()>& prepare, const StepFn& record);
  // The program of the latest step; null where that was recorded.
  TrainingProgram* training_program();
  // Kinds of steps that step() had to record each time, since the beginning, and why the last one.
  u64 program_capture_fallback_count() const;
  std::optional<std::string> last_program_capture_fallback() const;
  // The next step() records anew; for what it cannot see, such as a module put into another mode.
  // FailedPrecondition in a training that does not capture.
  void request_program_recapture();
  // Ends the inputs of the open step: what the host makes from here on is none. step() does it
  // after `prepare`. FailedPrecondition without an open step, or twice in one.
  void seal_replay_inputs();

  // The same by hand. True when a step is open; the first call resets the metrics and begins the
  // training, and one that reaches a new epoch begins that.
  bool begin_step();
  void zero_grad() { optimizer_->zero_grad(); }
  // Records the optimizer's step, submits, waits for the loss (F32, one element) and accounts the
  // step. FailedPrecondition without an open step, InvalidArgument for another loss; then the step
  // stays open.
  void complete_step(const Matrix& loss);
  // The same, but the optimizer changes nothing where `guard` (F32, one element, such as a norm of
  // gradients) is not finite.
  void complete_step_if_finite(const Matrix& loss, const Matrix& guard);
  // Replays a program, waits for its loss and accounts the step. A training has its steps in one
  // way only, by step(), by complete_step() or by this: FailedPrecondition otherwise, and for a
  // program of another optimizer.
  void complete_program_step(TrainingProgram& program);

  // Source units of the open step, instead of the estimate. FailedPrecondition without one.
  void record_source_units(u64 units);
  // Takes `seconds` (finite, 0 or more) out of times and rates.
  void exclude_wall_time(f64 seconds);

  TrainingSnapshot snapshot() const;
  std::optional<GpuTimingStats> gpu_timing_stats() const;
  const ItTrainingConfig& config() const { return schedule_.config(); }
  Optimizer& optimizer() const { return *optimizer_; }

  // Ends the training: on_train_end, once, if the training had begun and no error ended it.
  // FailedPrecondition with an open step.
  TrainingSnapshot finish();

  // What the training, its metrics and its callbacks must know to go on, as JSON text: the step,
  // the sums of losses, the states of the others. FailedPrecondition while a step is open, outside
  // of callbacks.
  std::string save_state() const;
  // Takes it over before the training begins. What the text does not name starts afresh.
  // InvalidArgument when its step is not initial_step, DataLoss when it is damaged; then nothing
  // has changed.
  void load_state(std::string_view text);

 private:
  friend class TrainingCallbackContext;
  using Hook = TrainingControl (TrainingCallback::*)(const TrainingCallbackContext&);

  ItTraining(Engine& engine, Optimizer& optimizer, CheckpointOptimizer* checkpointable,
             ItTrainingConfig config, bool captures);
  void need_unstarted(std::string_view op) const;
  void check_scalar(std::string_view op, std::string_view what, const Matrix& value) const;
  void begin_training();
  bool begin_epoch(const EpochPosition& position);
  enum class Mode : u8 { Undecided, Recorded, Program, Automatic };
  void need_mode(std::string_view op, Mode mode);
  void complete(const Matrix& loss, const Matrix* guard);
  void submit_and_finish(const Matrix& loss);
  void finish_step(const Matrix& loss, const std::optional<Event>& timed);
  void account(f64 loss, std::optional<f64> gpu_seconds);
  TrainingSnapshot make_snapshot(const EpochPosition& position) const;
  bool dispatch(Hook hook, const TrainingSnapshot& snapshot);
  template <class F>
  decltype(auto) guarded(F&& body);
  struct Stateful;
  std::vector<Stateful> stateful() const;

  Engine& engine_;
  Optimizer* optimizer_;
  CheckpointOptimizer* checkpointable_;  // null: no access
  Schedule schedule_;
  std::vector<TrainingMetric*> metrics_;
  std::vector<TrainingMetric*> restored_;  // those that go on from a loaded state
  std::vector<TrainingCallback*> callbacks_;

  std::atomic<bool> stop_ = false;
  bool started_ = false;
  bool failed_ = false;
  bool finished_ = false;
  bool open_ = false;
  bool at_boundary_ = false;  // callbacks of a completed step are running
  bool sealed_ = false;
  Mode mode_ = Mode::Undecided;
  std::unique_ptr<AutomaticCapture> capture_;  // null: every step is recorded

  u64 step_ = 0;   // completed
  u64 epoch_ = 0;  // that has begun
  u64 steps_here_ = 0;
  u64 source_units_ = 0;
  std::optional<u64> step_source_units_;
  u64 epoch_source_units_ = 0;
  u64 loss_count_ = 0, epoch_loss_count_ = 0;
  f64 loss_sum_ = 0, epoch_loss_sum_ = 0;
  std::optional<f64> last_loss_;
  f64 start_ = 0, epoch_start_ = 0;        // seconds of the clock
  f64 end_ = 0;                            // time of the last completed step
  f64 excluded_ = 0, epoch_excluded_ = 0;  // up to end_
  f64 excluded_since_ = 0;                 // after end_

  GpuTimes gpu_times_;
  std::optional<f64> last_gpu_time_;
  u64 gpu_source_units_ = 0;
};

using TrainingLoop = ItTraining;

}  // namespace oa::ml::training
