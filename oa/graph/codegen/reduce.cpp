// Kernels of reduction groups: reductions of one domain over the same axes, the pointwise work that
// goes into them, and what follows, per row or per element.
//
// A row is everything that shares its coordinates on the kept axes. Reductions of a row run in
// passes: pass k computes those that depend on results of pass k-1; a last pass stores per-element
// results. Where the last loop axis is reduced, the lanes of a workgroup share a row (short rows
// stay in registers); where it is kept, each lane owns a row. Few long rows are cut into slices
// whose partial states a second kernel merges.
#include <algorithm>

#include "oa/graph/codegen/reduce_kernel.h"
#include "oa/graph/codegen/reduce_slices.h"

namespace oa::graph {

ReduceKernel::ReduceKernel(const LowerInput& in)
    : in_(in), evaluator_(in.graph, [&](Operand o) { return in.is_stored(o) && !member(o); }) {
  find_levels();
  std::vector<u32> roles(in.group.domain.rank(), kKept);
  for (u32 a : in.group.axes) roles[a] = kReduced;
  split_ = is_split_reduction(in.target, in.group.domain, in.group.axes);
  nest_ = make_nest(evaluator_, in.target, in.group.domain, roles, [&](Point& p) { dry(p); });
  for (size_t i = 0; i < nest_.extent.size(); ++i) {
    (nest_.loop_role[i] == kReduced ? reduced_ : kept_).push_back(i);
  }
  rows_ = product(kept_);
  count_ = product(reduced_);
  // Lanes share a row unless the innermost loop axis that moves is a kept one.
  size_t last = nest_.extent.size() - 1;
  while (last > 0 && nest_.extent[last] == 1) --last;
  shared_row_ = nest_.loop_role[last] == kReduced || kept_.empty();
}

void ReduceKernel::lower(Launches& out) {
  if (split_) {
    lower_split(out);
    return;
  }
  Launch launch;
  launch.label = group_label(in_.graph, in_.group);
  launch.flops =
      cost_per_element(in_.graph, in_.group) * static_cast<f64>(in_.group.domain.elements());
  add_need_args(in_, nest_.needs, launch);
  for (Operand o : in_.group.outputs) launch.args.push_back(ArgRef::value(o, true));
  find_in_place(launch);
  if (shared_row_) {
    trace_shared_rows(launch);
  } else {
    trace_lane_rows(launch);
  }
  launch.choice = fmt::format(
      "{} over {} rows of {} elements; {}",
      levels_.size() <= 1 ? std::string("one pass")
                          : fmt::format("{} passes, each needs the last", levels_.size()),
      rows_, count_,
      shared_row_ ? "the lanes share a row, which lies together in memory"
                  : "a lane has a row of its own, since neighbours in memory belong to other rows");
  out.list.push_back(std::move(launch));
}

void ReduceKernel::find_levels() {
  std::set<std::pair<u32, u32>> bound;
  std::map<u32, u32> level;  // of every member: passes needed before it is known
  std::vector<std::vector<Reduction>> levels;
  for (u32 n : in_.group.nodes) {
    const Node& node = in_.graph.nodes[n];
    u32 before = 0;
    for (Operand i : node.inputs) {
      if (!i.is_leaf() && level.contains(i.node)) before = std::max(before, level[i.node]);
    }
    level[n] = before;
    if (node.op->info.kind != OpKind::Reduction) continue;
    level[n] = before + 1;
    const Spec* spec = &in_.graph.spec(node.inputs[0]);
    const Infer infer(node.op->name(), std::span(&spec, 1));
    Reduction r{.node = n,
                .reducer = node.op->reduce(infer, node.attr()).reducer,
                .input = node.inputs[0],
                .in = value_scalar(spec->dtype),
                .out = value_scalar(node.outputs[0].spec.dtype)};
    kernel::trace("state", in_.target, in_.target.width, [&] {
      for (const Value& v : r.reducer->init(r.in)) r.state.push_back(v.scalar());
    });
    if (levels.size() <= before) levels.resize(before + 1);
    levels[before].push_back(r);
    bound.insert({n, 0});
  }
  levels_ = std::move(levels);
  evaluator_.set_bound(std::move(bound));
  // An output with as many elements as the domain is stored per element, the others per row.
  const i64 all = in_.group.domain.elements();
  const i64 rows = kept_elements(in_.group.domain, in_.group.axes);
  for (Operand o : in_.group.outputs) {
    const bool per_row = in_.graph.nodes[o.node].op->info.kind == OpKind::Reduction ||
                         in_.graph.spec(o).shape.elements() != all || all == rows;
    (per_row ? row_outputs_ : full_outputs_).push_back(o);
  }
}

std::vector<u32> ReduceKernel::axes_of(u32 role) const {
  std::vector<u32> axes;
  for (u32 i = 0; i < evaluator_.domain().rank(); ++i) {
    // Roles are read from the nest under construction during the dry run.
    if (nest_role(i) == role) axes.push_back(i);
  }
  return axes;
}

AffineExpr ReduceKernel::flat_over(const std::vector<u32>& axes) const {
  AffineExpr flat = AffineMap::constant(0, evaluator_.domain().rank());
  i64 stride = 1;
  for (size_t i = axes.size(); i-- > 0;) {
    if (evaluator_.domain()[axes[i]] != 1) flat.coef[axes[i]] = stride;
    stride *= evaluator_.domain()[axes[i]];
  }
  return flat;
}

void ReduceKernel::set_coords(const std::vector<size_t>& loops, const Value& flat,
                              std::vector<Value>& coords) const {
  Value rest = flat;
  for (size_t k = loops.size(); k-- > 0;) {
    const i64 extent = nest_.extent[loops[k]];
    if (k == 0) {
      coords[loops[k]] = rest;
    } else if (extent == 1) {
      coords[loops[k]] = index(0);
    } else {
      coords[loops[k]] = rest % index(extent);
      rest = rest / index(extent);
    }
  }
}

void ReduceKernel::dry(Point& p) {
  // Roles follow the refinement: a split axis keeps its role, and the axes of the group's domain
  // are the same elements, so they are found again by walking both shapes.
  roles_now_ = refine_roles();
  if (split_) {
    for (Operand o : full_outputs_) before_reductions(o, p);
  }
  for (const auto& level : levels_) {
    for (const Reduction& r : level) evaluator_.value(r.input, full_map(r.input), p);
    for (const Reduction& r : level) {
      const Operand o{r.node, 0};
      evaluator_.bind(o, row_map(o), p, kernel::constant(r.out, 1));
    }
  }
  if (!split_) {
    for (Operand o : full_outputs_) evaluator_.value(o, full_map(o), p);
  }
  for (Operand o : row_outputs_) evaluator_.value(o, row_map(o), p);
  evaluator_.affine(full_position(), p);
  evaluator_.affine(row_position(), p);
  evaluator_.affine(flat_over(axes_of(kReduced)), p);
  roles_now_.clear();
}

void ReduceKernel::before_reductions(Operand o, Point& p) {
  try {
    evaluator_.value(o, full_map(o), p);
  } catch (const NotFusible&) {
    throw NotFusible{o};
  }
}

std::vector<u32> ReduceKernel::refine_roles() const {
  std::vector<u32> roles;
  const Shape& fine = evaluator_.domain();
  u32 axis = 0;
  for (u32 coarse = 0; coarse < in_.group.domain.rank(); ++coarse) {
    const bool reduced =
        std::find(in_.group.axes.begin(), in_.group.axes.end(), coarse) != in_.group.axes.end();
    i64 left = in_.group.domain[coarse];
    do {
      roles.push_back(reduced ? kReduced : kKept);
      left /= std::max<i64>(1, fine[axis++]);
    } while (left > 1);
  }
  return roles;
}

void ReduceKernel::find_in_place(Launch& launch) const {
  // Lanes of a GPU past the last column read it too, perhaps after it was replaced.
  if (!shared_row_ && !in_.target.is_cpu() && columns() % column_lanes() != 0) return;
  const AffineExpr here = full_position();
  for (Operand o : nest_.needs.buffers) {
    if (in_.graph.spec(o).shape.elements() == in_.group.domain.elements() &&
        !full_outputs_.empty() && nest_.needs.only_at(o, here)) {
      launch.in_place.push_back({o});
    }
  }
}

void ReduceKernel::declare() {
  evaluator_.declare(nest_.needs, nest_.index_type);
  outputs_.clear();
  for (Operand o : in_.group.outputs) {
    outputs_.emplace(std::pair(o.node, o.output),
                     kernel::param_buffer(element_scalar(in_.graph.spec(o).dtype)));
  }
}

void ReduceKernel::bind_results(const std::vector<Reduction>& level,
                                const std::vector<std::vector<Value>>& totals, Point& row) {
  for (size_t i = 0; i < level.size(); ++i) {
    const Reduction& r = level[i];
    const Operand o{r.node, 0};
    evaluator_.bind(o, row_map(o), row, r.reducer->finish(totals[i], count_, r.out));
  }
}

void ReduceKernel::store_rows(Point& row) {
  if (row_outputs_.empty()) return;
  std::vector<Value> values;
  for (Operand o : row_outputs_) values.push_back(evaluator_.value(o, row_map(o), row));
  const Value at = evaluator_.affine(row_position(), row);
  for (size_t i = 0; i < values.size(); ++i) output(row_outputs_[i]).store(at, values[i]);
}

Point ReduceKernel::along(Point& row, const Value& q) const {
  Point p;
  p.coords = row.coords;
  set_coords(reduced_, q, p.coords);
  p.outer = &row;
  return p;
}

ReduceKernel::Chains ReduceKernel::make_chains(const std::vector<Reduction>& level) const {
  Chains chains(level.size());
  for (size_t i = 0; i < level.size(); ++i) {
    for (u32 c = 0; c < kChains; ++c) chains[i].push_back(make_state(level[i]));
  }
  return chains;
}

std::vector<std::vector<Value>> ReduceKernel::merged(const std::vector<Reduction>& level,
                                                     const Chains& chains) {
  std::vector<std::vector<Value>> totals;
  for (size_t i = 0; i < level.size(); ++i) {
    std::vector<Value> total = get(chains[i][0]);
    for (u32 c = 1; c < kChains; ++c) total = level[i].reducer->merge(total, get(chains[i][c]));
    totals.push_back(std::move(total));
  }
  return totals;
}

void lower_reduce(const LowerInput& in, Launches& out) { ReduceKernel(in).lower(out); }

}  // namespace oa::graph
