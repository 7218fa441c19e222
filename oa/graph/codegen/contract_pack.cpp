// Packing of the operands of products on the CPU: copies in the order in which tiles read them. The
// lanes run across k, along columns of B or rows of A; where k is what lies side by side in memory,
// every lane loads four steps of k at once. Operands are read through the evaluator, so what stands
// in front of a product is computed here, once per element.
#include <algorithm>

#include "oa/graph/codegen/contract_cpu.h"

namespace oa::graph {
namespace {

using kernel::Buffer;
using kernel::Value;
using Axis = ContractNest::Axis;

// Steps of k that a lane loads together.
u32 steps_together(const ContractNest& c, u32 i) {
  if (c.inner_depth() % 4 != 0) return 1;
  const auto d = c.direct(i);
  return !d || c.step(*d, Axis::Depth) == 1 ? 4 : 1;
}

// The gang of operand `i` at a place, for `steps` steps of k from there on. `whole`: the place is a
// whole number of gangs from the first one.
void read_gang(ContractNest& c, u32 i, const ContractNest::Place& at, bool whole, u32 steps,
               const std::function<void(u32 step, const Value&)>& use) {
  std::vector<std::pair<std::pair<Operand, AffineExpr>, Value>> shared;
  for (u32 s = 0; s < steps; ++s) {
    Point p = c.gang(at, i == 0 ? Axis::Row : Axis::Column, whole);
    if (s > 0) p.coords.back() = p.coords.back() + c.index(s);  // the innermost axis is k's
    p.part = s;
    p.parts = steps;
    p.shared = &shared;
    use(s, c.operand(i, p));
  }
}

ContractNest::Place place(const ContractNest& c, u32 i, const Value& batch, const Value& across,
                          const std::vector<Value>& depth) {
  const Value zero = c.index(0);
  return i == 0 ? ContractNest::Place{batch, across, zero, depth}
                : ContractNest::Place{batch, zero, across, depth};
}

class TaskPack {
 public:
  TaskPack(ContractNest& c, const CpuTiling& t, u32 i, const kernel::Shared& cells,
           const Value& batch, const PackRange& k, bool whole)
      : c_(c),
        t_(t),
        i_(i),
        whole_(whole),
        steps_(steps_together(c, i)),
        stride_(i == 0 ? t.a_stride : t.b_stride),
        cells_(cells),
        batch_(batch),
        k_(k) {}

  // Gangs that begin at from, from + width, ... before `end`, or at `last` where that comes first.
  void gangs(const Value& first, const Value& from, const Value& end, const Value* last) {
    const auto at = [&](const Value& x) { return last ? kernel::min(x, *last) : x; };
    const auto each_gang = [&](const std::function<void(const Value&)>& body) {
      kernel::For(from, end, c_.index(t_.width), [&](const Value& x) {
        if (last) kernel::barrier();  // the last gang writes again what other lanes wrote
        body(at(x));
      });
    };
    if (steps_ > 1) {
      each_gang([&](const Value& x) { along_k(x, first); });
    } else {
      c_.each_depth(k_.begin, k_.end, 1, [&](const std::vector<Value>& depth, const Value& k) {
        each_gang([&](const Value& x) { copy(x, first, depth, k); });
      });
    }
  }

  // One gang for all k.
  void along_k(const Value& x, const Value& first) {
    c_.each_depth(k_.begin, k_.end, steps_, [&](const std::vector<Value>& depth, const Value& k) {
      copy(x, first, depth, k);
    });
  }

  void zeros(i64 x) {
    c_.each_depth(k_.begin, k_.end, 1, [&](const std::vector<Value>&, const Value& k) {
      cells_.store(cell(k, c_.index(x)), kernel::literal(c_.accumulator(), 0));
    });
  }

 private:
  Value cell(const Value& k, const Value& x) const {
    return k * c_.index(stride_) + x + c_.as_index(kernel::lane());
  }
  void copy(const Value& x, const Value& first, const std::vector<Value>& depth, const Value& k) {
    read_gang(c_, i_, place(c_, i_, batch_, x, depth), whole_, steps_, [&](u32 s, const Value& v) {
      cells_.store(cell(s == 0 ? k : k + c_.index(s), x - first), v);
    });
  }

