// Kernels of pointwise groups: one loop nest, every output stored once.
//
// On the CPU a workgroup runs over a chunk of a row with uniform outer coordinates, gang after
// gang; on a GPU each lane takes a pack of neighbouring positions.
#include <algorithm>

#include "oa/graph/codegen/loops.h"

namespace oa::graph {
namespace {

using kernel::Buffer;
using kernel::Value;

constexpr i64 kChunk = 8192;  // positions per workgroup on the CPU, a few microseconds of work
constexpr u64 kStreamingBytes = 24ull << 20;  // results that no cache keeps until they are read

class PointwiseKernel {
 public:
  PointwiseKernel(const LowerInput& in)
      : in_(in), evaluator_(in.graph, [&](Operand o) { return in.is_stored(o) && !own(o); }) {
    for (Operand o : in.group.outputs) own_.push_back(o);
    Shape domain = in.group.domain;
    if (domain.rank() == 0) domain.push_back(1);
    nest_ = make_nest(evaluator_, in.target, domain, std::vector<u32>(domain.rank(), 0),
                      [&](Point& p) { evaluate_all(p); });
  }

  void lower(Launches& out) {
    Launch launch;
    launch.label = group_label(in_.graph, in_.group);
    launch.flops =
        cost_per_element(in_.graph, in_.group) * static_cast<f64>(in_.group.domain.elements());
    add_need_args(in_, nest_.needs, launch);
    for (Operand o : own_) launch.args.push_back(ArgRef::value(o, true));
    find_in_place(launch);
    const i64 total = in_.group.domain.elements();
    u64 written = 0;
    for (Operand o : own_) written += static_cast<u64>(total) * size_bytes(in_.graph.spec(o).dtype);
    streaming_ = in_.target.is_cpu() && written >= kStreamingBytes;
    if (in_.target.is_cpu()) {
      trace_cpu(launch, total);
    } else {
      trace_gpu(launch, total);
    }
    launch.choice = nest_.extent.size() == 1
                        ? fmt::format("one loop over {} positions, their number a parameter", total)
                        : fmt::format(
                              "{} nested loops over {} positions, as operands are read in "
                              "other orders",
                              nest_.extent.size(), total);
    if (streaming_) {
      launch.choice += fmt::format(
          "; {} MB of results go past the caches, which could not keep them", written >> 20);
    }
    out.list.push_back(std::move(launch));
  }

 private:
  bool own(Operand o) const { return std::find(own_.begin(), own_.end(), o) != own_.end(); }

  std::vector<u32> all_axes() const {
    std::vector<u32> axes(evaluator_.domain().rank());
    for (u32 i = 0; i < axes.size(); ++i) axes[i] = i;
    return axes;
  }

  AffineExpr position() const {
    return AffineMap::identity(evaluator_.domain())
        .flatten(evaluator_.domain(), evaluator_.domain().rank());
  }

  std::vector<Value> evaluate_all(Point& p) {
    std::vector<Value> values;
    for (Operand o : own_) {
      values.push_back(evaluator_.value(
          o, output_map(in_.graph.spec(o).shape, evaluator_.domain(), all_axes()), p));
    }
    evaluator_.affine(position(), p);
    return values;
  }

  // An input read only at the position that is written may share its memory with an output.
  void find_in_place(Launch& launch) const {
    const AffineExpr here = position();
    for (Operand operand : nest_.needs.buffers) {
      bool only_here = in_.graph.spec(operand).shape.elements() == in_.group.domain.elements();
      only_here = only_here && nest_.needs.only_at(operand, here);
      if (only_here) launch.in_place.push_back({operand});
    }
  }

  void declare() {
    evaluator_.declare(nest_.needs, nest_.index_type);
    outputs_.clear();
    for (Operand o : own_) {
      outputs_.push_back(kernel::param_buffer(element_scalar(in_.graph.spec(o).dtype)));
    }
  }

