#include "oa/ml/training/training_program.h"

#include "oa/engine/engine_core.h"
#include "oa/ml/optim/update_ops.h"

namespace oa::ml::training {
namespace {

constexpr std::string_view kOp = "TrainingProgram";

void check_loss(const Engine& engine, std::string_view what, const Matrix& value) {
  if (!value.valid()) invalid(kOp, "{}, got an empty Matrix, expected one f32 element", what);
  if (value.dtype() != DType::F32 || value.num_elements() != 1) {
    invalid(kOp, "{}, got {} {}, expected one f32 element", what, token(value.dtype()),
            value.shape());
  }
  if (&value.tensor()->recorder() != &engine.core()) {
    invalid(kOp, "{}, got a value of another engine, expected one of the program's engine", what);
  }
}

struct Updates {
  u32 own = 0, foreign = 0;
};

// Updates that a graph records, by the counters that they move on.
Updates count_updates(const graph::Graph& graph, const Matrix& counter) {
  Updates n;
  const auto* own = counter.valid() ? counter.tensor()->storage().get() : nullptr;
  for (const graph::Node& node : graph.nodes) {
    if (node.target == graph::kNoNode || node.inputs[0].is_leaf()) continue;
    if (graph.nodes[node.inputs[0].node].op != &graph::op_def<AdvanceStep>()) continue;
    const auto* target = graph.leaves[node.target].tensor->storage().get();
    (target == own ? n.own : n.foreign) += 1;
  }
  return n;
}

void check_updates(const graph::Graph& graph, const Optimizer& optimizer) {
  const Matrix counter = optimizer.step_counter();
  const Updates updates = count_updates(graph, counter);
  if (updates.foreign > 0) {
    fail(ErrorKind::FailedPrecondition, kOp,
         "the step has updates of other optimizers, got {}, expected only the program's own",
         updates.foreign);
  }
  if (counter.valid() && updates.own != 1) {
    fail(ErrorKind::FailedPrecondition, kOp,
         "the step has the wrong number of the optimizer's updates, got {}, expected 1",
         updates.own);
  }
}

void check_gradients(const Optimizer& optimizer) {
  const std::string name = optimizer.without_gradient();
  if (name.empty()) return;
  fail(ErrorKind::FailedPrecondition, kOp,
       "the captured step gives parameter \"{}\" no gradient, expected one or "
       "set_requires_grad(false)",
       name);
}

}  // namespace

void record_update(Optimizer& optimizer, const StepRecord& record) {
  if (record.guard.valid()) {
    optimizer.step_if_finite(record.guard);
  } else {
    optimizer.step();
  }
  if (record.after) record.after();
}

struct TrainingProgram::State {
  Ref<EngineCore> core;
  Optimizer* optimizer;
  std::weak_ptr<const void> optimizer_life;
  u64 step_form;
  ExecutionPlan plan;
  Matrix loss;
  Event last;
  u64 replays = 0;
  u64 timed_replays = 0;

