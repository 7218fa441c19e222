// One kernel of a reduction group while it is lowered; see reduce.cpp.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "oa/graph/codegen/loops.h"

namespace oa::graph {

inline constexpr u32 kKept = 0, kReduced = 1;
inline constexpr u32 kChains = 4;  // independent partial states of a long row

using kernel::Buffer;
using kernel::Value;
using kernel::VarValue;

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
  explicit ReduceKernel(const LowerInput& in);

  void lower(Launches& out);

 private:
  // --- What the group computes ---

  bool member(Operand o) const {
    return !o.is_leaf() &&
           std::binary_search(in_.group.nodes.begin(), in_.group.nodes.end(), o.node);
  }

  void find_levels();

  i64 product(const std::vector<size_t>& loops) const {
    i64 n = 1;
    for (size_t i : loops) n *= nest_.extent[i];
    return n;
  }

  // --- Coordinates ---

  std::vector<u32> axes_of(u32 role) const;

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
  AffineExpr flat_over(const std::vector<u32>& axes) const;
  AffineExpr full_position() const { return flat_over(all_axes()); }
  AffineExpr row_position() const { return flat_over(axes_of(kKept)); }

  Value index(i64 x) const { return kernel::constant_int(nest_.index_type, x); }
  // Numbers that follow from how long rows are: parameters where rows run along the outermost axis,
  // which is that of a batch.
  Value of_count(i64 x) const {
    const bool outermost = !reduced_.empty() && reduced_.front() == 0;
    return outermost ? kernel::extent(nest_.index_type, x) : index(x);
  }
  Value of_rows(i64 x) const {
    const bool outermost = !kept_.empty() && kept_.front() == 0;
    return outermost ? kernel::extent(nest_.index_type, x) : index(x);
  }
  Value lane_index() const { return kernel::cast(kernel::lane(), nest_.index_type); }

  void set_coords(const std::vector<size_t>& loops, const Value& flat,
                  std::vector<Value>& coords) const;

  // --- Dry run ---

  void dry(Point& p);

  // What slices store per element needs no result of the whole row.
  void before_reductions(Operand o, Point& p);

  std::vector<u32> refine_roles() const;

  void find_in_place(Launch& launch) const;

  void declare();

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

  // Independent states for each reduction, and their totals.
  using Chains = std::vector<std::vector<State>>;
  Chains make_chains(const std::vector<Reduction>& level) const;
  static std::vector<std::vector<Value>> merged(const std::vector<Reduction>& level,
                                                const Chains& chains);

  Value position(const Value& along_row) const {
    return kernel::cast(along_row, kernel::Scalar::U32);
  }

  std::vector<Value> step(const Reduction& r, std::span<const Value> state, Point& p,
                          const Value& along_row) {
    const Value x = evaluator_.value(r.input, full_map(r.input), p);
    return r.reducer->step(state, x, position(along_row));
  }

  void bind_results(const std::vector<Reduction>& level,
                    const std::vector<std::vector<Value>>& totals, Point& row);

  void store_full(Point& p) {
    std::vector<Value> values;
    for (Operand o : full_outputs_) values.push_back(evaluator_.value(o, full_map(o), p));
    const Value at = evaluator_.affine(full_position(), p);
    for (size_t i = 0; i < values.size(); ++i) output(full_outputs_[i]).store(at, values[i]);
  }

  void store_rows(Point& row);

  // --- Rows and places on them ---

  Point at_row(const Value& r) const {
    Point row;
    row.coords.resize(nest_.extent.size());
    set_coords(kept_, r, row.coords);
    return row;
  }
  Point along(Point& row, const Value& q) const;

  // --- Lanes share a row: reduce_rows.cpp ---

  u32 row_width() const;
  void trace_shared_rows(Launch& launch);
  struct Row {
    Point point;
    std::vector<Point> gangs;  // of a row that is unrolled
  };
  // How many short rows a workgroup of a CPU goes through at once.
  u32 rows_together() const;
  void each_row(const Value& begin, const Value& end);
  void shared_rows(const std::vector<Value>& numbers);
  // A short row is: its values stay known from pass to pass.
  bool is_unrolled() const;
  void store_elements(Row& row);
  void in_tail(Point& row, const std::function<void(Point&, const Value&)>& body);
  std::vector<std::vector<Value>> short_row(const std::vector<Reduction>& level, Row& row);
  // One pass over a row: kChains independent states hide the latency of a step.
  std::vector<std::vector<Value>> long_row(const std::vector<Reduction>& level, Point& row);

  // --- A lane owns a row: reduce_lanes.cpp ---

  // Lanes run along the last kept loop axis; the other kept axes are uniform. A workgroup of a CPU
  // takes several neighbouring gangs, so that each step reads a wide stretch of memory. On GPUs
  // several lanes of a workgroup take turns along each row.
  u32 column_lanes() const;
  u32 row_lanes() const;
  u32 lane_width() const { return column_lanes() * row_lanes(); }
  Value column_lane() const;
  Value row_lane() const;
  i64 columns() const;
  u32 gangs() const;
  i64 columns_together() const { return gangs() * column_lanes(); }  // of a workgroup
  // The rows of the lanes in block `block` of outer position `outer`. Without branches around
  // everything, lanes past the last column repeat it.
  std::vector<Point> lane_points(const Value& outer, const Value& block) const;
  // Everything a workgroup does, and what it stores: `once` by one lane of each row.
  void in_columns(const Value& block, const std::function<void()>& body);
  void storing(bool once, const std::function<void()>& body) const;
  void trace_lane_rows(Launch& launch);
  void lane_rows(std::vector<Point>& rows);
  // Totals of each row over positions begin .. end.
  std::vector<std::vector<std::vector<Value>>> lane_totals(const std::vector<Reduction>& level,
                                                           std::vector<Point>& rows,
                                                           const Value& begin, const Value& end);
  std::vector<std::vector<Value>> chained_totals(const std::vector<Reduction>& level, Point& row,
                                                 const Value& begin, const Value& end);
  std::vector<std::vector<Value>> over_row_lanes(const std::vector<Reduction>& level,
                                                 const std::vector<std::vector<Value>>& own) const;

  // --- Slices: reduce_slices.cpp ---

  void lower_split(Launches& out);
  // Each lane goes through the slices of its row.
  std::vector<std::vector<Value>> merged_in_order(
      const std::vector<Reduction>& level, const std::vector<std::vector<Buffer>>& partial,
      i64 slices, const Value& row,
      const std::function<Value(const Value&, const Value&)>& partial_at) const;
  // Positions begin..end of a row, shared by the lanes.
  std::vector<std::vector<Value>> slice_pass(const std::vector<Reduction>& level, Point& row,
                                             const Value& begin, const Value& end);

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
  std::optional<Value> column_exists_;  // while a kernel is traced whose last columns may not
};

}  // namespace oa::graph
