// Stage 1. Checks that every node still means what it says: its shape rule gives the recorded
// results, and operands come before their users. Stands first because all later stages rely on it.
#include "oa/graph/compile.h"

namespace oa::graph {

void semantic_validation(Compilation& c, StageRecord& record) {
  record.input_count = record.output_count = c.source.nodes.size();
  for (u32 n = 0; n < c.source.nodes.size(); ++n) {
    const Node& node = c.source.nodes[n];
    std::vector<const Spec*> specs;
    for (Operand in : node.inputs) {
      OA_CHECK(in.is_leaf() ? in.output < c.source.leaves.size() : in.node < n);
      specs.push_back(&c.source.spec(in));
    }
    Infer infer(node.op->name(), specs);
    node.op->infer(infer, node.attr());
    OA_CHECK(infer.outputs().size() == node.outputs.size());
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      OA_CHECK(infer.outputs()[i] == node.outputs[i].spec);
    }
  }
  record.state = StageState::Analyzed;
  record.reason = "every shape rule gives the recorded results";
}

}  // namespace oa::graph
