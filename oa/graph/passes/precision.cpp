// Stage 6. Decides the type that each value is computed in: 16-bit floats are computed as F32 and
// rounded when stored, F64 only where the device has it. Stands before kernels are chosen, because
// products choose by these types.
#include "oa/graph/compile.h"

namespace oa::graph {

void precision(Compilation& c, StageRecord& record) {
  record.input_count = record.output_count = c.graph->nodes.size();
  u64 narrow = 0;
  for (const Node& node : c.graph->nodes) {
    const auto check = [&](const Spec& spec) {
      if (spec.dtype != DType::F64 || c.target.f64) return;
      fail(ErrorKind::MissingCapability, node.op->name(),
           "{} has no 64-bit floats, expected f32 or the CPU", c.device.info().name);
    };
    for (Operand in : node.inputs) check(c.graph->spec(in));
    for (const Output& out : node.outputs) {
      narrow += out.spec.dtype == DType::F16 || out.spec.dtype == DType::BF16;
      check(out.spec);
    }
  }
  record.state = c.graph->nodes.empty() ? StageState::Inherited : StageState::Analyzed;
  record.reason = fmt::format("{} values are stored in 16 bits and computed in 32", narrow);
}

}  // namespace oa::graph
