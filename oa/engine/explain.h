// Explains a captured program to people: what became of its operations, which kernels run and why,
// where values lie, and what each dispatch takes beside what the machine could do.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "oa/engine/limits.h"
#include "oa/graph/evidence.h"

namespace oa {

struct ExplainOptions {
  // Timed replays, of which medians are taken; 0: the program is not run. A program that assigns
  // (a training step) goes on by so many steps.
  u32 runs = 10;
  // Measured anew if not given and there are runs.
  std::optional<MachineLimits> limits;
};

struct Explanation {
  enum class Bound : u8 { Arithmetic, Memory, Dispatch };
  struct Timing {
    f64 predicted = 0;            // seconds, from the limits
    f64 measured = 0;             // median of the runs; 0 without runs
    Bound bound = Bound::Memory;  // what the prediction is limited by
  };

  std::string device;
  std::string target;  // "2 threads", "132 processors"
  std::shared_ptr<const graph::Evidence> evidence;
  graph::StageRecords stages;
  MachineLimits limits;
  std::vector<Timing> timings;  // per dispatch
  u32 runs = 0;
  f64 wall_seconds = 0;  // of one untimed replay, median; 0 without runs
};

std::string_view token(Explanation::Bound bound);

Explanation explain(Engine& engine, const ExecutionPlan& plan, const ExplainOptions& options = {});

// Aligned tables.
std::string to_text(const Explanation& e);
// "oa.explain.v1": the same as data, with the stages and the reasons.
std::string to_json(const Explanation& e);

}  // namespace oa
