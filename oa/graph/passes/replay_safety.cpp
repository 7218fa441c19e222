// Stage 2. Refuses a capture that would freeze a value which has to change from replay to replay.
// Stands before rewriting, while ops still have the names that the user called.
#include "oa/graph/compile.h"

namespace oa::graph {

void check_replayable(const Graph& graph) {
  for (const Node& node : graph.nodes) {
    if (!node.op->info.host_state) continue;
    fail(ErrorKind::FailedPrecondition, node.op->name(),
         "a captured program would repeat a value drawn on the host at each replay, expected the "
         "form that takes its counter from device memory");
  }
}

void replay_safety(Compilation& c, StageRecord& record) {
  record.input_count = record.output_count = c.source.nodes.size();
  if (!c.options.capture) {
    record.state = StageState::Inherited;
    record.reason = "an eager batch runs once with its own values";
    return;
  }
  check_replayable(c.source);
  record.state = StageState::Analyzed;
  record.reason = "no op takes a changing value from the host";
}

}  // namespace oa::graph
