// Stage 5. Gives every group a device. An engine has one, so this stage checks that the groups can
// run there: element types and sizes.
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
  record.reason = fmt::format("all on {}", c.device.info().id);
}

}  // namespace oa::graph
