// Captures: recordings that become plans, and what a recording must not do to become one.
#include <algorithm>
#include <unordered_set>

#include "oa/engine/engine_core.h"
#include "oa/graph/repetition.h"
#include "oa/graph/report.h"
#include "oa/matrix/matrix.h"

namespace oa {

using graph::Graph;
using graph::Program;
using graph::StorageRef;

struct ExecutionPlan::State {
  std::unique_ptr<Graph> graph;  // keeps the leaves alive
  std::shared_ptr<Program> program;
  std::vector<StorageRef> storages;
  std::vector<Matrix> results;
  std::unordered_set<const graph::Storage*> inputs;  // leaves that are only read
  std::vector<StorageRef> written;                   // by every submission
  device::Memory arena;
  Ref<EngineCore> core;
  device::CommandList list;
  std::unique_ptr<device::Recorded> recorded;
  u32 barriers = 0;
  u64 submissions = 0;
  ~State() {
    core->settle();  // the device may still run from this plan
    recorded.reset();
    if (arena.bytes > 0) core->device().release(arena);
  }
};

const graph::StageRecords& ExecutionPlan::stages() const { return program().stages(); }
const graph::Evidence& ExecutionPlan::evidence() const { return graph::evidence_of(program()); }
std::string ExecutionPlan::semantic_report_json(std::string_view name) const {
  return graph::semantic_report_json(program(), name);
}
std::string ExecutionPlan::execution_report_json(std::string_view name) const {
  return graph::execution_report_json(program(), name);
}
std::string ExecutionPlan::compilation_report_json(std::string_view name) const {
  return graph::compilation_report_json(program(), name);
}
u32 ExecutionPlan::dispatch_count() const { return static_cast<u32>(program().steps().size()); }
u32 ExecutionPlan::barrier_count() const { return held().barriers; }
u64 ExecutionPlan::arena_bytes() const { return program().arena_bytes(); }
u64 ExecutionPlan::submissions() const { return held().submissions; }
u32 ExecutionPlan::input_count() const { return static_cast<u32>(held().inputs.size()); }
bool ExecutionPlan::is_input(const Matrix& value) const {
  return value.valid() && !value.tensor()->pending() &&
         held().inputs.contains(value.tensor()->storage().get());
}
const std::vector<Matrix>& ExecutionPlan::results() const { return held().results; }
const graph::Graph& ExecutionPlan::graph() const { return *held().graph; }
const graph::Program& ExecutionPlan::program() const { return *held().program; }

ExecutionPlan::State& ExecutionPlan::held() const {
  if (!state_) invalid("ExecutionPlan", "the plan is empty, expected a captured one");
  return *state_;
}

bool CaptureWatch::had(u64 serial) const {
  return std::find(uploads.begin(), uploads.end(), serial) != uploads.end();
}

std::string_view EngineCore::why_missing() const {
  if (repeating_) {
    return "is a result of the recording before, which no replay would see, expected a value with "
           "elements of its own that assign() replaces";
  }
  return Recorder::why_missing();
}

void EngineCore::refuse_in_capture(std::string_view op, std::string_view why) {
  if (capturing_) fail(ErrorKind::FailedPrecondition, op, "{}", why);
  if (watch_ && watch_->refusal.empty()) watch_->refusal = fmt::format("{}: {}", op, why);
}

// What `fn` records, apart from the pending graph; nothing has changed if it throws.
std::unique_ptr<Graph> EngineCore::record_apart(const std::function<std::vector<Matrix>()>& fn,
                                                CaptureWatch& watch, std::vector<Matrix>& results) {
  struct Restore {
    EngineCore& core;
    std::unique_ptr<Graph> pending;
    ~Restore() {
      core.graph_ = std::move(pending);
      core.capturing_ = core.repeating_ = false;
      core.watch_ = nullptr;
    }
  } restore{*this, take_pending()};
  capturing_ = true;
  watch_ = &watch;
  results = fn();
  for (const Matrix& m : results) {
    if (!m.valid()) invalid("capture", "a result is empty, expected values");
    if (&m.tensor()->recorder() != this) {
      invalid("capture", "a result belongs to another engine, expected values of this one");
    }
  }
  return take_pending();
}

std::optional<graph::Repetition::Difference> uploaded_operand(const Graph& graph,
                                                              const CaptureWatch& watch) {
  for (u32 leaf = 0; leaf < graph.leaves.size(); ++leaf) {
    if (!watch.had(graph.leaves[leaf].tensor->storage()->serial())) continue;
    const graph::LeafUse use = graph::first_use(graph, leaf);
    return graph::Repetition::Difference{
        std::string(use.op ? use.op->name() : "capture"),
        fmt::format("operand {} was uploaded while the step was recorded and a replay would use "
                    "the same elements, expected a value made before",
                    use.operand)};
  }
  return std::nullopt;
}

ExecutionPlan EngineCore::capture(const std::function<std::vector<Matrix>()>& fn,
                                  const CaptureOptions& options) {
  check_open("capture");
  if (capturing_) {
    fail(ErrorKind::FailedPrecondition, "capture",
         "a capture is under way, expected no nested capture");
  }
  refuse_in_capture("capture", "a capture inside of a step");
  flush();
  const u64 seeds = seed_state_;
  try {
    graph::Repetition first;
    const auto name_of = [](const graph::Storage& s) { return s.serial(); };
    if (options.verify) {
      CaptureWatch watch;  // constants may be made now
      std::vector<Matrix> dropped;
      const auto graph = record_apart(fn, watch, dropped);
      first = graph::Repetition(*graph, name_of);
    }
    repeating_ = options.verify;
    CaptureWatch watch;
    std::vector<Matrix> results;
    std::unique_ptr<Graph> graph = record_apart(fn, watch, results);
    graph::check_replayable(*graph);
    auto wrong = uploaded_operand(*graph, watch);
    if (!wrong && options.verify) {
      wrong = first.difference(graph::Repetition(*graph, name_of), *graph);
    }
    if (wrong) throw Error(ErrorKind::FailedPrecondition, wrong->op, wrong->message);
    return plan_of(graph, std::move(results));
  } catch (...) {
    seed_state_ = seeds;
    throw;
  }
}

ExecutionPlan EngineCore::plan_of(std::unique_ptr<Graph>& batch, std::vector<Matrix> results) {
  auto state = std::make_shared<ExecutionPlan::State>();
  state->core = Ref(this);
  state->program = program_of(*batch, true);
  const Program& program = *state->program;
  for (u64 bytes : program.storage_bytes()) state->storages.push_back(allocate(bytes));
  if (program.arena_bytes() > 0) state->arena = pool_.allocate(program.arena_bytes());
  std::vector<u64> leaves, storages;
  for (const graph::Leaf& leaf : batch->leaves) {
    leaves.push_back(leaf.tensor->storage()->address());
    state->inputs.insert(leaf.tensor->storage().get());
  }
  for (const graph::Node& node : batch->nodes) {
    if (node.target == graph::kNoNode) continue;
    const StorageRef& target = batch->leaves[node.target].tensor->storage();
    if (state->inputs.erase(target.get()) > 0) state->written.push_back(target);
  }
  state->written.insert(state->written.end(), state->storages.begin(), state->storages.end());
  for (const StorageRef& s : state->storages) storages.push_back(s->address());
  const auto code = first_code_.find(&program);
  program.fill({.leaves = leaves,
                .storages = storages,
                .arena = state->arena.address,
                .scalars = batch->scalars,
                .status = status_.address,
                .check_code = code == first_code_.end() ? 0 : code->second},
               state->list);
  state->recorded = device_->record(state->list);
  for (const device::Dispatch& d : state->list.dispatches) state->barriers += d.barrier;
  state->graph = std::move(batch);  // from here on nothing throws
  bind_results(*state->graph, program, state->storages);
  state->results = std::move(results);
  ExecutionPlan plan;
  plan.state_ = std::move(state);
  return plan;
}

Event EngineCore::submit(const ExecutionPlan& plan, bool timed, std::string_view op) {
  check_open(op);
  if (!plan.state_ || plan.state_->core.get() != this) {
    invalid(op, "the plan belongs to another engine, expected one captured by this engine");
  }
  if (timed && !device_->has_timestamps()) {
    fail(ErrorKind::MissingCapability, op, "'{}' has no timestamps, expected a device with them",
         device_->info().name);
  }
  refuse_in_capture(op, "a plan cannot be submitted during a capture");
  ExecutionPlan::State& state = *plan.state_;
  flush();
  if (timed || options_.profile) {
    submit_list(*state.program, state.list, timed);
  } else {
    last_ticket_ = device_->submit(*state.recorded);
    last_timed_ = false;
    counters_.dispatches += state.list.dispatches.size();
    status_used_ = status_used_ || !state.program->checks().empty();
  }
  for (const StorageRef& s : state.written) ++s->version;
  ++state.submissions;
  return last_event();
}

}  // namespace oa
