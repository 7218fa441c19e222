// What the kernel generators share: refining and joining the axes of a domain, loops over spans of
// positions, and the parameters of the launch.
#pragma once

#include <functional>

#include "oa/graph/emit.h"
#include "oa/graph/plan.h"

namespace oa::graph {

// A domain cut as finely as its index maps need, its loop axes, and the needs of the kernel.
struct Nest {
  Shape domain;                // refined
  std::vector<u32> role;       // per domain axis: the caller's tag, kept by splits
  std::vector<u32> inner;      // per loop axis: its innermost domain axis
  std::vector<i64> extent;     // per loop axis
  std::vector<u32> loop_role;  // per loop axis
  Needs needs;
  kernel::Scalar index_type = kernel::Scalar::U32;
};

// Runs `evaluate` dry over a point of the domain (with one coordinate per axis) until no map asks
// for a finer domain, then joins neighbouring axes of equal role that every index expression
// crosses as one.
Nest make_nest(Evaluator& evaluator, const kernel::Target& target, const Shape& domain,
               const std::vector<u32>& roles, const std::function<void(Point&)>& evaluate);

// Coordinates of position `flat` among loop axes [first, last), written into coords.
void unflatten_loops(const Nest& nest, size_t first, size_t last, const kernel::Value& flat,
                     std::vector<kernel::Value>& coords);

i64 ceil_div(i64 a, i64 b);

// Launch arguments of the needs, in the order in which Evaluator::declare made the parameters.
void add_need_args(const LowerInput& in, const Needs& needs, Launch& launch);

// Number of groups as the device takes it; throws ResourceExhausted past 2^32 - 1.
u32 group_count(const LowerInput& in, i64 groups);

// The map of an output that has the domain's elements in row-major order.
AffineMap output_map(const Shape& output, const Shape& domain, std::span<const u32> domain_axes);

}  // namespace oa::graph
