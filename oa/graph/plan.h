// What the compile stages build from a graph: groups of fused nodes, then launches of kernels.
#pragma once

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "oa/core/precision.h"
#include "oa/graph/graph.h"
#include "oa/kernel/ir.h"

namespace oa::graph {

// Nodes that run as one kernel (or, for Kernel ops and some products, a few in a row).
struct Group {
  enum class Kind : u8 {
    Pointwise,  // every output has as many elements as the domain
    Reduce,     // reductions of the domain over `axes`, with what goes in and what follows
    Contract,   // one product with what follows; the domain is the product's result
    Kernel,     // one op that brings its own kernels
  };
  Kind kind = Kind::Pointwise;
  Shape domain;
  std::vector<u32> axes;         // Reduce: reduced axes of the domain, ascending
  std::vector<u32> nodes;        // members, in graph order
  std::vector<Operand> outputs;  // members' values that must reach memory, in graph order
};

// How a product of two operands is computed: decided by the precision stage.
struct ProductPrecision {
  u32 node = 0;
  DType operands = DType::F32;
  Precision asked = Precision::F32, computed = Precision::F32;
  std::string how;  // for people
};

// One kernel parameter.
struct ArgRef {
  enum class Kind : u8 {
    Value,      // address of a stored operand
    Temp,       // address of a temporary of the plan
    Scalar,     // a runtime scalar, as the kernel::Scalar in `immediate`
    Status,     // address of the status words of checked indices
    CheckBase,  // first check code of this launch
    Immediate,  // the 8 bytes themselves
  };
  Kind kind = Kind::Immediate;
  Operand operand;
  u32 temp = 0;
  u32 scalar = 0;  // of Graph::scalars
  u64 immediate = 0;
  bool write = false;
  bool part = false;  // of memory whose parts belong to one launch each, of launches that say so

  static ArgRef value(Operand o, bool write = false) {
    return {.kind = Kind::Value, .operand = o, .write = write};
  }
  static ArgRef temporary(u32 t, bool write = false) {
    return {.kind = Kind::Temp, .temp = t, .write = write};
  }
  static ArgRef number(u64 bits) { return {.kind = Kind::Immediate, .immediate = bits}; }
};

struct Launch {
  struct InPlace {
    Operand operand;
    u32 instance = 0;  // of a merged launch: only this one reads it so
  };

  kernel::Kernel kernel;
  u32 groups = 0;
  std::vector<ArgRef> args;
  std::vector<u32> checks;  // nodes whose checks this launch makes; code = base + position
  // Stored operands that are read only at the position that the same lane then writes: their memory
  // may become the memory of an output of equal size.
  std::vector<InPlace> in_place;
  f64 flops = 0;
  // One workgroup's work does not depend on the number of workgroups, and the kernel has no
  // workgroup memory: launches of this kernel may run side by side as one.
  bool mergeable = false;
  // Merged launches that run side by side: their arguments stand one behind the other, before one
  // number for each but the first.
  u32 instances = 1;
  u32 instance_of(size_t arg) const {
    return static_cast<u32>(arg / ((args.size() - (instances - 1)) / instances));
  }
  // Appends what the kernel made parameters of to the arguments.
  void pass_extents() {
    for (const u64 e : kernel.extents) args.push_back(ArgRef::number(e));
    kernel.extents.clear();
  }
  std::string label;       // for the profiler: names of the fused ops
  std::string choice;      // why this kernel, for people
  std::string trial;       // how long it and others took when they were tried, if they were
  std::vector<u32> parts;  // positions of the groups whose work this is; none: a copy
};

struct Temp {
  u64 bytes = 0;
};

// Everything that the lowering of groups adds to.
struct Launches {
  std::vector<Launch> list;
  std::vector<Temp> temps;
  u32 add_temp(u64 bytes) {
    temps.push_back({bytes});
    return static_cast<u32>(temps.size() - 1);
  }
};

// Tries kernels that compute the same, bit for bit, on the device at hand.
class KernelTrials {
 public:
  virtual ~KernelTrials() = default;
  // The fastest of the candidates, each a launch that may use `temps`. The answer is kept under the
  // key, which must name everything that the kernels depend on, and is not looked for again.
  virtual u32 fastest(const Hash128& key, std::span<const Temp> temps,
                      std::span<const std::function<Launch()>> candidates) = 0;
};

// What the lowering of one group may look at.
struct LowerInput {
  const Graph& graph;
  const Group& group;
  const kernel::Target& target;
  const std::vector<std::vector<bool>>& stored;     // [node][output]
  std::span<const ProductPrecision> products = {};  // by node, ascending
  KernelTrials* trials = nullptr;                   // none: kernels are chosen by rules
  Precision precision_of(u32 product) const {
    const auto it = std::ranges::lower_bound(products, product, {}, &ProductPrecision::node);
    return it != products.end() && it->node == product ? it->computed : Precision::F32;
  }
  bool is_stored(Operand o) const { return o.is_leaf() || stored[o.node][o.output]; }
};

// Rough arithmetic of a group per element of its domain.
f64 cost_per_element(const Graph& graph, const Group& group);

// "exp+add+sum": the ops of a group, for people.
std::string group_label(const Graph& graph, const Group& group);

// Kernel generators, one file each in codegen/. They throw NotFusible when the group cannot run as
// planned.
void lower_pointwise(const LowerInput& in, Launches& out);
void lower_reduce(const LowerInput& in, Launches& out);
void lower_contract(const LowerInput& in, Launches& out);
void lower_kernel(const LowerInput& in, Launches& out);

// Joins launches of the same kernel that do not depend on each other into one dispatch each, such
// as the updates of all parameters of a model.
void merge_launches(Launches& launches);

// Elements of a domain per position along `axes`: the number of results of a reduction over them.
i64 kept_elements(const Shape& domain, const std::vector<u32>& axes);

// True if the rows of a reduction are few and long, so that they are cut into slices with partial
// results, which only row-wise work may follow.
bool is_split_reduction(const kernel::Target& target, const Shape& domain,
                        const std::vector<u32>& axes);

}  // namespace oa::graph
