#include "oa/graph/codegen/loops.h"

#include <algorithm>

namespace oa::graph {

using kernel::Value;

i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

Nest make_nest(Evaluator& evaluator, const kernel::Target& target, const Shape& domain,
               const std::vector<u32>& roles, const std::function<void(Point&)>& evaluate) {
  Nest nest{.domain = domain, .role = roles};
  for (;;) {
    try {
      evaluator.set_domain(nest.domain);
      evaluator.begin_dry_run();
      kernel::trace("dry run", target, target.width, [&] {
        Point point;
        for (u32 i = 0; i < nest.domain.rank(); ++i) point.coords.push_back(kernel::param_u32());
        evaluate(point);
      });
      nest.needs = evaluator.end_dry_run();
      break;
    } catch (const SplitDomain& split) {
      evaluator.end_dry_run();
      const i64 extent = nest.domain[split.axis];
      OA_CHECK(split.inner > 1 && split.inner < extent && extent % split.inner == 0);
      nest.domain[split.axis] = extent / split.inner;
      nest.domain.insert(split.axis + 1, split.inner);
      nest.role.insert(nest.role.begin() + split.axis, nest.role[split.axis]);
    }
  }
  // Loop axes: an axis joins its outer neighbour if no index expression tells them apart.
  i64 largest = nest.domain.elements();
  for (const AffineExpr& e : nest.needs.expressions) {
    largest = std::max(largest, e.max(nest.domain));
  }
  nest.index_type = largest < (1ll << 31) ? kernel::Scalar::U32 : kernel::Scalar::U64;
  for (u32 axis = 0; axis < nest.domain.rank(); ++axis) {
    const i64 extent = nest.domain[axis];
    bool joins = !nest.inner.empty() && nest.loop_role.back() == nest.role[axis];
    if (joins) {
      const u32 outer = nest.inner.back();
      for (const AffineExpr& e : nest.needs.expressions) {
        joins = joins &&
                (nest.extent.back() == 1 || extent == 1 || e.coef[outer] == e.coef[axis] * extent);
      }
      // An axis of one step says nothing about its neighbour's stride; keep the one that moves.
      if (joins && extent == 1) {
        nest.extent.back() *= extent;
        continue;
      }
    }
    if (joins) {
      nest.inner.back() = axis;
      nest.extent.back() *= extent;
    } else {
      nest.inner.push_back(axis);
      nest.extent.push_back(extent);
      nest.loop_role.push_back(nest.role[axis]);
    }
  }
  evaluator.set_loops(nest.inner);
  return nest;
}

void unflatten_loops(const Nest& nest, size_t first, size_t last, const Value& flat,
                     std::vector<Value>& coords) {
  Value rest = flat;
  for (size_t i = last; i-- > first;) {
    if (i == first) {
      coords[i] = rest;
    } else if (nest.extent[i] == 1) {
      coords[i] = kernel::constant_int(nest.index_type, 0);
    } else {
      coords[i] = rest % kernel::constant_int(nest.index_type, nest.extent[i]);
      rest = rest / kernel::constant_int(nest.index_type, nest.extent[i]);
    }
  }
}

void add_need_args(const LowerInput&, const Needs& needs, Launch& launch) {
  for (Operand operand : needs.buffers) launch.args.push_back(ArgRef::value(operand));
  for (const auto& [scalar, type] : needs.scalars) {
    launch.args.push_back(
        {.kind = ArgRef::Kind::Scalar, .scalar = scalar, .immediate = static_cast<u64>(type)});
  }
  if (!needs.checks.empty()) {
    launch.args.push_back({.kind = ArgRef::Kind::Status});
    launch.args.push_back({.kind = ArgRef::Kind::CheckBase});
  }
  launch.checks = needs.checks;
}

u32 group_count(const LowerInput& in, i64 groups) {
  if (groups > 0xffffffffll) {
    fail(ErrorKind::ResourceExhausted, group_label(in.graph, in.group),
         "too many workgroups, got {}, expected fewer than 2^32", groups);
  }
  return static_cast<u32>(groups);
}

AffineMap output_map(const Shape& output, const Shape& domain, std::span<const u32> domain_axes) {
  AffineExpr flat = AffineMap::constant(0, domain.rank());
  i64 stride = 1;
  for (size_t i = domain_axes.size(); i-- > 0;) {
    if (domain[domain_axes[i]] != 1) flat.coef[domain_axes[i]] = stride;
    stride *= domain[domain_axes[i]];
  }
  auto map = unflatten(flat, output, domain);
  OA_CHECK(map.has_value());  // fusion joins only values that share a loop nest
  return *std::move(map);
}

f64 cost_per_element(const Graph& graph, const Group& group) {
  f64 cost = 2;  // a load and a store
  for (u32 n : group.nodes) cost += static_cast<f64>(graph.nodes[n].op->info.cost);
  return cost;
}

std::string group_label(const Graph& graph, const Group& group) {
  std::string label;
  for (u32 n : group.nodes) {
    if (!label.empty()) label += '+';
    label += graph.nodes[n].op->name();
    if (label.size() > 100) return label + "+...";
  }
  return label;
}

}  // namespace oa::graph
