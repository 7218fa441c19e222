#include "oa/graph/lower.h"

#include "oa/graph/codegen/loops.h"
#include "oa/graph/reshape.h"

namespace oa::graph {

using kernel::Value;

Operand resolve_reshapes(const Graph& graph, Operand o) {
  while (!o.is_leaf() && graph.nodes[o.node].op == &op_def<Reshape>()) {
    o = graph.nodes[o.node].inputs[0];
  }
  return o;
}

void Lower::launch(kernel::Kernel kernel, i64 groups, std::vector<ArgRef> args, f64 flops) {
  Launch l;
  l.kernel = std::move(kernel);
  l.groups = group_count(in_, groups);
  l.args = std::move(args);
  l.flops = flops;
  l.label = std::string(node_.op->name());
  l.choice = choice_;
  out_.list.push_back(std::move(l));
}

void Lower::launch_checked(kernel::Kernel kernel, i64 groups, std::vector<ArgRef> args, f64 flops) {
  args.push_back({.kind = ArgRef::Kind::Status});
  args.push_back({.kind = ArgRef::Kind::CheckBase});
  launch(std::move(kernel), groups, std::move(args), flops);
  out_.list.back().checks = {node_id_};
}

void lower_kernel(const LowerInput& in, Launches& out) {
  Lower lower(in, out);
  const Node& node = in.graph.nodes[in.group.nodes[0]];
  node.op->lower(lower, node.attr());
}

void report_index(const kernel::Buffer& status, const Value& code, const Value& bad,
                  const Value& row, const Value& value) {
  const auto word = [](u32 i) { return kernel::constant_int(kernel::Scalar::U32, i); };
  kernel::If(kernel::Bool(bad), [&] {
    const Value old = status.compare_exchange(word(0), word(0), code);
    kernel::If(kernel::Bool(old == word(0)), [&] {
      status.store(word(1), kernel::cast(row, kernel::Scalar::U32));
      status.store(word(2), kernel::cast(value, kernel::Scalar::U32));
    });
  });
}

}  // namespace oa::graph