  void store_point(Point& p) {
    const std::vector<Value> values = evaluate_all(p);
    const Value at = evaluator_.affine(position(), p);
    for (size_t i = 0; i < own_.size(); ++i) {
      if (streaming_) {
        outputs_[i].store_streaming(at, values[i]);
      } else {
        outputs_[i].store(at, values[i]);
      }
    }
  }

  Value index(i64 x) const { return kernel::constant_int(nest_.index_type, x); }

  void trace_cpu(Launch& launch, i64 total) {
    // Inner loops: the last axis, and more of them while they are short.
    if (nest_.extent.size() == 1) {
      trace_flat(launch, total, in_.target.width);
      launch.mergeable = true;
      return;
    }
    size_t first = nest_.extent.size() - 1;
    i64 row = nest_.extent[first];
    // A computed position is often the same along the last axis (a row of a table), which only
    // shows if that axis is a loop of its own.
    const i64 enough = reads_computed() ? in_.target.width : 4 * in_.target.width;
    while (first > 0 && row < enough) row *= nest_.extent[--first];
    const u32 width = first + 1 < nest_.extent.size() ? short_axis_width() : in_.target.width;
    if (first == 0) {
      trace_flat(launch, total, width);
      return;
    }
    const i64 rows = total / row;
    const i64 pieces = ceil_div(row, kChunk);
    const i64 rows_per_group = pieces > 1 ? 1 : std::max<i64>(1, kChunk / row);
    const i64 groups = pieces > 1 ? rows * pieces : ceil_div(rows, rows_per_group);
    launch.groups = group_count(in_, groups);
    launch.kernel = kernel::trace("pointwise", in_.target, width, [&] {
      declare();
      const Value group = kernel::cast(kernel::group(), nest_.index_type);
      if (pieces > 1) {
        const Value r = group / index(pieces);
        const Value begin = group % index(pieces) * index(kChunk);
        const Value count =
            row % kChunk == 0 ? index(kChunk) : kernel::min(index(kChunk), index(row) - begin);
        span(first, r, begin, count, row % kChunk == 0 ? kChunk : 0, row % width != 0);
      } else {
        const Value begin = group * index(rows_per_group);
        const Value end =
            kernel::min(begin + index(rows_per_group), kernel::extent(nest_.index_type, rows));
        kernel::For(begin, end, index(1), [&](const Value& r) {
          span(first, r, index(0), index(row), row, row % width != 0);
        });
      }
    });
  }

  // Lanes that fill a short last axis some times over, so that no gang leaves it.
  u32 short_axis_width() const {
    for (u32 w = in_.target.width; w >= 4; w /= 2) {
      if (nest_.extent.back() % w == 0) return w;
    }
    return in_.target.width;
  }

  // All loops as one, in chunks: the outermost extent is a runtime value, so one kernel serves
  // every size of it.
  void trace_flat(Launch& launch, i64 total, u32 width) {
    launch.groups = group_count(in_, ceil_div(total, kChunk));
    launch.args.push_back(ArgRef::number(static_cast<u64>(total)));
    launch.kernel = kernel::trace("pointwise", in_.target, width, [&] {
      declare();
      const Value extent = kernel::cast(kernel::param_u64(), nest_.index_type);
      const Value begin = kernel::cast(kernel::group(), nest_.index_type) * index(kChunk);
      span(0, index(0), begin, kernel::min(index(kChunk), extent - begin), 0, true);
    });
  }

  bool reads_computed() const {
    return std::any_of(nest_.needs.loads.begin(), nest_.needs.loads.end(),
                       [](const auto& load) { return !load.second; });
  }

