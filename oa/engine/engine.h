// Engine: owns a device, its memory, the pending graph and the cache of compiled programs.
//
// Operations on Matrix values record into the pending graph. A flush (reading a value,
// checkpoint(), capture) compiles the graph, or finds it compiled already, and submits it. An
// engine and its values belong to one thread at a time.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "oa/core/ref.h"
#include "oa/device/device.h"
#include "oa/graph/compile.h"
#include "oa/graph/graph.h"

namespace oa {

class EngineCore;
class Matrix;
namespace graph {
struct Evidence;
class Program;
}  // namespace graph

struct EngineOptions {
  std::string
      device;  // "", "cpu", "vulkan", "vulkan:1", "lavapipe"; empty: OA_DEVICE, else the best
  device::DeviceOptions device_options;
  bool check_indices = true;  // an out-of-range index raises an error at the next synchronisation
  bool fuse = true;           // false: one kernel per op, to compare with
  bool profile = false;       // time every kernel
  bool guard_bands = false;   // surround values with a pattern that check_guards() verifies
  u64 seed = 0;               // of the engine's stream of seeds, for calls that give none
  Precision precision = Precision::F32;  // of products that name none
};

// All runs of the kernels with one label.
struct KernelProfile {
  std::string label;
  u64 count = 0;
  f64 seconds = 0;
  f64 least_seconds = 0;  // of one run
  f64 flops = 0;          // estimated, of all runs
  f64 bytes = 0;          // read and written, each value once
};

struct MemoryUse {
  device::MemoryReport device;
  u64 values_bytes = 0;  // held by values
  u64 kept_bytes = 0;    // free, kept for the next values
  u64 arena_bytes = 0;   // temporaries of programs
};

struct EngineCounters {
  u64 flushes = 0;
  u64 programs_compiled = 0;
  u64 cache_hits = 0;
  u64 dispatches = 0;
  u64 kernels_made = 0;  // by the compiler of the device, or loaded from its cache on disk
};

// A point in the engine's order of work.
class Event {
 public:
  Event() = default;
  bool is_complete() const;
  // Waits; raises what went wrong on the device up to this point.
  void wait() const;
  // Seconds on the device of a timed submission; waits. FailedPrecondition if it was not timed.
  f64 device_duration() const;
  std::vector<f64> dispatch_seconds() const;  // the same, of each dispatch in order
  bool operator==(const Event& other) const = default;

 private:
  friend class EngineCore;
  Ref<graph::Recorder> core_;  // an EngineCore
  device::Ticket ticket_ = 0;
  bool timed_ = false;
};

struct CaptureOptions {
  // Records twice and compares, so that what would be frozen is found: numbers of the host that
  // change, other values in place of operands, other operations. False: once, unchecked.
  bool verify = true;
};

// A captured graph, ready to be submitted many times. Operands and results keep their memory, which
// the plan holds; copies share one plan. Dropping the last one waits for the device.
class ExecutionPlan {
 public:
  ExecutionPlan() = default;
  bool valid() const { return static_cast<bool>(state_); }
  const graph::StageRecords& stages() const;
  u32 dispatch_count() const;
  u32 barrier_count() const;  // dispatches that wait for earlier ones
  u64 arena_bytes() const;    // of temporaries
  u64 submissions() const;
  // What is read and never written: elements that may be replaced between submissions.
  bool is_input(const Matrix& value) const;
  u32 input_count() const;
  const std::vector<Matrix>& results() const;
  // What it was made from, and what it became. Runtime numbers of the graph are those of all runs.
  const graph::Graph& graph() const;
  const graph::Program& program() const;
  // What the compile stages decided, and reports of it (graph/report.h says what is in them).
  const graph::Evidence& evidence() const;
  std::string semantic_report_json(std::string_view name = "") const;
  std::string execution_report_json(std::string_view name = "") const;
  std::string compilation_report_json(std::string_view name = "") const;

 private:
  friend class EngineCore;
  struct State;
  State& held() const;
  std::shared_ptr<State> state_;
};

class Engine {
 public:
  // Opens a device. Throws NoSuitableDevice with what exists when the name fits none.
  static Engine open(const EngineOptions& options = {});
  // Runs on a device that the caller has opened; the options that choose one are ignored.
  static Engine open_on(std::unique_ptr<device::Device> device, const EngineOptions& options = {});
  Engine(Engine&&) noexcept = default;
  Engine& operator=(Engine&&) noexcept;
  ~Engine();

  const device::DeviceInfo& device_info() const;
  const kernel::Target& target() const;

  void flush();              // submits pending work, does not wait
  Event checkpoint();        // flush, and the point after it
  Event checkpoint_timed();  // FailedPrecondition when nothing is pending
  void wait();               // flush and wait for everything

  // Records what `fn` does into a plan of its own instead of running it. The values that fn returns
  // are the plan's results: after each submit they hold that run's elements. With
  // CaptureOptions::verify fn is called twice. FailedPrecondition, with the op's name, for what a
  // replay would freeze: see docs/training.md.
  ExecutionPlan capture(const std::function<std::vector<Matrix>()>& fn,
                        const CaptureOptions& options = {});
  Event submit(const ExecutionPlan& plan);
  // With the time of every dispatch. MissingCapability where the device has no clock.
  Event submit_timed(const ExecutionPlan& plan);

  // With EngineOptions::profile; without it there is nothing to tell. Longest kernels first; the
  // same as a table for people; and everything as a file for chrome://tracing or Perfetto.
  std::vector<KernelProfile> profile() const;
  std::string profile_table(u32 most_rows = 40) const;
  void write_trace(const std::filesystem::path& path) const;
  MemoryUse memory() const;
  EngineCounters counters() const;
  // The stages of the last program that was compiled, or failed to: the stage that threw says
  // Failed, those behind it NotRun.
  const graph::StageRecords& last_compilation() const;
  void check_guards();  // throws Internal if a kernel wrote beside a value

  // The next seed of the engine's stream; consumed by calls without a seed.
  u64 next_seed();
  // Starts that stream anew, as EngineOptions::seed does.
  void set_rng_seed(u64 seed);

  // Ends the engine: pending work is dropped, later use of its values is an error.
  void close();

  EngineCore& core() const;

 private:
  explicit Engine(Ref<graph::Recorder> core) : core_(std::move(core)) {}
  Ref<graph::Recorder> core_;  // an EngineCore
};

}  // namespace oa
