// TrainingProgram: a whole training step (forward pass, backward pass, update of the parameters) as
// one program that is replayed.
//
//   TrainingProgram program = TrainingProgram::capture(engine, optimizer, [&] {
//     GradientTape tape;
//     const Matrix loss = cross_entropy(model.forward(x), y);
//     tape.backward(loss);
//     return loss;
//   });
//   for (...) { program.upload_input<u32>(x, next()); program.replay(); }
//
// Capturing runs nothing. A replay is one submission: a recorded command buffer on a GPU, one flat
// run without locks or allocation on the CPU. What changes from step to step lives in device memory
// and is moved on by the program: the optimizer's count of steps and the rate that goes with it,
// moments, the counters of dropout, averages. So any number of replays gives the bits of as many
// steps recorded one by one.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "oa/graph/evidence.h"
#include "oa/matrix/matrix.h"
#include "oa/ml/optim/optimizer.h"

namespace oa::ml::training {

// What a step records, apart from the update.
struct StepRecord {
  StepRecord() = default;
  StepRecord(Matrix l) : loss(std::move(l)) {}  // NOLINT(google-explicit-constructor)
  StepRecord(Matrix l, Matrix g, std::function<void()> a = {})
      : loss(std::move(l)), guard(std::move(g)), after(std::move(a)) {}

  Matrix loss;   // F32, one element
  Matrix guard;  // F32, one element, or empty: where it is not finite the optimizer changes nothing
  std::function<void()> after;  // records what follows the update, such as that of an average
};
using StepFn = std::function<StepRecord()>;
// Records the optimizer's update for a step, and what follows it.
void record_update(Optimizer& optimizer, const StepRecord& record);

struct TimedLoss {
  f32 loss = 0;
  f64 seconds = 0;  // on the device
};

struct TrainingProgramDiagnostics {
  u64 operations = 0;  // recorded
  u64 dispatches = 0;  // of one replay
  u64 barriers = 0;
  u64 inputs = 0;       // values that a replay reads and does not write
  u64 arena_bytes = 0;  // of temporaries
  u64 replays = 0;
  u64 timed_replays = 0;
};

// The records of the compile stages, under the names of this layer.
using TrainingCompilationStage = graph::Stage;
using TrainingCompilationState = graph::StageState;
using TrainingCompilationStageRecord = graph::StageRecord;
using TrainingCompilationStageRecords = graph::StageRecords;

class TrainingProgram {
 public:
  // Drops the gradients, calls `step`, which records a forward and a backward pass and the clipping
  // of gradients if there is any, and records the optimizer's update, unless `step` did that
  // itself. `step` is called twice, and what differs between the two recordings is an error (see
  // Engine::capture); CaptureOptions::verify switches that off.
  //
  // FailedPrecondition, with the op's name: something that replays would freeze; a parameter that
  // wants a gradient and gets none; another optimizer's update, or two. InvalidArgument: another
  // loss than one F32 element of the engine, an optimizer of another engine.
  static TrainingProgram capture(Engine& engine, Optimizer& optimizer, const StepFn& step,
                                 const CaptureOptions& options = {});
  // The step that is recorded in `batch`, the update included, which the optimizer has counted;
  // runs it once. Where it cannot be replayed that is an error, and `batch` is left alone.
  static TrainingProgram from_batch(Engine& engine, Optimizer& optimizer,
                                    std::unique_ptr<graph::Graph>& batch, const Matrix& loss,
                                    bool timed);
  TrainingProgram(TrainingProgram&&) noexcept;
  TrainingProgram& operator=(TrainingProgram&&) noexcept;
  ~TrainingProgram();  // waits for the device, as reset() does

  // Replaces the elements of a value that the program reads, for the replays that follow; does not
  // wait for the ones before. InvalidArgument: not an input of the program, wrong type or count.
  template <class T>
  void upload_input(const Matrix& input, std::span<const T> values) {
    upload(input, DTypeOf<T>::value, values.data(), values.size());
  }
  template <class T>
  void upload_input(const Matrix& input, const std::vector<T>& values) {
    upload_input(input, std::span<const T>(values));
  }
  // Bits of any dtype; `count` elements.
  void upload(const Matrix& input, DType dtype, const void* data, size_t count);

  // Submits one step, without waiting. FailedPrecondition: after reset(); when the optimizer is
  // gone, or another one in what the program has as constants (see Optimizer::step_form).
  Event replay();
  Event replay_timed();  // MissingCapability where the device has no clock
  f32 replay_and_wait();
  TimedLoss replay_timed_and_wait();

  void wait() const;  // for the latest replay; raises what went wrong on the device
  bool is_complete() const;
  const Matrix& loss() const;  // that of the latest replay; reading it waits
  u64 replay_count() const;
  TrainingProgramDiagnostics diagnostics() const;
  // The captured graph, its program, and the records of the compile stages.
  const ExecutionPlan& plan() const;
  const TrainingCompilationStageRecords& compilation_stages() const { return plan().stages(); }
  const graph::SemanticGraph& semantic_graph() const { return plan().evidence().semantic; }
  // Reports as JSON; oa/graph/report.h says what is in them.
  std::string semantic_debug_report_json(std::string_view name) const {
    return plan().semantic_report_json(name);
  }
  std::string debug_report_json() const { return plan().execution_report_json("training_step"); }
  std::string compilation_debug_report_json() const {
    return plan().compilation_report_json("training_step");
  }

  const Optimizer& optimizer() const;
  // Why replay() would refuse because of the optimizer; empty if it would not.
  std::string stale() const;
  const Event& last_event() const;  // of the latest replay

  // Waits, and gives the memory back; later calls are FailedPrecondition.
  void reset();

 private:
  struct State;
  explicit TrainingProgram(std::unique_ptr<State> state);
  State& held(std::string_view op) const;
  Event run(std::string_view op, bool timed);
  std::unique_ptr<State> state_;
};

}  // namespace oa::ml::training

namespace oa::ml {
using training::TrainingCompilationStage;
using training::TrainingCompilationStageRecord;
using training::TrainingCompilationState;
using training::TrainingProgram;
}  // namespace oa::ml
