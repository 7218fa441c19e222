// Few long rows are cut into slices, by their shape alone, so that the order of additions does not
// depend on the machine. One kernel makes each slice's partial states, a second one merges them.
#include "oa/graph/codegen/reduce_slices.h"

#include <algorithm>

#include "oa/graph/codegen/reduce_kernel.h"

namespace oa::graph {

i64 kept_elements(const Shape& domain, const std::vector<u32>& axes) {
  i64 n = 1;
  for (u32 i = 0; i < domain.rank(); ++i) {
    if (std::find(axes.begin(), axes.end(), i) == axes.end()) n *= domain[i];
  }
  return n;
}

bool is_split_reduction(const kernel::Target& target, const Shape& domain,
                        const std::vector<u32>& axes) {
  i64 count = 1;
  for (u32 a : axes) count *= domain[a];
  const i64 rows = kept_elements(domain, axes);
  // Rows that lanes share fill the machine by themselves from 64 workgroups on.
  const bool lane_rows = !axes.empty() && axes.back() != domain.rank() - 1 && domain.back() > 1;
  const i64 workgroups = lane_rows ? ceil_div(rows, 16) : rows;
  // Threads of a CPU part what they reduce as they part what they wrote: by the outer axis.
  if (lane_rows && target.is_cpu()) return count >= 2 * kLaneSlice && workgroups < 64;
  if (lane_rows) return count >= 4 * kGpuLaneSlice && ceil_div(rows, 32) < 512;
  return count >= 4 * kSlice && workgroups < 64;
}

void ReduceKernel::lower_split(Launches& out) {
  OA_CHECK(levels_.size() == 1);
  const std::vector<Reduction>& level = levels_[0];
  // The number of slices depends on the shape alone, so results do not depend on the machine.
  const bool by_lane = !shared_row_, cpu = in_.target.is_cpu();
  i64 slices = by_lane && cpu
                   ? std::min<i64>(ceil_div(count_, kLaneSlice), 64)
                   : std::min<i64>(ceil_div(count_, by_lane ? kGpuLaneSlice : kSlice), 1024);
  // Partial states lie as the lanes of the merge read them.
  const auto partial_at = [&](const Value& row, const Value& s) {
    return by_lane ? s * of_rows(rows_) + row : row * of_count(slices) + s;
  };
  const i64 width = in_.target.width;
  const i64 slice = ceil_div(ceil_div(count_, slices), width) * width;
  slices = ceil_div(count_, slice);
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
  first.choice =
      fmt::format("{} rows of {} elements are too few and long to fill the machine: {} slices",
                  rows_, count_, slices);
  first.label = group_label(in_.graph, in_.group) + " (slices)";
  first.flops =
      cost_per_element(in_.graph, in_.group) * static_cast<f64>(in_.group.domain.elements());
  add_need_args(in_, nest_.needs, first);
  for (Operand o : in_.group.outputs) first.args.push_back(ArgRef::value(o, is_full(o)));
  for (auto& r : temps) {
    for (u32 t : r) first.args.push_back(ArgRef::temporary(t, true));
  }
  const i64 blocks = shared_row_ ? 1 : ceil_div(columns(), columns_together());
  const i64 groups = shared_row_ ? rows_ : rows_ / columns() * blocks;  // of a slice
  first.groups = group_count(in_, groups * slices);
  const u32 first_width = shared_row_ ? in_.target.width : lane_width();
  first.kernel = kernel::trace("reduce_slices", in_.target, first_width, [&] {
    declare();
    const auto partial = partial_buffers();
    const Value group = kernel::cast(kernel::group(), nest_.index_type);
    // The whole width of some memory comes before the next part.
    const Value s = by_lane ? group / of_rows(groups) : group % of_count(slices);
    const Value r = by_lane ? group % of_rows(groups) : group / of_count(slices);
    const Value begin = s * of_count(slice);
    const Value end = kernel::min(begin + of_count(slice), of_count(count_));
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
      const Value outer = r / index(blocks), block = r % index(blocks);
      in_columns(block, [&] {
        std::vector<Point> rows = lane_points(outer, block);
        const auto totals = lane_totals(level, rows, begin, end);
        storing(true, [&] {
          for (size_t g = 0; g < rows.size(); ++g) {
            store_partial(totals[g], outer * index(columns()) + rows[g].coords[kept_.back()]);
          }
        });
      });
    }
  });
  out.list.push_back(std::move(first));

  Launch second;
  second.choice = fmt::format("adds {} slices in order", slices);
  second.label = group_label(in_.graph, in_.group) + " (merge)";
  add_need_args(in_, nest_.needs, second);
  for (Operand o : in_.group.outputs) second.args.push_back(ArgRef::value(o, !is_full(o)));
  for (auto& r : temps) {
    for (u32 t : r) second.args.push_back(ArgRef::temporary(t));
  }
  if (by_lane && cpu) {
    second.groups = group_count(in_, rows_ / columns() * blocks);
    second.kernel = kernel::trace("reduce_merge", in_.target, lane_width(), [&] {
      declare();
      const auto partial = partial_buffers();
      const Value group = kernel::cast(kernel::group(), nest_.index_type);
      const Value outer = group / index(blocks), block = group % index(blocks);
      in_columns(block, [&] {
        std::vector<Point> rows = lane_points(outer, block);
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
      kernel::For(lane_index(), of_count(slices), index(merge_width), [&](const Value& s) {
        std::vector<Value> v;
        for (const Buffer& b : partial[i]) v.push_back(b.load(partial_at(r, s)));
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

std::vector<std::vector<Value>> ReduceKernel::merged_in_order(
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
    kernel::For(index(1), of_count(slices), index(1),
                [&](const Value& s) { set(state, level[i].reducer->merge(get(state), load(s))); });
    totals.push_back(get(state));
  }
  return totals;
}

std::vector<std::vector<Value>> ReduceKernel::slice_pass(const std::vector<Reduction>& level,
                                                         Point& row, const Value& begin,
                                                         const Value& end) {
  const i64 width = kernel::width();
  const Chains chains = make_chains(level);
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
  return merged(level, chains);
}

}  // namespace oa::graph