  ContractNest& c_;
  const CpuTiling& t_;
  const u32 i_;
  const bool whole_;  // workgroups begin at whole gangs
  const u32 steps_;
  const i64 stride_;
  const kernel::Shared& cells_;
  const Value& batch_;
  const PackRange& k_;
};

}  // namespace

void pack_columns(ContractNest& c, const CpuTiling& t, const kernel::Shared& cells,
                  const Value& batch, const PackRange& k) {
  TaskPack pack(c, t, 1, cells, batch, k, true);
  const i64 columns = c.columns(), width = t.width;
  const i64 whole = columns / width * width;
  for (i64 x = whole; x < t.panels * t.panel_columns(); x += width) pack.zeros(x);
  const Value zero = c.index(0);
  if (whole > 0) pack.gangs(zero, zero, c.index(whole), nullptr);
  if (whole == columns) return;
  kernel::barrier();  // the last lanes' cells change hands
  if (whole > 0) {
    pack.along_k(c.index(columns - width), zero);  // some columns again
  } else {
    kernel::If(kernel::Bool(c.as_index(kernel::lane()) < c.index(columns)),
               [&] { pack.along_k(zero, zero); });
  }
}

void pack_rows(ContractNest& c, const CpuTiling& t, const kernel::Shared& cells, const Value& batch,
               const Value& first, const Value& end, const PackRange& k) {
  const i64 rows = c.shared_rows(), width = t.width;
  const bool fits = rows % width == 0 && t.task_bands * t.rows % width == 0;
  TaskPack pack(c, t, 0, cells, batch, k, fits);
  if (rows < width) {
    kernel::If(kernel::Bool(c.as_index(kernel::lane()) < c.of_rows(rows)),
               [&] { pack.along_k(c.index(0), c.index(0)); });
    return;
  }
  const Value last = c.of_rows(rows - width);
  pack.gangs(first, first, end, fits ? nullptr : &last);
}

u32 pack_contract(ContractNest& c, const CpuTiling& t, u32 i, Launches& out) {
  const i64 across = i == 0 ? t.rows : t.panel_columns();  // consecutive in the copy
  const i64 count = i == 0 ? t.bands : t.panels;           // parts of a batch
  const i64 extent = i == 0 ? c.shared_rows() : c.columns();
  const i64 all = count * c.batches(), depth = c.depth();
  const u32 temp =
      out.add_temp(static_cast<u64>(all * across * depth) * kernel::size_bytes(c.accumulator()));
  // Rows of A are fewer than lanes: there the lanes run along k where that is consecutive.
  const auto d = c.direct(i);
  const bool along_k = i == 0 && d && c.step(*d, Axis::Depth) == 1;
  const u32 steps = i == 0 ? 1 : steps_together(c, i);
  // A workgroup takes a block of k of some neighbouring parts, small enough for the nearest cache.
  const i64 block = along_k || steps > 1 ? 64 : 16;
  const i64 blocks = ceil_div(depth, block);
  const i64 parts = std::clamp<i64>(8192 / (across * block), 1, all);
  Launch launch = c.make_launch();
  launch.label = i == 0 ? "pack a" : "pack b";
  launch.choice = i == 0 ? describe("A", t.a, t.why_a) : describe("B", t.b, t.why_b);
  launch.flops = 4.0 * static_cast<f64>(all * across * depth);
  // The outputs' parameters are declared too; a pack writes only its temporary.
  for (ArgRef& arg : launch.args) arg.write = false;
  launch.args.push_back(ArgRef::temporary(temp, true));
  launch.groups = group_count(c.in(), ceil_div(all, parts) * blocks);
  launch.kernel = kernel::trace("contract_pack", c.in().target, t.width, [&] {
    c.declare();
    const Buffer to = kernel::param_buffer(c.accumulator());
    const Value group = c.as_index(kernel::group());
    const Value lane = c.as_index(kernel::lane()), width = c.index(t.width);
    const auto range = [&](const Value& number, i64 size, bool whole, const Value& limit) {
      const Value begin = number * c.index(size), end = begin + c.index(size);
      return std::pair(begin, whole ? end : kernel::min(end, limit));
    };
    const auto of_extent = [&](i64 x) { return i == 0 ? c.of_rows(x) : c.index(x); };
    const Value k_blocks = c.of_depth(blocks);
    const auto [k_begin, k_end] =
        range(group % k_blocks, block, depth % block == 0, c.of_depth(depth));
    const auto [part_begin, part_end] =
        range(group / k_blocks, parts, all % parts == 0,
              c.batches() == 1 ? of_extent(all) : c.of_batches(all));
    kernel::For(part_begin, part_end, c.index(1), [&](const Value& part) {
      const bool one = c.batches() == 1;
      const Value batch = one ? c.index(0) : part / of_extent(count);
      const Value first = (one ? part : part % of_extent(count)) * c.index(across);
      const auto write = [&](const Value& x, const Value& k, const Value& v) {
        to.store((part * c.of_depth(depth) + k) * c.index(across) + x, v);
      };
      const Value last = of_extent(extent - 1);
      const bool ragged = extent % across != 0;
      if (along_k) {
        kernel::For(c.index(0), c.index(across), c.index(1), [&](const Value& x) {
          // Past the end of the operand the last row is repeated.
          const Value row = ragged ? kernel::min(first + x, last) : first + x;
          kernel::For(k_begin + lane, k_end, width, [&](const Value& k) {
            Point p = c.gang(place(c, i, batch, row, c.depth_at(k)), Axis::Depth);
            write(x, k, c.operand(i, p));
          });
        });
        return;
      }
      const Value here =
          ragged ? kernel::min(c.index(across), of_extent(extent) - first) : c.index(across);
      kernel::For(k_begin, k_end, c.index(steps), [&](const Value& k) {
        const auto gang = [&](const Value& x) {
          read_gang(c, i, place(c, i, batch, first + x, c.depth_at(k)), i == 1, steps,
                    [&](u32 s, const Value& v) { write(x + lane, k + c.index(s), v); });
        };
        const Value whole =
            across % t.width == 0 && !ragged ? c.index(across) : here / width * width;
        kernel::For(c.index(0), whole, width, gang);
        if (!ragged && across % t.width == 0) return;
        kernel::If(kernel::Bool(whole + lane < here), [&] { gang(whole); });
        if (!ragged) return;
        // Past the end columns are 0, and the last row is repeated.
        kernel::For(here + lane, c.index(across), width, [&](const Value& x) {
          for (u32 s = 0; s < steps; ++s) {
            const Value at = k + c.index(s);
            Value v = kernel::literal(c.accumulator(), 0);
            if (i == 0) {
              Point p = c.gang(place(c, i, batch, last, c.depth_at(at)), Axis::Depth);
              v = c.operand(i, p);
            }
            write(x, at, v);
          }
        });
      });
    });
  });
  out.list.push_back(std::move(launch));
  return temp;
}

}  // namespace oa::graph
