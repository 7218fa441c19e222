#include "oa/graph/semantic_graph.h"

#include "oa/graph/gradient.h"

namespace oa::graph {

std::string_view token(OpKind kind) {
  switch (kind) {
    case OpKind::Elementwise: return "elementwise";
    case OpKind::Movement: return "movement";
    case OpKind::Reduction: return "reduction";
    case OpKind::Contraction: return "contraction";
    case OpKind::Kernel: return "kernel";
    case OpKind::Composite: return "composite";
    case OpKind::Effect: break;
  }
  return "effect";
}

std::string_view token(SemanticGraph::Role role) {
  switch (role) {
    case SemanticGraph::Role::Input: return "input";
    case SemanticGraph::Role::Parameter: return "parameter";
    case SemanticGraph::Role::Result: return "result";
    case SemanticGraph::Role::Intermediate: break;
  }
  return "intermediate";
}

SemanticGraph semantic_graph(const Graph& graph) {
  SemanticGraph out;
  out.structure = graph.structure();
  for (const Leaf& leaf : graph.leaves) {
    const LeafOwner* owner = leaf.tensor ? leaf.tensor->owner : nullptr;
    out.values.push_back(
        {.spec = leaf.spec,
         .role = owner ? SemanticGraph::Role::Parameter : SemanticGraph::Role::Input,
         .name = owner ? std::string(owner->label()) : std::string()});
  }
  std::vector<u32> first(graph.nodes.size());  // value of each node's first output
  const auto value_of = [&](Operand o) {
    return o.is_leaf() ? o.output : first[o.node] + o.output;
  };
  for (u32 n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    SemanticGraph::Operation operation{.op = std::string(node.op->name()),
                                       .kind = node.op->info.kind,
                                       .attributes = node.attrs->values(),
                                       .target = node.target};
    for (Operand in : node.inputs) operation.inputs.push_back(value_of(in));
    first[n] = static_cast<u32>(out.values.size());
    for (const Output& o : node.outputs) {
      operation.outputs.push_back(static_cast<u32>(out.values.size()));
      out.values.push_back(
          {.spec = o.spec,
           .role = o.holder ? SemanticGraph::Role::Result : SemanticGraph::Role::Intermediate,
           .producer = n});
    }
    out.operations.push_back(std::move(operation));
  }
  return out;
}

}  // namespace oa::graph