  // Positions begin .. begin+count of the inner loops of outer row r, a gang at a time. `known` is
  // the count where it is a constant, else 0.
  void span(size_t first, const Value& r, const Value& begin, const Value& count, i64 known,
            bool tail) {
    const u32 width = kernel::width();
    const Value lane = kernel::cast(kernel::lane(), nest_.index_type);
    Point base;
    base.coords.resize(nest_.extent.size());
    if (first > 0) unflatten_loops(nest_, 0, first, r, base.coords);
    // A gang that never leaves the last axis moves along it, whatever the axes before do.
    const bool straight = nest_.extent.size() > 1 && nest_.extent.back() % width == 0;
    auto gang = [&](const Value& start) {
      Point p;
      p.coords = base.coords;
      unflatten_loops(nest_, first, nest_.extent.size(), straight ? start : start + lane, p.coords);
      if (straight) p.coords.back() = p.coords.back() + lane;
      store_point(p);
    };
    const Value full = known ? index(known / width) : count / index(width);
    if (known != 0 && known / width == 1) {
      gang(begin);
    } else if (known == 0 || known >= width) {
      kernel::For(index(0), full, index(1),
                  [&](const Value& it) { gang(begin + it * index(width)); });
    }
    if (tail) {
      const Value done = full * index(width);
      kernel::If(kernel::Bool(done + lane < count), [&] { gang(begin + done); });
    }
  }

  void trace_gpu(Launch& launch, i64 total) {
    const u32 width = in_.target.width;
    u32 parts = 1;
    const u32 widest = widest_element();
    if (widest <= 4 && nest_.extent.back() % 4 == 0) parts = 4;
    const i64 packs = total / parts;
    // As on the CPU, one kernel serves every size of the outermost loop axis.
    const bool flat = nest_.extent.size() == 1;
    launch.groups = group_count(in_, ceil_div(packs, width));
    launch.args.push_back(ArgRef::number(static_cast<u64>(packs)));
    launch.mergeable = flat;
    launch.kernel = kernel::trace("pointwise", in_.target, width, [&] {
      declare();
      const Value extent = kernel::cast(kernel::param_u64(), nest_.index_type);
      const Value at = kernel::cast(kernel::group(), nest_.index_type) * index(width) +
                       kernel::cast(kernel::lane(), nest_.index_type);
      auto body = [&] {
        std::vector<std::pair<std::pair<Operand, AffineExpr>, Value>> shared;
        std::vector<std::vector<Value>> values(own_.size());
        std::vector<Value> coords(nest_.extent.size());
        unflatten_loops(nest_, 0, nest_.extent.size(), at * index(parts), coords);
        for (u32 part = 0; part < parts; ++part) {
          Point p;
          p.coords = coords;
          if (part > 0) p.coords.back() = p.coords.back() + index(part);
          p.part = part;
          p.parts = parts;
          p.shared = &shared;
          const std::vector<Value> v = evaluate_all(p);
          for (size_t i = 0; i < own_.size(); ++i) values[i].push_back(v[i]);
        }
        for (size_t i = 0; i < own_.size(); ++i) {
          outputs_[i].store(at * index(parts), parts == 1 ? values[i][0] : kernel::vec(values[i]));
        }
      };
      if (!flat && packs % width == 0) {
        body();
      } else {
        kernel::If(kernel::Bool(at < extent), body);
      }
    });
  }

  // Packs are for elements of four bytes and less; narrow ones load alone where the device asks.
  u32 widest_element() const {
    u32 widest = 0;
    for (Operand o : own_) widest = std::max(widest, size_bytes(in_.graph.spec(o).dtype));
    for (Operand o : nest_.needs.buffers) {
      widest = std::max(widest, size_bytes(in_.graph.spec(o).dtype));
    }
    return widest;
  }

  const LowerInput& in_;
  Evaluator evaluator_;
  std::vector<Operand> own_;
  std::vector<Buffer> outputs_;
  bool streaming_ = false;
  Nest nest_;
};

}  // namespace

void lower_pointwise(const LowerInput& in, Launches& out) { PointwiseKernel(in).lower(out); }

}  // namespace oa::graph
