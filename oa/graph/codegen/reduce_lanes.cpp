// Reductions whose lanes own a row each: neighbouring lanes have neighbouring rows.
#include <algorithm>

#include "oa/graph/codegen/reduce_kernel.h"
#include "oa/graph/codegen/reduce_slices.h"

namespace oa::graph {
namespace {

constexpr u32 kColumnLanes = 32;    // GPU: a line of memory
constexpr u32 kFewColumnLanes = 8;  // the least that memory hands out
constexpr i64 kFewColumns = 1024;   // too few to fill a GPU: more lanes to each

}  // namespace

u32 ReduceKernel::column_lanes() const {
  if (in_.target.is_cpu()) return in_.target.width;
  u32 lanes = !split_ && rows_ <= kFewColumns ? kFewColumnLanes : kColumnLanes;
  while (lanes > 1 && lanes / 2 >= columns()) lanes /= 2;
  return lanes;
}

u32 ReduceKernel::row_lanes() const {
  if (in_.target.is_cpu()) return 1;
  const i64 positions = split_ ? std::min(count_, kGpuLaneSlice) : count_;
  u32 lanes = 1;
  while (2 * lanes * column_lanes() <= in_.target.width && 2 * lanes * kChains <= positions) {
    lanes *= 2;
  }
  while (lanes * column_lanes() < in_.target.subgroup) lanes *= 2;
  return lanes;
}

Value ReduceKernel::column_lane() const {
  return row_lanes() == 1 ? lane_index() : lane_index() % index(column_lanes());
}
Value ReduceKernel::row_lane() const {
  return row_lanes() == 1 ? index(0) : lane_index() / index(column_lanes());
}

i64 ReduceKernel::columns() const { return nest_.extent[kept_.back()]; }

u32 ReduceKernel::gangs() const {
  if (!in_.target.is_cpu()) return 1;
  for (u32 g = kChains; g > 1; g /= 2) {
    // Fewer gangs to a workgroup where threads would have nothing to do.
    const i64 wide = g * column_lanes();
    if (columns() % wide == 0 && (split_ || rows_ / wide >= in_.target.threads)) return g;
  }
  return 1;
}

std::vector<Point> ReduceKernel::lane_points(const Value& outer, const Value& block) const {
  std::vector<Point> rows;
  for (u32 g = 0; g < gangs(); ++g) {
    Point row;
    row.coords.resize(nest_.extent.size());
    set_coords({kept_.begin(), kept_.end() - 1}, outer, row.coords);
    Value column = block * index(columns_together()) + index(g * column_lanes()) + column_lane();
    if (column_exists_) column = kernel::min(column, index(columns() - 1));
    row.coords[kept_.back()] = column;
    rows.push_back(std::move(row));
  }
  return rows;
}

void ReduceKernel::in_columns(const Value& block, const std::function<void()>& body) {
  column_exists_ = std::nullopt;
  if (columns() % column_lanes() == 0) return body();
  const Value column = block * index(columns_together()) + column_lane();
  const Value exists = column < index(columns());
  if (in_.target.is_cpu()) {
    kernel::If(kernel::Bool(exists), body);
  } else {
    column_exists_ = exists;  // lanes of a row wait for each other: no branch around them
    body();
  }
}

void ReduceKernel::storing(bool once, const std::function<void()>& body) const {
  std::optional<Value> stores = column_exists_;
  if (once && row_lanes() > 1) {
    const Value first = row_lane() == index(0);
    stores = stores ? *stores & first : first;
  }
  if (stores) {
    kernel::If(kernel::Bool(*stores), body);
  } else {
    body();
  }
}

void ReduceKernel::trace_lane_rows(Launch& launch) {
  const i64 blocks = ceil_div(columns(), columns_together());
  launch.groups = group_count(in_, rows_ / columns() * blocks);
  launch.kernel = kernel::trace("reduce_columns", in_.target, lane_width(), [&] {
    declare();
    const Value group = kernel::cast(kernel::group(), nest_.index_type);
    const Value block = group % index(blocks);
    in_columns(block, [&] {
      std::vector<Point> rows = lane_points(group / index(blocks), block);
      lane_rows(rows);
    });
  });
}

void ReduceKernel::lane_rows(std::vector<Point>& rows) {
  for (const auto& level : levels_) {
    const auto totals = lane_totals(level, rows, index(0), of_count(count_));
    for (size_t g = 0; g < rows.size(); ++g) bind_results(level, totals[g], rows[g]);
  }
  if (!full_outputs_.empty()) {
    kernel::For(row_lane(), of_count(count_), index(row_lanes()), [&](const Value& q) {
      for (Point& row : rows) {
        storing(false, [&] {
          Point inside = row;
          Point p = along(inside, q);
          store_full(p);
        });
      }
    });
  }
  storing(true, [&] {
    for (Point& row : rows) {
      Point inside = row;
      store_rows(inside);
    }
  });
}

std::vector<std::vector<std::vector<Value>>> ReduceKernel::lane_totals(
    const std::vector<Reduction>& level, std::vector<Point>& rows, const Value& begin,
    const Value& end) {
  if (!in_.target.is_cpu()) {
    OA_CHECK(rows.size() == 1);
    return {over_row_lanes(level, chained_totals(level, rows[0], begin + row_lane(), end))};
  }
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

// This lane's share of a row: every row_lanes()-th position from `begin` on. The loads of a round
// do not wait for each other.
std::vector<std::vector<Value>> ReduceKernel::chained_totals(const std::vector<Reduction>& level,
                                                             Point& row, const Value& begin,
                                                             const Value& end) {
  const Chains chains = make_chains(level);
  const auto visit = [&](const Value& q, u32 chain) {
    Point p = along(row, q);
    for (size_t i = 0; i < level.size(); ++i) {
      set(chains[i][chain], step(level[i], get(chains[i][chain]), p, q));
    }
    if (split_ && !full_outputs_.empty()) storing(false, [&] { store_full(p); });
  };
  const i64 apart = row_lanes();
  const Value positions = (kernel::max(begin, end) - begin + index(apart - 1)) / index(apart);
  const Value rounds = positions / index(kChains);
  kernel::For(index(0), rounds, index(1), [&](const Value& round) {
    const Value first = begin + round * index(kChains * apart);
    for (u32 c = 0; c < kChains; ++c) visit(c == 0 ? first : first + index(c * apart), c);
  });
  kernel::For(begin + rounds * index(kChains * apart), end, index(apart),
              [&](const Value& q) { visit(q, 0); });
  return merged(level, chains);
}

// Merges what the lanes of a row have, in a fixed order; all of them get the result.
std::vector<std::vector<Value>> ReduceKernel::over_row_lanes(
    const std::vector<Reduction>& level, const std::vector<std::vector<Value>>& own) const {
  if (row_lanes() == 1) return own;
  std::vector<std::vector<kernel::Shared>> cells;
  const kernel::U32 lane = kernel::lane();
  const auto load = [&](size_t i, const kernel::U32& at) {
    std::vector<Value> v;
    for (const kernel::Shared& c : cells[i]) v.push_back(c.load(at));
    return v;
  };
  const auto store = [&](size_t i, std::span<const Value> v) {
    for (size_t c = 0; c < v.size(); ++c) cells[i][c].store(lane, v[c]);
  };
  for (size_t i = 0; i < level.size(); ++i) {
    cells.emplace_back();
    for (const Value& v : own[i]) cells[i].emplace_back(v.scalar(), lane_width());
    store(i, own[i]);
  }
  for (u32 apart = row_lanes() / 2; apart > 0; apart /= 2) {
    kernel::barrier();
    const u32 distance = apart * column_lanes();
    kernel::If(lane < kernel::U32(distance), [&] {
      for (size_t i = 0; i < level.size(); ++i) {
        store(i, level[i].reducer->merge(load(i, lane), load(i, lane + kernel::U32(distance))));
      }
    });
  }
  kernel::barrier();
  std::vector<std::vector<Value>> totals;
  for (size_t i = 0; i < level.size(); ++i) {
    totals.push_back(load(i, lane % kernel::U32(column_lanes())));
  }
  return totals;
}

}  // namespace oa::graph
