// Kernels of reduction groups: reductions of one domain over the same axes, the pointwise work that
// goes into them, and what follows, per row or per element.
//
// A row is everything that shares its coordinates on the kept axes. Reductions of a row run in
// passes: pass k computes those that depend on results of pass k-1; a last pass stores per-element
// results. Where the last loop axis is reduced, the lanes of a workgroup share a row (short rows
// stay in registers); where it is kept, each lane owns a row. Few long rows are cut into slices
// whose partial states a second kernel merges.
#include <algorithm>

#include "oa/graph/codegen/loops.h"
#include "oa/graph/codegen/reduce_slices.h"

namespace oa::graph {
namespace {

using kernel::Buffer;
using kernel::Value;
using kernel::VarValue;

constexpr u32 kKept = 0, kReduced = 1;
constexpr i64 kRegisterGangs = 16;        // rows up to this many gangs are unrolled
constexpr i64 kWorkgroupElements = 8192;  // CPU: elements a workgroup goes through
constexpr u32 kChains = 4;                // independent partial states of a long row

struct Reduction {
  u32 node;
  const Reducer* reducer;
  Operand input;
  kernel::Scalar in;
  kernel::Scalar out;
  std::vector<kernel::Scalar> state;
};

class ReduceKernel {
 public:
  explicit ReduceKernel(const LowerInput& in)
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

  void lower(Launches& out) {
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
    out.list.push_back(std::move(launch));
  }

 private:
  // --- What the group computes ---

  bool member(Operand o) const {
    return !o.is_leaf() &&
           std::binary_search(in_.group.nodes.begin(), in_.group.nodes.end(), o.node);
  }

