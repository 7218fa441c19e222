// The engine's inside, for the code that makes and reads values. Users see Engine.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <unordered_map>

#include "oa/engine/engine.h"
#include "oa/engine/memory_pool.h"
#include "oa/engine/trace.h"
#include "oa/graph/program.h"
#include "oa/graph/repetition.h"

namespace oa {

// Notes what the recording of a step does that no replay can repeat.
struct CaptureWatch {
  std::string refusal;       // the first such thing; empty: none so far
  std::vector<u64> uploads;  // serials of the storages that the host filled meanwhile
  bool had(u64 serial) const;
};

// An operand that the host filled while the step was recorded, and what is wrong with that.
std::optional<graph::Repetition::Difference> uploaded_operand(const graph::Graph& graph,
                                                              const CaptureWatch& watch);

// Values that the host makes for one step, in order, with their elements: what a program of an
// earlier step takes in place of its own.
struct InputFrame {
  struct Input {
    graph::TensorRef tensor;
    std::vector<u8> bytes;
  };
  std::vector<Input> inputs;
  size_t count = 0;  // of this step; the others are kept for their memory
};

class EngineCore final : public graph::Recorder {
 public:
  EngineCore(std::unique_ptr<device::Device> device, const EngineOptions& options);
  ~EngineCore() override;

  graph::Graph& graph() override { return *graph_; }
  void check_open(std::string_view op) override;
  Precision precision() const override { return options_.precision; }
  Precision usable(Precision p) const override;
  std::string_view why_missing() const override;

  device::Device& device() { return *device_; }
  const EngineOptions& options() const { return options_; }

  // Memory for the elements of a value; uninitialised.
  graph::StorageRef allocate(u64 bytes);
  // A ready value with the given elements.
  graph::TensorRef upload(std::string_view op, const graph::Spec& spec, const void* data);
  // Replaces the elements of a ready value in place.
  void overwrite(std::string_view op, const graph::TensorRef& tensor, const void* data, u64 bytes);
  // The elements of a value: flushes what it needs, waits, copies.
  void read(std::string_view op, const graph::TensorRef& tensor, void* data, u64 bytes);
  // False if that would have to wait.
  bool try_read(std::string_view op, const graph::TensorRef& tensor, void* data, u64 bytes);

  void flush(bool timed = false);
  Event last_event() const;
  void wait();
  void wait(device::Ticket ticket);
  void settle() noexcept;  // waits for the device, whatever became of the work
  void close();

  // --- Captures: capture.cpp ---

  // What is recorded now belongs to a capture and will not run by itself.
  bool capturing() const { return capturing_; }
  ExecutionPlan capture(const std::function<std::vector<Matrix>()>& fn,
                        const CaptureOptions& options);
  Event submit(const ExecutionPlan& plan, bool timed, std::string_view op);
  // Something that a replay would not repeat: FailedPrecondition in a capture; under a watch, that
  // ends what might have become one.
  void refuse_in_capture(std::string_view op, std::string_view why);
  // From here on notes in `watch` what speaks against replaying the pending graph; null: no more.
  void set_watch(CaptureWatch* watch) { watch_ = watch; }
  // From here on notes uploads; null: no more.
  void set_frame(InputFrame* frame) { frame_ = frame; }
  // A plan that runs `batch`, which is left alone if that throws.
  ExecutionPlan plan_of(std::unique_ptr<graph::Graph>& batch, std::vector<Matrix> results);
  std::unique_ptr<graph::Graph> take_pending();
  void run_batch(std::unique_ptr<graph::Graph> batch, bool timed);

  std::vector<KernelProfile> profile() const;
  void write_trace(const std::filesystem::path& path) const;
  MemoryUse memory() const;
  const EngineCounters& counters() const { return counters_; }
  const graph::StageRecords& last_compilation() const { return last_compilation_; }
  void check_guards();
  u64 next_seed();
  void set_rng_seed(u64 seed) { seed_state_ = seed; }

 private:
  friend class Engine;
  std::shared_ptr<graph::Program> program_of(const graph::Graph& graph, bool capture);
  std::shared_ptr<graph::Program> new_program(const graph::Graph& graph, bool capture);
  std::unique_ptr<graph::Graph> record_apart(const std::function<std::vector<Matrix>()>& fn,
                                             CaptureWatch& watch, std::vector<Matrix>& results);
  // What has to exist before a graph runs.
  struct Ready {
    std::shared_ptr<graph::Program> program;
    std::vector<graph::StorageRef> storages;  // of its results
  };
  Ready ready_for(const graph::Graph& graph);
  void run(graph::Graph& graph, const Ready& ready, bool timed);
  void salvage(graph::Graph& failed) noexcept;  // salvage.cpp
  void bind_results(graph::Graph& graph, const graph::Program& program,
                    const std::vector<graph::StorageRef>& storages);
  void reserve_arena(u64 bytes);
  void submit_list(const graph::Program& program, const device::CommandList& list, bool timed);
  void raise_bad_index();
  void trace_compile(f64 begin, std::string_view what);
  void keep_evidence(const std::shared_ptr<graph::Program>& program);
  void assign_check_codes(const std::shared_ptr<graph::Program>& program);

  EngineOptions options_;
  std::unique_ptr<device::Device> device_;
  MemoryPool pool_;
  std::unique_ptr<graph::Graph> graph_;
  std::unordered_map<Hash128, std::shared_ptr<graph::Program>> programs_;
  std::map<u64, std::shared_ptr<graph::Program>> check_codes_;  // by first code
  std::unordered_map<const graph::Program*, u64> first_code_;
  u64 next_code_ = 0;
  device::Memory arena_;
  device::Memory status_;
  bool status_used_ = false;
  device::CommandList list_;  // kept between runs for its memory
  std::vector<u64> leaf_addresses_, storage_addresses_;
  device::Ticket last_ticket_ = 0;
  bool last_timed_ = false;
  bool closed_ = false;
  bool capturing_ = false;
  bool repeating_ = false;  // the second recording of a capture
  CaptureWatch* watch_ = nullptr;
  InputFrame* frame_ = nullptr;
  u64 values_bytes_ = 0;
  std::map<u64, std::pair<device::Memory, u64>> guarded_;  // by address: block, bytes of the value
  EngineCounters counters_;
  graph::StageRecords last_compilation_;
  std::deque<std::weak_ptr<graph::Program>> with_evidence_;
  std::map<std::string, KernelProfile> profile_;
  Trace trace_;
  u64 seed_state_ = 0;
};

}  // namespace oa
