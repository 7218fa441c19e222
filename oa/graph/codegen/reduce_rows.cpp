// Reductions whose lanes share a row: along the innermost axis.
#include <algorithm>

#include "oa/graph/codegen/reduce_kernel.h"

namespace oa::graph {
namespace {

constexpr i64 kRegisterGangs = 16;        // rows up to this many gangs are unrolled
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

void ReduceKernel::shared_row(const Value& r) {
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

std::vector<std::vector<Value>> ReduceKernel::long_row(
    const std::vector<Reduction>& level, Point& row, i64 full,
    const std::function<void(const std::function<void(Point&, const Value&)>&)>& in_tail) {
  const i64 width = kernel::width();
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
  return merged(level, chains);
}

}  // namespace oa::graph
