// Reductions whose lanes share a row: along the innermost axis.
#include <algorithm>

#include "oa/graph/codegen/reduce_kernel.h"

namespace oa::graph {
namespace {

constexpr i64 kRegisterGangs = 16;        // rows up to this many gangs are unrolled
constexpr i64 kRowsTogether = 4;          // CPU: short rows that share registers
constexpr i64 kWorkgroupElements = 8192;  // CPU: elements a workgroup goes through

}  // namespace

u32 ReduceKernel::row_width() const {
  if (in_.target.is_cpu()) return in_.target.width;
  // Where rows fill the device, a lane takes several elements: workgroups wait for each other
  // less.
  const i64 each = rows_ >= in_.target.threads ? 8 : 1;
  u32 w = in_.target.subgroup;
  while (w < in_.target.width && w * each < count_) w *= 2;
  return w;
}

void ReduceKernel::trace_shared_rows(Launch& launch) {
  const u32 width = row_width();
  const i64 per_group =
      in_.target.is_cpu() ? std::max<i64>(1, kWorkgroupElements / std::max<i64>(1, count_)) : 1;
  launch.groups = group_count(in_, ceil_div(rows_, per_group));
  // The number of rows is a runtime value: one kernel serves any batch.
  const bool any_rows = per_group > 1;
  if (any_rows) launch.args.push_back(ArgRef::number(static_cast<u64>(rows_)));
  launch.kernel = kernel::trace("reduce", in_.target, width, [&] {
    declare();
    const Value rows = any_rows ? kernel::cast(kernel::param_u64(), nest_.index_type) : Value();
    const Value group = kernel::cast(kernel::group(), nest_.index_type);
    if (per_group == 1) {
      shared_rows({group});
    } else {
      const Value begin = group * index(per_group);
      const Value end = kernel::min(begin + index(per_group), rows);
      each_row(begin, end);
    }
  });
}

u32 ReduceKernel::rows_together() const {
  const i64 gangs = std::max<i64>(1, ceil_div(count_, kernel::width()));
  return static_cast<u32>(std::clamp<i64>(kRegisterGangs / gangs, 1, kRowsTogether));
}

void ReduceKernel::each_row(const Value& begin, const Value& end) {
  const u32 together = rows_together();
  const auto rows = [&](const Value& first, const Value& last, u32 count) {
    kernel::For(first, last, index(count), [&](const Value& r) {
      std::vector<Value> numbers;
      for (u32 i = 0; i < count; ++i) numbers.push_back(i == 0 ? r : r + index(i));
      shared_rows(numbers);
    });
  };
  if (together == 1) return rows(begin, end, 1);
  const Value whole = begin + (end - begin) / index(together) * index(together);
  rows(begin, whole, together);
  rows(whole, end, 1);
}

void ReduceKernel::shared_rows(const std::vector<Value>& numbers) {
  const i64 width = kernel::width();
  const i64 full = count_ / width;
  const Value lane = lane_index();
  std::vector<Row> rows;
  for (const Value& r : numbers) rows.push_back({at_row(r), {}});
  const bool unrolled = is_unrolled();
  if (unrolled) {
    for (Row& row : rows) {
      for (i64 g = 0; g < full; ++g) row.gangs.push_back(along(row.point, lane + index(g * width)));
    }
  }
  for (const auto& level : levels_) {
    std::vector<std::vector<std::vector<Value>>> totals;  // [row][reduction]
    for (Row& row : rows) {
      totals.push_back(unrolled ? short_row(level, row) : long_row(level, row.point));
    }
    // Lanes are merged for all rows at once: the steps of one hide behind those of the others.
    for (auto& of_row : totals) {
      for (size_t i = 0; i < level.size(); ++i) {
        of_row[i] = kernel::group_reduce(of_row[i], level[i].reducer->merge);
      }
    }
    for (size_t k = 0; k < rows.size(); ++k) bind_results(level, totals[k], rows[k].point);
  }
  for (Row& row : rows) {
    if (!full_outputs_.empty()) store_elements(row);
    if (row_outputs_.empty()) continue;
    if (in_.target.is_cpu()) {
      store_rows(row.point);
    } else {
      kernel::If(kernel::lane() == kernel::U32(0), [&] {
        Point inside = row.point;
        store_rows(inside);
      });
    }
  }
}

bool ReduceKernel::is_unrolled() const { return count_ / kernel::width() <= kRegisterGangs; }

void ReduceKernel::store_elements(Row& row) {
  const i64 width = kernel::width(), full = count_ / width;
  if (is_unrolled()) {
    for (Point& p : row.gangs) store_full(p);
  } else {
    kernel::For(index(0), of_count(full), index(1), [&](const Value& it) {
      Point p = along(row.point, lane_index() + it * index(width));
      store_full(p);
    });
  }
  in_tail(row.point, [&](Point& p, const Value&) { store_full(p); });
}

// Runs the body in the lanes of the last gang, where the row does not fill it.
void ReduceKernel::in_tail(Point& row, const std::function<void(Point&, const Value&)>& body) {
  const i64 width = kernel::width();
  if (count_ % width == 0) return;
  const auto number = [&](i64 x) { return is_unrolled() ? index(x) : of_count(x); };
  const Value q = lane_index() + number(count_ / width * width);
  kernel::If(kernel::Bool(q < number(count_)), [&] {
    Point p = along(row, q);
    body(p, q);
  });
}

// Each lane's totals of a row whose gangs are unrolled.
std::vector<std::vector<Value>> ReduceKernel::short_row(const std::vector<Reduction>& level,
                                                        Row& row) {
  const i64 width = kernel::width();
  const i64 full = static_cast<i64>(row.gangs.size());
  std::vector<std::vector<Value>> totals;
  for (const Reduction& red : level) {
    // Independent states hide the latency of a step, where other rows do not.
    const i64 independent = std::clamp<i64>(full / 4, 1, kChains);
    std::vector<std::vector<Value>> chains;
    for (i64 g = 0; g < full; ++g) {
      const size_t chain = static_cast<size_t>(g % independent);
      if (chain == chains.size()) chains.push_back(red.reducer->init(red.in));
      chains[chain] = step(red, chains[chain], row.gangs[static_cast<size_t>(g)],
                           lane_index() + index(g * width));
    }
    if (chains.empty()) chains.push_back(red.reducer->init(red.in));
    for (size_t c = 1; c < chains.size(); ++c) chains[0] = red.reducer->merge(chains[0], chains[c]);
    totals.push_back(std::move(chains[0]));
  }
  if (count_ % width == 0) return totals;
  std::vector<State> states;
  for (const auto& total : totals) {
    states.emplace_back();
    for (const Value& v : total) states.back().emplace_back(v);
  }
  in_tail(row.point, [&](Point& p, const Value& q) {
    for (size_t i = 0; i < level.size(); ++i) {
      set(states[i], step(level[i], get(states[i]), p, q));
    }
  });
  for (size_t i = 0; i < level.size(); ++i) totals[i] = get(states[i]);
  return totals;
}

std::vector<std::vector<Value>> ReduceKernel::long_row(const std::vector<Reduction>& level,
                                                       Point& row) {
  const i64 width = kernel::width(), full = count_ / width;
  const Value lane = lane_index();
  const Chains chains = make_chains(level);
  auto gang = [&](const Value& start, u32 chain) {
    const Value q = start + lane;
    Point p = along(row, q);
    for (size_t i = 0; i < level.size(); ++i) {
      set(chains[i][chain], step(level[i], get(chains[i][chain]), p, q));
    }
  };
  const i64 rounds = full / kChains;
  kernel::For(index(0), of_count(rounds), index(1), [&](const Value& it) {
    const Value start = it * index(kChains * width);
    for (u32 c = 0; c < kChains; ++c) gang(start + index(c * width), c);
  });
  for (i64 g = rounds * kChains; g < full; ++g)
    gang(of_count(g * width), static_cast<u32>(g % kChains));
  in_tail(row, [&](Point& p, const Value& q) {
    for (size_t i = 0; i < level.size(); ++i) {
      set(chains[i][0], step(level[i], get(chains[i][0]), p, q));
    }
  });
  return merged(level, chains);
}

}  // namespace oa::graph