  std::string stale() const {
    if (optimizer_life.expired()) return "the optimizer does not exist any more";
    if (optimizer->step_form() != step_form) {
      if (const std::string name = optimizer->showing_average(); !name.empty()) {
        return fmt::format("parameter \"{}\" shows an average", name);
      }
      return "the optimizer has other betas, decays or trained parameters than in the captured "
             "step";
    }
    return {};
  }
};

TrainingProgram::TrainingProgram(std::unique_ptr<State> state) : state_(std::move(state)) {}
TrainingProgram::TrainingProgram(TrainingProgram&&) noexcept = default;
TrainingProgram& TrainingProgram::operator=(TrainingProgram&&) noexcept = default;
TrainingProgram::~TrainingProgram() = default;

TrainingProgram TrainingProgram::capture(Engine& engine, Optimizer& optimizer, const StepFn& step,
                                         const CaptureOptions& options) {
  if (!step) invalid(kOp, "step, got none, expected a function");
  if (!optimizer.belongs_to(engine)) {
    invalid(kOp, "optimizer, got one of another engine, expected one of this engine");
  }
  EngineCore& core = engine.core();
  core.check_open(kOp);
  if (!core.graph().empty()) {
    fail(ErrorKind::FailedPrecondition, kOp,
         "work is pending, got {} recorded operations, expected a flush before the capture",
         core.graph().nodes.size());
  }
  const u64 form = optimizer.step_form();
  Matrix loss;
  ExecutionPlan plan;
  try {
    plan = core.capture(
        [&] {
          optimizer.zero_grad();
          const StepRecord record = step();
          check_loss(engine, "loss", record.loss);
          if (record.guard.valid()) check_loss(engine, "guard", record.guard);
          const Matrix counter = optimizer.step_counter();
          if (!counter.valid() || count_updates(core.graph(), counter).own == 0) {
            check_gradients(optimizer);
            record_update(optimizer, record);
          } else if (record.after) {
            record.after();
          }
          check_updates(core.graph(), optimizer);
          loss = record.loss;
          return std::vector<Matrix>{loss};
        },
        options);
  } catch (...) {
    optimizer.zero_grad();  // they are of no step
    throw;
  }
  if (optimizer.step_form() != form) {
    fail(ErrorKind::FailedPrecondition, kOp,
         "the step changes which parameters are trained, expected that before or after it");
  }
  return TrainingProgram(std::make_unique<State>(State{.core = Ref(&engine.core()),
                                                       .optimizer = &optimizer,
                                                       .optimizer_life = optimizer.life(),
                                                       .step_form = form,
                                                       .plan = std::move(plan),
                                                       .loss = loss}));
}

TrainingProgram TrainingProgram::from_batch(Engine& engine, Optimizer& optimizer,
                                            std::unique_ptr<graph::Graph>& batch,
                                            const Matrix& loss, bool timed) {
  check_loss(engine, "loss", loss);
  check_updates(*batch, optimizer);
  check_gradients(optimizer);
  ExecutionPlan plan = engine.core().plan_of(batch, {loss});
  auto state = std::make_unique<State>(State{.core = Ref(&engine.core()),
                                             .optimizer = &optimizer,
                                             .optimizer_life = optimizer.life(),
                                             .step_form = optimizer.step_form(),
                                             .plan = std::move(plan),
                                             .loss = loss});
  state->last = state->core->submit(state->plan, timed, kOp);
  state->replays = 1;
  state->timed_replays = timed;
  return TrainingProgram(std::move(state));
}

TrainingProgram::State& TrainingProgram::held(std::string_view op) const {
  if (!state_)
    fail(ErrorKind::FailedPrecondition, op, "the program was reset, expected a live one");
  return *state_;
}

void TrainingProgram::upload(const Matrix& input, DType dtype, const void* data, size_t count) {
  constexpr std::string_view kUpload = "upload_input";
  State& s = held(kUpload);
  if (!s.plan.is_input(input)) {
    invalid(kUpload,
            "the value is no input of the program, got {}, expected one that the step reads "
            "and does not write",
            input.valid() ? fmt::format("{} {}", token(input.dtype()), input.shape()) : "nothing");
  }
  if (input.dtype() != dtype) {
    invalid(kUpload, "wrong element type, got {}, expected {}", token(dtype), token(input.dtype()));
  }
  if (count != static_cast<size_t>(input.num_elements())) {
    invalid(kUpload, "element count does not fit shape {}, got {}, expected {}", input.shape(),
            count, input.num_elements());
  }
  s.core->overwrite(kUpload, input.tensor(), data, count * size_bytes(dtype));
}

Event TrainingProgram::run(std::string_view op, bool timed) {
  State& s = held(op);
  if (const std::string why = s.stale(); !why.empty()) {
    const bool shows = !s.optimizer_life.expired() && !s.optimizer->showing_average().empty();
    fail(ErrorKind::FailedPrecondition, op, "{}, expected {}", why,
         shows ? "a replay after the end of its scope" : "a new capture");
  }
  s.last = s.core->submit(s.plan, timed, op);
  s.optimizer->count_replays(1);
  ++s.replays;
  s.timed_replays += timed;
  return s.last;
}

Event TrainingProgram::replay() { return run("replay", false); }
Event TrainingProgram::replay_timed() { return run("replay_timed", true); }

f32 TrainingProgram::replay_and_wait() {
  run("replay_and_wait", false);
  return state_->loss.item();
}

TimedLoss TrainingProgram::replay_timed_and_wait() {
  const Event event = run("replay_timed_and_wait", true);
  const f32 loss = state_->loss.item();
  return {loss, event.device_duration()};
}

void TrainingProgram::wait() const { held("wait").last.wait(); }
bool TrainingProgram::is_complete() const { return held("is_complete").last.is_complete(); }

const Matrix& TrainingProgram::loss() const {
  const State& s = held("loss");
  if (s.replays == 0) {
    fail(ErrorKind::FailedPrecondition, "loss", "no replay was made, expected one before");
  }
  return s.loss;
}

u64 TrainingProgram::replay_count() const { return held("replay_count").replays; }

TrainingProgramDiagnostics TrainingProgram::diagnostics() const {
  const State& s = held("diagnostics");
  return {.operations = s.plan.graph().nodes.size(),
          .dispatches = s.plan.dispatch_count(),
          .barriers = s.plan.barrier_count(),
          .inputs = s.plan.input_count(),
          .arena_bytes = s.plan.arena_bytes(),
          .replays = s.replays,
          .timed_replays = s.timed_replays};
}

const ExecutionPlan& TrainingProgram::plan() const { return held("plan").plan; }

const Optimizer& TrainingProgram::optimizer() const {
  State& s = held("optimizer");
  if (s.optimizer_life.expired()) {
    fail(ErrorKind::FailedPrecondition, "optimizer", "{}, expected a new capture", s.stale());
  }
  return *s.optimizer;
}

const Event& TrainingProgram::last_event() const { return held("last_event").last; }

std::string TrainingProgram::stale() const { return held("stale").stale(); }

void TrainingProgram::reset() {
  held("reset").last.wait();
  state_.reset();
}

}  // namespace oa::ml::training
