// Stage 5. Gives every group and value a place. An engine has one device, so groups go there, if
// their results fit it. A value goes to its memory where fusion made it one that others read, else
// it stays in the registers of its group's kernel; numbers of the host travel with each run.
#include "oa/graph/compile.h"

namespace oa::graph {

void placement(Compilation& c, StageRecord& record) {
  record.input_count = record.output_count = c.groups.size();
  const u64 limit = c.device.info().max_allocation;
  for (const Group& g : c.groups) {
    for (Operand o : g.outputs) {
      const Spec& spec = c.graph->spec(o);
      const u64 bytes = static_cast<u64>(spec.shape.elements()) * size_bytes(spec.dtype);
      if (limit != 0 && bytes > limit) {
        fail(ErrorKind::ResourceExhausted, c.graph->nodes[o.node].op->name(),
             "result {} is too large for {}, got {} bytes, expected at most {}", spec.shape,
             c.device.info().name, bytes, limit);
      }
    }
  }
  record.state = c.groups.empty() ? StageState::Inherited : StageState::Analyzed;
  u64 kept = 0, stored = 0, bytes = 0;
  for (u32 n = 0; n < c.graph->nodes.size(); ++n) {
    const Node& node = c.graph->nodes[n];
    for (u32 i = 0; i < node.outputs.size(); ++i) {
      const Spec& spec = node.outputs[i].spec;
      ++(c.stored[n][i] ? stored : kept);
      if (c.stored[n][i]) {
        bytes += static_cast<u64>(spec.shape.elements()) * size_bytes(spec.dtype);
      }
    }
  }
  record.reason = fmt::format(
      "all groups on {}; {} values of {} bytes in its memory, "
      "{} in registers of one kernel or only another view; {} numbers come with each run",
      c.device.info().id, stored, bytes, kept, c.graph->scalars.size());
}

}  // namespace oa::graph
