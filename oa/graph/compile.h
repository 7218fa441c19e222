// The compile pipeline: eleven stages from a recorded graph to a Program. Read compile.cpp for
// their order; each stage is a file of passes/.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "oa/device/device.h"
#include "oa/graph/plan.h"

namespace oa::graph {

class Program;

enum class Stage : u8 {
  SemanticValidation,
  ReplaySafety,
  Decomposition,
  Fusion,
  Placement,
  Precision,
  KernelSelection,
  LoweringValidation,
  MemoryPlanning,
  SynchronizationPlanning,
  CommandRecording,
};
inline constexpr u32 kStageCount = 11;
std::string_view token(Stage stage);  // "semantic_validation", ...

enum class StageState : u8 {
  NotRun,
  Inherited,  // nothing to do: the graph came in the form that the stage would give it
  Analyzed,   // checked, changed nothing
  Applied,    // changed the program
  Failed,
};
std::string_view token(StageState state);

// What one stage did: what went in, what came out, and why. The counts are of what the stage works
// on: operations, groups, kernels, instructions, bytes or dispatches.
struct StageRecord {
  Stage stage = Stage::SemanticValidation;
  StageState state = StageState::NotRun;
  u64 input_count = 0;
  u64 output_count = 0;
  std::string reason;
  f64 seconds = 0;

  // What took a little longer is not another result.
  bool operator==(const StageRecord& o) const {
    return stage == o.stage && state == o.state && input_count == o.input_count &&
           output_count == o.output_count && reason == o.reason;
  }
};
using StageRecords = std::array<StageRecord, kStageCount>;
std::string to_string(const StageRecord& record);  // "fusion applied: 12 -> 3 (...)"

struct CompileOptions {
  bool capture = false;  // the program will be replayed: nothing that changes may be frozen into it
  bool fuse = true;      // false: one kernel per op, for comparison in tests
};

// Where the bytes of a buffer live when the program runs.
struct Place {
  enum class Kind : u8 { Leaf, Result, Arena };
  Kind kind = Kind::Arena;
  u32 index = 0;   // leaf index or result index
  u64 offset = 0;  // Arena
};

// One assignment into storage that users hold.
struct Write {
  Operand value;
  u32 leaf;
  bool in_place =
      false;  // the value is computed in the leaf's memory; else copied there at the end
};

// Why a node reads a value from memory instead of running in the group that makes it.
enum class Obstacle : u8 {
  None,
  FusionOff,
  Refused,            // no kernel could be written for both
  OwnKernel,          // one of the two brings its own kernels
  ProductOperand,     // a product reads its operand many times
  ComputedPositions,  // read at positions that are values themselves
  KeptApart,          // runs side by side with its like: updates of parameters, small products
  OtherSize,          // the two run over different numbers of elements
  OtherOrder,         // no loop nest goes through both in order
  OtherReduction,     // two reductions over different axes
  NeedsWhole,         // a reduction of a product needs all of it
  Sliced,             // follows a reduction that is cut into slices
  Cycle,              // each would wait for the other
  SeveralResults,
  NotOpen,  // the group was not considered
};

// A dispatch that waits for an earlier one.
struct Hazard {
  enum class Kind : u8 { ReadAfterWrite, WriteAfterRead, WriteAfterWrite };
  Kind kind = Kind::ReadAfterWrite;
  u32 earlier = 0;  // launch
  ArgRef memory;    // of the later launch
};

// A program under construction. Stages read and change it in order.
struct Compilation {
  Compilation(const Graph& graph, device::Device& target_device, CompileOptions opts)
      : source(graph), device(target_device), options(opts), target(target_device.target()) {}

  const Graph& source;
  device::Device& device;
  CompileOptions options;
  const kernel::Target& target;

  const Graph* graph = nullptr;      // what the later stages work on
  std::unique_ptr<Graph> rewritten;  // Decomposition
  std::vector<u32>
      scalar_sources;            // of graph->scalars: index in source.scalars, or kNoNode: constant
  std::vector<Operand> results;  // of `graph`: values that users hold, in order
  std::vector<Write> writes;
  std::vector<std::vector<bool>> stored;   // Fusion: [node][output] reaches memory
  std::vector<Group> groups;               // Fusion, in execution order
  std::vector<ProductPrecision> products;  // Precision, by node
  Launches launches;                       // KernelSelection
  std::vector<std::vector<Place>> places;  // MemoryPlanning: [node][output]
  std::vector<u64> temp_offsets;           // MemoryPlanning, in the arena
  u64 arena_bytes = 0;
  std::vector<bool> barriers;        // SynchronizationPlanning, per launch
  std::vector<Hazard> hazards;       // the last reason for each barrier, per launch
  std::shared_ptr<Program> program;  // CommandRecording

  StageRecords records;

  // For evidence.h.
  std::vector<std::vector<u32>> origins;  // Decomposition: operations of `source` behind each node
  std::map<std::pair<u32, u32>, Obstacle> obstacles;  // Fusion: reader, maker

  // Operands that must reach memory and that no group reads from inside: found when a kernel
  // generator refuses a group (NotFusible); fusion then starts over.
  std::set<std::pair<u32, u32>> sealed;

  // The operand whose memory holds the elements of `o`: reshapes of it share that memory.
  Operand resolve(Operand o) const;
};

// Bytes that a launch reads and writes, each value once and whole; of a table that is read at
// computed positions as many as come out of it.
struct Traffic {
  u64 read = 0, written = 0;
  u64 total() const { return read + written; }
};
Traffic traffic(const Compilation& c, const Launch& launch);

// Runs all stages. Throws oa::Error; the graph is not changed. `records`, if given, gets the
// stages' records up to the point of failure too.
std::shared_ptr<Program> compile(const Graph& graph, device::Device& device,
                                 const CompileOptions& options, StageRecords* records = nullptr);

// Throws FailedPrecondition, with the op's name, if replays would repeat a value of the host.
void check_replayable(const Graph& graph);

// The program of an equal graph that was compiled for one run, for replays: checks what a capture
// checks, and changes nothing else.
std::shared_ptr<Program> for_replays(const Graph& graph, device::Device& device,
                                     const Program& program);

// The stages. Each fills its record's counts, state and reason.
void semantic_validation(Compilation& c, StageRecord& record);
void replay_safety(Compilation& c, StageRecord& record);
void decomposition(Compilation& c, StageRecord& record);
void fusion(Compilation& c, StageRecord& record);
void placement(Compilation& c, StageRecord& record);
void precision(Compilation& c, StageRecord& record);
void kernel_selection(Compilation& c, StageRecord& record);
void lowering_validation(Compilation& c, StageRecord& record);
void memory_planning(Compilation& c, StageRecord& record);
void synchronization_planning(Compilation& c, StageRecord& record);
void command_recording(Compilation& c, StageRecord& record);

}  // namespace oa::graph
