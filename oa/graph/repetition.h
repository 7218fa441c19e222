// Whether two recordings of a step are the same work on the same values, so that one of them may be
// replayed for the other. What differs between them (a number of the host, an operand, an
// operation) would be frozen by a capture.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "oa/graph/graph.h"

namespace oa::graph {

// What one recording did. Holds no values.
class Repetition {
 public:
  // A number for a storage that is the same in every recording; its serial is one.
  using NameOf = std::function<u64(const Storage&)>;

  Repetition() = default;
  Repetition(const Graph& graph, const NameOf& name_of);

  bool empty() const { return nodes_.empty(); }
  struct Difference {
    std::string op, message;
  };
  // What differs in `now`, the recording that `graph` has; empty if it repeats this one.
  std::optional<Difference> difference(const Repetition& now, const Graph& graph) const;

 private:
  struct Step {
    const OpDef* op;
    Hash128 hash;  // of the op, its attributes, operands and target
  };
  std::vector<Step> nodes_;
  std::vector<f64> scalars_;
  std::vector<u64> leaves_;
};

// The first node that reads or writes the leaf, and which of its operands the leaf is.
struct LeafUse {
  const OpDef* op = nullptr;
  u32 operand = 0;
};
LeafUse first_use(const Graph& graph, u32 leaf);

}  // namespace oa::graph
