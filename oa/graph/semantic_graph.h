// The recorded graph as plain data: operations with meaning, in terms of values. Made before any
// rewriting, with nothing in it that differs from run to run.
#pragma once

#include <string>
#include <vector>

#include "oa/graph/graph.h"

namespace oa::graph {

std::string_view token(OpKind kind);  // "elementwise", ...

struct SemanticGraph {
  enum class Role : u8 { Input, Parameter, Intermediate, Result };
  struct Value {
    Spec spec;
    Role role = Role::Intermediate;
    std::string name;        // of a parameter; else empty
    u32 producer = kNoNode;  // operation; none of inputs and parameters
  };
  struct Operation {
    std::string op;
    OpKind kind = OpKind::Elementwise;
    std::vector<AttrValue> attributes;  // in the order of the op's fields
    std::vector<u32> inputs, outputs;   // values
    u32 target = kNoNode;               // an assignment: the value whose storage is written
  };

  // Inputs and parameters first, in the order of their first use; then results of operations.
  std::vector<Value> values;
  std::vector<Operation> operations;
  Hash128 structure;  // equal for graphs that differ in runtime scalars only
};
std::string_view token(SemanticGraph::Role role);

SemanticGraph semantic_graph(const Graph& graph);

}  // namespace oa::graph
