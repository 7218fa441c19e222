// The compile pipeline. The order of the stages is the table below.
#include "oa/graph/compile.h"

#include <chrono>

#include "oa/graph/emit.h"
#include "oa/graph/evidence.h"
#include "oa/graph/program.h"

namespace oa::graph {
namespace {

struct StageEntry {
  Stage stage;
  std::string_view name;
  void (*run)(Compilation&, StageRecord&);
};

constexpr StageEntry kStages[kStageCount] = {
    {Stage::SemanticValidation, "semantic_validation", semantic_validation},
    {Stage::ReplaySafety, "replay_safety", replay_safety},
    {Stage::Decomposition, "decomposition", decomposition},
    {Stage::Fusion, "fusion", fusion},
    {Stage::Placement, "placement", placement},
    {Stage::Precision, "precision", precision},
    {Stage::KernelSelection, "kernel_selection", kernel_selection},
    {Stage::LoweringValidation, "lowering_validation", lowering_validation},
    {Stage::MemoryPlanning, "memory_planning", memory_planning},
    {Stage::SynchronizationPlanning, "synchronization_planning", synchronization_planning},
    {Stage::CommandRecording, "command_recording", command_recording},
};

void run_stage(Compilation& c, u32 i) {
  StageRecord& record = c.records[i];
  OA_CHECK(kStages[i].stage == static_cast<Stage>(i));
  record = {.stage = kStages[i].stage};
  const auto start = std::chrono::steady_clock::now();
  try {
    kStages[i].run(c, record);
  } catch (const Error& error) {
    record.state = StageState::Failed;
    record.reason = error.what();
    throw;
  } catch (...) {
    record.state = StageState::Failed;
    throw;
  }
  record.seconds = std::chrono::duration<f64>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::string_view token(Stage stage) { return kStages[static_cast<u32>(stage)].name; }

std::string_view token(StageState state) {
  constexpr std::string_view names[] = {"not_run", "inherited", "analyzed", "applied", "failed"};
  return names[static_cast<int>(state)];
}

std::string to_string(const StageRecord& r) {
  return fmt::format("{} {}: {} -> {}{}{}{}", token(r.stage), token(r.state), r.input_count,
                     r.output_count, r.reason.empty() ? "" : " (", r.reason,
                     r.reason.empty() ? "" : ")");
}

namespace {

void run_stages(Compilation& c) {
  for (u32 i = 0; i < kStageCount; ++i) c.records[i].stage = static_cast<Stage>(i);
  constexpr u32 kFusion = static_cast<u32>(Stage::Fusion);
  constexpr u32 kSelection = static_cast<u32>(Stage::KernelSelection);
  for (u32 i = 0; i < kFusion; ++i) run_stage(c, i);
  // A group that no kernel generator can write is cut and fused again.
  for (;;) {
    try {
      for (u32 i = kFusion; i <= kSelection; ++i) run_stage(c, i);
      break;
    } catch (const NotFusible& refused) {
      const size_t before = c.sealed.size();
      for (Operand o : {refused.operand, c.resolve(refused.operand)}) {
        if (!o.is_leaf()) c.sealed.insert({o.node, o.output});
      }
      OA_CHECK(c.sealed.size() > before);
    }
  }
  for (u32 i = kSelection + 1; i < kStageCount; ++i) run_stage(c, i);
}

}  // namespace

std::shared_ptr<Program> compile(const Graph& graph, device::Device& device,
                                 const CompileOptions& options, StageRecords* records) {
  Compilation c(graph, device, options);
  try {
    run_stages(c);
  } catch (...) {
    if (records) *records = c.records;
    throw;
  }
  c.program->stages_ = c.records;
  c.program->evidence_ = std::make_shared<const Evidence>(collect_evidence(c));
  if (records) *records = c.records;
  return c.program;
}

std::shared_ptr<Program> for_replays(const Graph& graph, device::Device& device,
                                     const Program& program) {
  Compilation c(graph, device, {.capture = true});
  constexpr u32 kSafety = static_cast<u32>(Stage::ReplaySafety);
  run_stage(c, kSafety);
  auto copy = std::make_shared<Program>(program);
  copy->stages_[kSafety] = c.records[kSafety];
  return copy;
}

}  // namespace oa::graph
