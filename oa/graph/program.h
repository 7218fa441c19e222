// A compiled graph: a flat list of dispatches whose addresses are filled in at each run.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "oa/graph/compile.h"

namespace oa::graph {

struct Evidence;

class Program {
 public:
  struct Check {
    std::string op;
    i64 limit = 0;
  };
  // One parameter of one dispatch.
  struct Arg {
    enum class Kind : u8 { Leaf, Result, Arena, Scalar, Status, CheckBase, Immediate };
    Kind kind = Kind::Immediate;
    u32 index = 0;  // leaf, result or scalar
    u64 value = 0;  // arena offset, first check, the kernel::Scalar of a scalar, or the bits
  };
  struct Step {
    std::shared_ptr<device::Executable> kernel;
    u32 groups = 0;
    u32 first_arg = 0;
    u32 arg_count = 0;
    bool barrier = false;
    f64 flops = 0;
    u64 bytes = 0;  // read and written, each value once
    std::string label;
  };
  struct Result {
    Spec spec;
    u32 storage = 0;  // index among storages(), or the leaf whose memory it shares
    bool shares_leaf = false;
  };

  // Where things are in one run.
  struct Bindings {
    std::span<const u64> leaves;    // addresses
    std::span<const u64> storages;  // addresses
    u64 arena = 0;
    std::span<const Scalar> scalars;
    u64 status = 0;
    u64 check_code = 0;  // added to every check of this program
  };
  void fill(const Bindings& b, device::CommandList& list) const;

  const std::vector<Result>& results() const { return results_; }
  const std::vector<u64>& storage_bytes() const { return storage_bytes_; }
  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<Check>& checks() const { return checks_; }
  u64 arena_bytes() const { return arena_bytes_; }
  const StageRecords& stages() const { return stages_; }
  // What the stages decided and why; null after it was dropped.
  const std::shared_ptr<const Evidence>& evidence() const { return evidence_; }
  void drop_evidence() { evidence_.reset(); }
  // Compiled or checked for replays.
  bool captured() const {
    return stages_[static_cast<u32>(Stage::ReplaySafety)].state != StageState::Inherited;
  }

 private:
  friend void command_recording(Compilation& c, StageRecord& record);
  friend std::shared_ptr<Program> compile(const Graph&, device::Device&, const CompileOptions&,
                                          StageRecords*);
  friend std::shared_ptr<Program> for_replays(const Graph&, device::Device&, const Program&);
  std::vector<Step> steps_;
  std::vector<Arg> args_;
  std::vector<Result> results_;
  std::vector<u64> storage_bytes_;
  std::vector<Check> checks_;
  std::vector<std::pair<u32, f64>> scalars_;  // source index or kNoNode, constant
  u64 arena_bytes_ = 0;
  StageRecords stages_;
  std::shared_ptr<const Evidence> evidence_;
};

}  // namespace oa::graph
