// What the lower function of a Kernel op sees: its operands in memory, and launches of its kernels.
#pragma once

#include "oa/graph/emit.h"
#include "oa/graph/plan.h"

namespace oa::graph {

// The operand whose memory holds the elements of `o`: reshapes share it.
Operand resolve_reshapes(const Graph& graph, Operand o);

class Lower {
 public:
  Lower(const LowerInput& in, Launches& out)
      : in_(in), out_(out), node_id_(in.group.nodes[0]), node_(in.graph.nodes[node_id_]) {}

  u32 count() const { return static_cast<u32>(node_.inputs.size()); }
  const Spec& in(u32 i) const { return in_.graph.spec(node_.inputs[i]); }
  const Spec& out(u32 i = 0) const { return node_.outputs[i].spec; }
  const kernel::Target& target() const { return in_.target; }

  ArgRef input(u32 i) const { return ArgRef::value(resolve_reshapes(in_.graph, node_.inputs[i])); }
  ArgRef output(u32 i = 0) const { return ArgRef::value({node_id_, i}, true); }
  // The k-th Scalar attribute as a parameter of type F32, F64 (its bits), I32 or U32.
  ArgRef scalar(u32 k, kernel::Scalar type = kernel::Scalar::F32) const {
    return {.kind = ArgRef::Kind::Scalar,
            .scalar = node_.first_scalar + k,
            .immediate = static_cast<u64>(type)};
  }
  // Memory of the launches of this op, for reading and writing.
  ArgRef temp(u64 bytes) { return ArgRef::temporary(out_.add_temp(bytes), true); }

  // Why the launches from here on are as they are, for people: which variant, how it is cut.
  void explain(std::string why) { choice_ = std::move(why); }

  // Appends a launch. Arguments are the kernel's parameters in order; memory that a launch writes
  // must be passed with write set.
  void launch(kernel::Kernel kernel, i64 groups, std::vector<ArgRef> args, f64 flops = 0);
  // The same for a kernel as Launch::mergeable asks for.
  void launch_mergeable(kernel::Kernel kernel, i64 groups, std::vector<ArgRef> args,
                        f64 flops = 0) {
    launch(std::move(kernel), groups, std::move(args), flops);
    out_.list.back().mergeable = true;
  }

  // Two parameters for checked indices, to be passed as the last two: status words and first code.
  // A kernel reports with report_index below.
  void launch_checked(kernel::Kernel kernel, i64 groups, std::vector<ArgRef> args, f64 flops = 0);

 private:
  const LowerInput& in_;
  Launches& out_;
  u32 node_id_;
  const Node& node_;
  std::string choice_ = "the op's own kernel";
};

// In a kernel: where `bad` holds, records `code` with a row and a value, unless a failure is
// recorded already. The next synchronisation raises OutOfRange.
void report_index(const kernel::Buffer& status, const kernel::Value& code, const kernel::Value& bad,
                  const kernel::Value& row, const kernel::Value& value);

}  // namespace oa::graph
