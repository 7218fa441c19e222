#include "oa/graph/repetition.h"

#include <bit>

namespace oa::graph {

Repetition::Repetition(const Graph& graph, const NameOf& name_of) {
  nodes_.reserve(graph.nodes.size());
  for (const Node& node : graph.nodes) {
    Hasher h;
    h.add(node.first_scalar);
    node.attrs->hash(h);
    h.add(node.target);
    for (const Operand& in : node.inputs) h.add(static_cast<u64>(in.node) << 32 | in.output);
    for (const Output& out : node.outputs) {
      h.add(out.spec.dtype);
      hash_field(h, out.spec.shape);
    }
    nodes_.push_back({node.op, h.finish()});
  }
  scalars_.reserve(graph.scalars.size());
  for (const Scalar& s : graph.scalars) scalars_.push_back(s.bits());
  leaves_.reserve(graph.leaves.size());
  for (const Leaf& leaf : graph.leaves) leaves_.push_back(name_of(*leaf.tensor->storage()));
}

LeafUse first_use(const Graph& graph, u32 leaf) {
  for (const Node& node : graph.nodes) {
    for (u32 i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] == Operand{kNoNode, leaf}) return {node.op, i};
    }
    if (node.target == leaf) return {node.op, 0};
  }
  return {};
}

std::optional<Repetition::Difference> Repetition::difference(const Repetition& now,
                                                             const Graph& graph) const {
  for (size_t n = 0; n < std::max(nodes_.size(), now.nodes_.size()); ++n) {
    const OpDef* before = n < nodes_.size() ? nodes_[n].op : nullptr;
    const OpDef* after = n < now.nodes_.size() ? now.nodes_[n].op : nullptr;
    if (before != after) {
      return Difference{
          std::string((after ? after : before)->name()),
          fmt::format(
              "the step records other operations each time, got {} as operation {} after {}, "
              "expected the same ones",
              after ? after->name() : "nothing", n, before ? before->name() : "nothing")};
    }
    if (nodes_[n].hash != now.nodes_[n].hash) {
      return Difference{std::string(after->name()),
                        fmt::format("operation {} has other shapes, attributes or operands each "
                                    "time the step is recorded, expected the same ones",
                                    n)};
    }
  }
  OA_CHECK(leaves_.size() == now.leaves_.size() && scalars_.size() == now.scalars_.size());
  for (u32 leaf = 0; leaf < leaves_.size(); ++leaf) {
    if (leaves_[leaf] == now.leaves_[leaf]) continue;
    const LeafUse use = first_use(graph, leaf);
    return Difference{
        std::string(use.op ? use.op->name() : "capture"),
        fmt::format(
            "operand {} is another value each time the step is recorded and a replay would use the "
            "old one, expected one value whose elements are replaced",
            use.operand)};
  }
  for (u32 n = 0; n < graph.nodes.size(); ++n) {
    const u32 first = graph.nodes[n].first_scalar;
    const size_t end =
        n + 1 < graph.nodes.size() ? graph.nodes[n + 1].first_scalar : graph.scalars.size();
    for (size_t k = first; k < end; ++k) {
      if (std::bit_cast<u64>(scalars_[k]) == std::bit_cast<u64>(now.scalars_[k])) continue;
      return Difference{
          std::string(graph.nodes[n].op->name()),
          fmt::format(
              "number {} comes from the host, differs each time the step is recorded, and a replay "
              "would repeat it, got {} after {}, expected a value in device memory",
              k - first, now.scalars_[k], scalars_[k])};
    }
  }
  return {};
}

}  // namespace oa::graph