  void find_levels() {
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

  i64 product(const std::vector<size_t>& loops) const {
    i64 n = 1;
    for (size_t i : loops) n *= nest_.extent[i];
    return n;
  }

  // --- Coordinates ---

  std::vector<u32> axes_of(u32 role) const {
    std::vector<u32> axes;
    for (u32 i = 0; i < evaluator_.domain().rank(); ++i) {
      // Roles are read from the nest under construction during the dry run.
      if (nest_role(i) == role) axes.push_back(i);
    }
    return axes;
  }

  u32 nest_role(u32 axis) const { return roles_now_.empty() ? nest_.role[axis] : roles_now_[axis]; }

  std::vector<u32> all_axes() const {
    std::vector<u32> axes(evaluator_.domain().rank());
    for (u32 i = 0; i < axes.size(); ++i) axes[i] = i;
    return axes;
  }

  AffineMap full_map(Operand o) const {
    return output_map(in_.graph.spec(o).shape, evaluator_.domain(), all_axes());
  }
  AffineMap row_map(Operand o) const {
    return output_map(in_.graph.spec(o).shape, evaluator_.domain(), axes_of(kKept));
  }
  AffineExpr flat_over(const std::vector<u32>& axes) const {
    AffineExpr flat = AffineMap::constant(0, evaluator_.domain().rank());
    i64 stride = 1;
    for (size_t i = axes.size(); i-- > 0;) {
      if (evaluator_.domain()[axes[i]] != 1) flat.coef[axes[i]] = stride;
      stride *= evaluator_.domain()[axes[i]];
    }
    return flat;
  }
  AffineExpr full_position() const { return flat_over(all_axes()); }
  AffineExpr row_position() const { return flat_over(axes_of(kKept)); }

  Value index(i64 x) const { return kernel::constant_int(nest_.index_type, x); }
  Value lane_index() const { return kernel::cast(kernel::lane(), nest_.index_type); }

  void set_coords(const std::vector<size_t>& loops, const Value& flat,
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

  // --- Dry run ---

  void dry(Point& p) {
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

  // What slices store per element needs no result of the whole row.
  void before_reductions(Operand o, Point& p) {
    try {
      evaluator_.value(o, full_map(o), p);
    } catch (const NotFusible&) {
      throw NotFusible{o};
    }
  }

  std::vector<u32> refine_roles() const {
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

  void find_in_place(Launch& launch) const {
    const AffineExpr here = full_position();
    for (Operand o : nest_.needs.buffers) {
      if (in_.graph.spec(o).shape.elements() == in_.group.domain.elements() &&
          !full_outputs_.empty() && nest_.needs.only_at(o, here)) {
        launch.in_place.push_back(o);
      }
    }
  }

  void declare() {
    evaluator_.declare(nest_.needs, nest_.index_type);
    outputs_.clear();
    for (Operand o : in_.group.outputs) {
      outputs_.emplace(std::pair(o.node, o.output),
                       kernel::param_buffer(element_scalar(in_.graph.spec(o).dtype)));
    }
  }

  bool is_full(Operand o) const {
    return std::find(full_outputs_.begin(), full_outputs_.end(), o) != full_outputs_.end();
  }

  const Buffer& output(Operand o) const { return outputs_.at({o.node, o.output}); }

  // --- States ---

  using State = std::vector<VarValue>;

  State make_state(const Reduction& r) const {
    State state;
    for (const Value& v : r.reducer->init(r.in)) state.emplace_back(v);
    return state;
  }
  void reset(const Reduction& r, const State& state) const {
    const std::vector<Value> v = r.reducer->init(r.in);
    for (size_t i = 0; i < state.size(); ++i) state[i].set(v[i]);
  }
  static std::vector<Value> get(const State& state) {
    std::vector<Value> v;
    for (const VarValue& s : state) v.push_back(s.get());
    return v;
  }
  static void set(const State& state, std::span<const Value> v) {
    for (size_t i = 0; i < state.size(); ++i) state[i].set(v[i]);
  }

  Value position(const Value& along_row) const {
    return kernel::cast(along_row, kernel::Scalar::U32);
  }

  std::vector<Value> step(const Reduction& r, std::span<const Value> state, Point& p,
                          const Value& along_row) {
    const Value x = evaluator_.value(r.input, full_map(r.input), p);
    return r.reducer->step(state, x, position(along_row));
  }

  void bind_results(const std::vector<Reduction>& level,
                    const std::vector<std::vector<Value>>& totals, Point& row) {
    for (size_t i = 0; i < level.size(); ++i) {
      const Reduction& r = level[i];
      const Operand o{r.node, 0};
      evaluator_.bind(o, row_map(o), row, r.reducer->finish(totals[i], count_, r.out));
    }
  }

  void store_full(Point& p) {
    std::vector<Value> values;
    for (Operand o : full_outputs_) values.push_back(evaluator_.value(o, full_map(o), p));
    const Value at = evaluator_.affine(full_position(), p);
    for (size_t i = 0; i < values.size(); ++i) output(full_outputs_[i]).store(at, values[i]);
  }

  void store_rows(Point& row) {
    if (row_outputs_.empty()) return;
    std::vector<Value> values;
    for (Operand o : row_outputs_) values.push_back(evaluator_.value(o, row_map(o), row));
    const Value at = evaluator_.affine(row_position(), row);
    for (size_t i = 0; i < values.size(); ++i) output(row_outputs_[i]).store(at, values[i]);
  }

  // --- Lanes share a row ---

  Point at_row(const Value& r) const {
    Point row;
    row.coords.resize(nest_.extent.size());
    set_coords(kept_, r, row.coords);
    return row;
  }
  Point along(Point& row, const Value& q) const {
    Point p;
    p.coords = row.coords;
    set_coords(reduced_, q, p.coords);
    p.outer = &row;
    return p;
  }

  u32 row_width() const {
    if (in_.target.is_cpu()) return in_.target.width;
    // Where rows fill the device, a lane takes several elements: workgroups wait for each other
    // less.
    const i64 each = rows_ >= in_.target.threads ? 8 : 1;
    u32 w = in_.target.subgroup;
    while (w < in_.target.width && w * each < count_) w *= 2;
    return w;
  }

  void trace_shared_rows(Launch& launch) {
    const u32 width = row_width();
    const i64 per_group =
        in_.target.is_cpu() ? std::max<i64>(1, kWorkgroupElements / std::max<i64>(1, count_)) : 1;
    launch.groups = group_count(in_, ceil_div(rows_, per_group));
    // The number of rows is a runtime value where it is one loop axis: one kernel serves any batch.
    const bool any_rows = kept_.size() <= 1 && per_group > 1;
    if (any_rows) launch.args.push_back(ArgRef::number(static_cast<u64>(rows_)));
    launch.kernel = kernel::trace("reduce", in_.target, width, [&] {
      declare();
      const Value rows =
          any_rows ? kernel::cast(kernel::param_u64(), nest_.index_type) : index(rows_);
      const Value group = kernel::cast(kernel::group(), nest_.index_type);
      if (per_group == 1) {
        shared_row(group);
      } else {
        const Value begin = group * index(per_group);
        const Value end = rows_ % per_group == 0 && !any_rows
                              ? begin + index(per_group)
                              : kernel::min(begin + index(per_group), rows);
        kernel::For(begin, end, index(1), [&](const Value& r) { shared_row(r); });
      }
    });
  }

  void shared_row(const Value& r) {
    const i64 width = kernel::width();
    const i64 full = count_ / width;
    Point row = at_row(r);
    const Value lane = lane_index();
    // A short row is unrolled: its values stay known from pass to pass.
    const bool unrolled = full <= kRegisterGangs;
    std::vector<Point> gangs;
    if (unrolled) {
      for (i64 g = 0; g < full; ++g) gangs.push_back(along(row, lane + index(g * width)));
    }
    auto in_tail = [&](const std::function<void(Point&, const Value&)>& body) {
      if (count_ % width == 0) return;
      const Value q = lane + index(full * width);
      kernel::If(kernel::Bool(q < index(count_)), [&] {
        Point p = along(row, q);
        body(p, q);
      });
    };
    for (const auto& level : levels_) {
      std::vector<std::vector<Value>> totals;
      if (unrolled) {
        std::vector<State> tail_states;
        std::vector<std::vector<Value>> states;
        for (const Reduction& red : level) {
          std::vector<Value> s = red.reducer->init(red.in);
          for (i64 g = 0; g < full; ++g) s = step(red, s, gangs[g], lane + index(g * width));
          states.push_back(std::move(s));
        }
        if (count_ % width != 0) {
          for (size_t i = 0; i < level.size(); ++i) {
            tail_states.emplace_back();
            for (const Value& v : states[i]) tail_states.back().emplace_back(v);
          }
          in_tail([&](Point& p, const Value& q) {
            for (size_t i = 0; i < level.size(); ++i) {
              set(tail_states[i], step(level[i], get(tail_states[i]), p, q));
            }
          });
          for (size_t i = 0; i < level.size(); ++i) states[i] = get(tail_states[i]);
        }
        totals = std::move(states);
      } else {
        totals = long_row(level, row, full, in_tail);
      }
      for (size_t i = 0; i < level.size(); ++i) {
        totals[i] = kernel::group_reduce(totals[i], level[i].reducer->merge);
      }
      bind_results(level, totals, row);
    }
    if (!full_outputs_.empty()) {
      if (unrolled) {
        for (Point& p : gangs) store_full(p);
      } else {
        kernel::For(index(0), index(full), index(1), [&](const Value& it) {
          Point p = along(row, lane + it * index(width));
          store_full(p);
        });
      }
      in_tail([&](Point& p, const Value&) { store_full(p); });
    }
    if (!row_outputs_.empty()) {
      if (in_.target.is_cpu()) {
        store_rows(row);
      } else {
        kernel::If(kernel::lane() == kernel::U32(0), [&] {
          Point inside = row;
          store_rows(inside);
        });
      }
    }
  }

  // One pass over a row of `full` gangs: kChains independent states hide the latency of a step.
  std::vector<std::vector<Value>> long_row(
      const std::vector<Reduction>& level, Point& row, i64 full,
      const std::function<void(const std::function<void(Point&, const Value&)>&)>& in_tail) {
    const i64 width = kernel::width();
    const Value lane = lane_index();
    std::vector<std::vector<State>> chains(level.size());
    for (size_t i = 0; i < level.size(); ++i) {
      for (u32 c = 0; c < kChains; ++c) chains[i].push_back(make_state(level[i]));
    }
    auto gang = [&](const Value& start, u32 chain) {
      const Value q = start + lane;
      Point p = along(row, q);
      for (size_t i = 0; i < level.size(); ++i) {
        set(chains[i][chain], step(level[i], get(chains[i][chain]), p, q));
      }
    };
    const i64 rounds = full / kChains;
    kernel::For(index(0), index(rounds), index(1), [&](const Value& it) {
      const Value start = it * index(kChains * width);
      for (u32 c = 0; c < kChains; ++c) gang(start + index(c * width), c);
    });
    for (i64 g = rounds * kChains; g < full; ++g)
      gang(index(g * width), static_cast<u32>(g % kChains));
    in_tail([&](Point& p, const Value& q) {
      for (size_t i = 0; i < level.size(); ++i) {
        set(chains[i][0], step(level[i], get(chains[i][0]), p, q));
      }
    });
    std::vector<std::vector<Value>> totals;
    for (size_t i = 0; i < level.size(); ++i) {
      std::vector<Value> total = get(chains[i][0]);
      for (u32 c = 1; c < kChains; ++c) total = level[i].reducer->merge(total, get(chains[i][c]));
      totals.push_back(std::move(total));
    }
    return totals;
  }

  // --- A lane owns a row ---

  // Lanes run along the last kept loop axis; the other kept axes are uniform. A workgroup takes
  // several neighbouring gangs, so that each step reads a wide stretch of memory.
  u32 lane_width() const {
    return in_.target.is_cpu() ? in_.target.width : std::min(in_.target.width, 64u);
  }
  i64 columns() const { return nest_.extent[kept_.back()]; }
  u32 gangs() const {
    if (!in_.target.is_cpu()) return 1;
    for (u32 g = kChains; g > 1; g /= 2) {
      // Fewer gangs to a workgroup where threads would have nothing to do.
      const i64 wide = g * lane_width();
      if (columns() % wide == 0 && (split_ || rows_ / wide >= in_.target.threads)) return g;
    }
    return 1;
  }

  // The rows of the lanes in block `block` of outer position `outer`.
  std::vector<Point> lane_points(const Value& outer, const Value& block) const {
    std::vector<Point> rows;
    for (u32 g = 0; g < gangs(); ++g) {
      Point row;
      row.coords.resize(nest_.extent.size());
      set_coords({kept_.begin(), kept_.end() - 1}, outer, row.coords);
      row.coords[kept_.back()] =
          block * index(gangs() * lane_width()) + index(g * lane_width()) + lane_index();
      rows.push_back(std::move(row));
    }
    return rows;
  }

  void if_column_exists(const Point& first, const std::function<void()>& body) const {
    if (columns() % lane_width() == 0) {
      body();
    } else {
      kernel::If(kernel::Bool(first.coords[kept_.back()] < index(columns())), body);
    }
  }

  void trace_lane_rows(Launch& launch) {
    const i64 blocks = ceil_div(columns(), gangs() * lane_width());
    launch.groups = group_count(in_, rows_ / columns() * blocks);
    launch.kernel = kernel::trace("reduce_columns", in_.target, lane_width(), [&] {
      declare();
      const Value group = kernel::cast(kernel::group(), nest_.index_type);
      std::vector<Point> rows = lane_points(group / index(blocks), group % index(blocks));
      if_column_exists(rows[0], [&] { lane_rows(rows); });
    });
  }

  void lane_rows(std::vector<Point>& rows) {
    for (const auto& level : levels_) {
      const auto totals = lane_pass(level, rows, index(0), index(count_));
      for (size_t g = 0; g < rows.size(); ++g) bind_results(level, totals[g], rows[g]);
    }
    if (!full_outputs_.empty()) {
      kernel::For(index(0), index(count_), index(1), [&](const Value& q) {
        for (Point& row : rows) {
          Point p = along(row, q);
          store_full(p);
        }
      });
    }
    for (Point& row : rows) store_rows(row);
  }

  // Totals of each row over positions begin .. end.
  std::vector<std::vector<std::vector<Value>>> lane_pass(const std::vector<Reduction>& level,
                                                         std::vector<Point>& rows,
                                                         const Value& begin, const Value& end) {
    std::vector<std::vector<State>> states(rows.size());
    for (auto& of_row : states) {
      for (const Reduction& r : level) of_row.push_back(make_state(r));
    }
    kernel::For(begin, end, index(1), [&](const Value& q) {
      for (size_t g = 0; g < rows.size(); ++g) {
        Point p = along(rows[g], q);
        for (size_t i = 0; i < level.size(); ++i) {
          set(states[g][i], step(level[i], get(states[g][i]), p, q));
        }
        if (split_ && !full_outputs_.empty()) store_full(p);
      }
    });
    std::vector<std::vector<std::vector<Value>>> totals(rows.size());
    for (size_t g = 0; g < rows.size(); ++g) {
      for (const State& s : states[g]) totals[g].push_back(get(s));
    }
    return totals;
  }

  // --- Slices ---

  void lower_split(Launches& out) {
    OA_CHECK(levels_.size() == 1);
    const std::vector<Reduction>& level = levels_[0];
    // The number of slices depends on the shape alone, so results do not depend on the machine.
    const bool by_lane = in_.target.is_cpu() && !shared_row_;
    const i64 slices = by_lane ? std::min<i64>(ceil_div(count_, kLaneSlice), 64)
                               : std::min<i64>(ceil_div(count_, kSlice), 1024);
    // Partial states lie as the lanes of the merge read them.
    const auto partial_at = [&](const Value& row, const Value& s) {
      return by_lane ? s * index(rows_) + row : row * index(slices) + s;
    };
    const i64 width = in_.target.width;
    const i64 slice = ceil_div(ceil_div(count_, slices), width) * width;
    std::vector<std::vector<u32>> temps;
    for (const Reduction& r : level) {
      temps.emplace_back();
      for (kernel::Scalar s : r.state) {
        temps.back().push_back(out.add_temp(static_cast<u64>(rows_ * slices) * size_bytes(s)));
      }
    }
    const auto partial_buffers = [&] {
      std::vector<std::vector<Buffer>> buffers;
      for (const Reduction& r : level) {
        buffers.emplace_back();
        for (kernel::Scalar s : r.state) buffers.back().push_back(kernel::param_buffer(s));
      }
      return buffers;
    };

    Launch first;
    first.label = group_label(in_.graph, in_.group) + " (slices)";
    first.flops =
        cost_per_element(in_.graph, in_.group) * static_cast<f64>(in_.group.domain.elements());
    add_need_args(in_, nest_.needs, first);
    for (Operand o : in_.group.outputs) first.args.push_back(ArgRef::value(o, is_full(o)));
    for (auto& r : temps) {
      for (u32 t : r) first.args.push_back(ArgRef::temporary(t, true));
    }
    const i64 blocks = shared_row_ ? 1 : ceil_div(columns(), gangs() * lane_width());
    const i64 groups = shared_row_ ? rows_ : rows_ / columns() * blocks;  // of a slice
    first.groups = group_count(in_, groups * slices);
    const u32 first_width = shared_row_ ? in_.target.width : lane_width();
    first.kernel = kernel::trace("reduce_slices", in_.target, first_width, [&] {
      declare();
      const auto partial = partial_buffers();
      const Value group = kernel::cast(kernel::group(), nest_.index_type);
      // Lanes of a CPU go through the whole width of some memory before a thread has the next part.
      const Value s = by_lane ? group / index(groups) : group % index(slices);
      const Value r = by_lane ? group % index(groups) : group / index(slices);
      const Value begin = s * index(slice);
      const Value end = kernel::min(begin + index(slice), index(count_));
      auto store_partial = [&](const std::vector<std::vector<Value>>& totals, const Value& row) {
        const Value at = partial_at(row, s);
        for (size_t i = 0; i < level.size(); ++i) {
          for (size_t c = 0; c < totals[i].size(); ++c) partial[i][c].store(at, totals[i][c]);
        }
      };
      if (shared_row_) {
        Point row = at_row(r);
        auto totals = slice_pass(level, row, begin, end);
        for (size_t i = 0; i < level.size(); ++i) {
          totals[i] = kernel::group_reduce(totals[i], level[i].reducer->merge);
        }
        if (in_.target.is_cpu()) {
          store_partial(totals, r);
        } else {
          kernel::If(kernel::lane() == kernel::U32(0), [&] { store_partial(totals, r); });
        }
      } else {
        const Value outer = r / index(blocks);
        std::vector<Point> rows = lane_points(outer, r % index(blocks));
        if_column_exists(rows[0], [&] {
          const auto totals = lane_pass(level, rows, begin, end);
          for (size_t g = 0; g < rows.size(); ++g) {
            store_partial(totals[g], outer * index(columns()) + rows[g].coords[kept_.back()]);
          }
        });
      }
    });
    out.list.push_back(std::move(first));

    Launch second;
    second.label = group_label(in_.graph, in_.group) + " (merge)";
    add_need_args(in_, nest_.needs, second);
    for (Operand o : in_.group.outputs) second.args.push_back(ArgRef::value(o, !is_full(o)));
    for (auto& r : temps) {
      for (u32 t : r) second.args.push_back(ArgRef::temporary(t));
    }
    if (by_lane) {
      second.groups = group_count(in_, rows_ / columns() * blocks);
      second.kernel = kernel::trace("reduce_merge", in_.target, lane_width(), [&] {
        declare();
        const auto partial = partial_buffers();
        const Value group = kernel::cast(kernel::group(), nest_.index_type);
        const Value outer = group / index(blocks);
        std::vector<Point> rows = lane_points(outer, group % index(blocks));
        if_column_exists(rows[0], [&] {
          for (Point& row : rows) {
            const Value r = outer * index(columns()) + row.coords[kept_.back()];
            bind_results(level, merged_in_order(level, partial, slices, r, partial_at), row);
            store_rows(row);
          }
        });
      });
      out.list.push_back(std::move(second));
      return;
    }
    // A gang shares a row's slices; the row count is small.
    const u32 merge_width = in_.target.is_cpu() ? in_.target.width : in_.target.subgroup;
    second.groups = group_count(in_, rows_);
    second.kernel = kernel::trace("reduce_merge", in_.target, merge_width, [&] {
      declare();
      const auto partial = partial_buffers();
      const Value r = kernel::cast(kernel::group(), nest_.index_type);
      Point row = at_row(r);
      std::vector<std::vector<Value>> totals;
      for (size_t i = 0; i < level.size(); ++i) {
        const State state = make_state(level[i]);
        kernel::For(lane_index(), index(slices), index(merge_width), [&](const Value& s) {
          std::vector<Value> v;
          for (const Buffer& b : partial[i]) v.push_back(b.load(r * index(slices) + s));
          set(state, level[i].reducer->merge(get(state), v));
        });
        totals.push_back(kernel::group_reduce(get(state), level[i].reducer->merge));
      }
      bind_results(level, totals, row);
      if (in_.target.is_cpu()) {
        store_rows(row);
      } else {
        kernel::If(kernel::lane() == kernel::U32(0), [&] {
          Point inside = row;
          store_rows(inside);
        });
      }
    });
    out.list.push_back(std::move(second));
  }

  // Each lane goes through the slices of its row.
  std::vector<std::vector<Value>> merged_in_order(
      const std::vector<Reduction>& level, const std::vector<std::vector<Buffer>>& partial,
      i64 slices, const Value& row,
      const std::function<Value(const Value&, const Value&)>& partial_at) const {
    std::vector<std::vector<Value>> totals;
    for (size_t i = 0; i < level.size(); ++i) {
      const auto load = [&](const Value& s) {
        std::vector<Value> v;
        for (const Buffer& b : partial[i]) v.push_back(b.load(partial_at(row, s)));
        return v;
      };
      State state;
      for (const Value& v : load(index(0))) state.emplace_back(v);
      kernel::For(index(1), index(slices), index(1), [&](const Value& s) {
        set(state, level[i].reducer->merge(get(state), load(s)));
      });
      totals.push_back(get(state));
    }
    return totals;
  }

  // Positions begin..end of a row, shared by the lanes.
  std::vector<std::vector<Value>> slice_pass(const std::vector<Reduction>& level, Point& row,
                                             const Value& begin, const Value& end) {
    const i64 width = kernel::width();
    std::vector<std::vector<State>> chains(level.size());
    for (size_t i = 0; i < level.size(); ++i) {
      for (u32 c = 0; c < kChains; ++c) chains[i].push_back(make_state(level[i]));
    }
    auto gang = [&](const Value& q, u32 chain) {
      Point p = along(row, q);
      for (size_t i = 0; i < level.size(); ++i) {
        set(chains[i][chain], step(level[i], get(chains[i][chain]), p, q));
      }
      if (!full_outputs_.empty()) store_full(p);
    };
    const Value rounds = (end - begin) / index(kChains * width);
    kernel::For(index(0), rounds, index(1), [&](const Value& it) {
      for (u32 c = 0; c < kChains; ++c) {
        gang(begin + it * index(kChains * width) + index(c * width) + lane_index(), c);
      }
    });
    kernel::For(begin + rounds * index(kChains * width) + lane_index(), end, index(width),
                [&](const Value& q) { gang(q, 0); });
    std::vector<std::vector<Value>> totals;
    for (size_t i = 0; i < level.size(); ++i) {
      std::vector<Value> total = get(chains[i][0]);
      for (u32 c = 1; c < kChains; ++c) total = level[i].reducer->merge(total, get(chains[i][c]));
      totals.push_back(std::move(total));
    }
    return totals;
  }

  const LowerInput& in_;
  Evaluator evaluator_;
  std::vector<std::vector<Reduction>> levels_;
  std::vector<Operand> row_outputs_, full_outputs_;
  std::vector<u32> roles_now_;
  Nest nest_;
  std::vector<size_t> kept_, reduced_;  // loop axes
  i64 rows_ = 1, count_ = 1;
  bool shared_row_ = true;
  bool split_ = false;
  std::map<std::pair<u32, u32>, Buffer> outputs_;
};

}  // namespace

void lower_reduce(const LowerInput& in, Launches& out) { ReduceKernel(in).lower(out); }

}  // namespace oa::graph
