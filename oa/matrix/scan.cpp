// A line is cut into chunks where lines are few and long: sums of the chunks, their running sums,
// then the lines from there. Where neighbours of a line lie side by side, the lanes of a workgroup
// share a line; otherwise each lane follows its own, beside the next lane's.
#include "oa/matrix/scan.h"

#include <algorithm>

#include "oa/matrix/all_ops.h"
#include "oa/matrix/kernel_tools.h"
#include "oa/matrix/record.h"
#include "oa/matrix/sample_sets.h"
#include "oa/matrix/scan_launch.h"

namespace oa::matrix {
namespace {

using graph::ArgRef;
using graph::Lower;
using kernel::Buffer;
using kernel::Value;

constexpr i64 kChunk = 8192;      // elements of a chunk that lanes share
constexpr i64 kLaneLines = 8192;  // lines of lanes that are enough to fill a machine
constexpr i64 kLaneChunk = 64;    // elements that a lane follows at least

class Scan {
 public:
  Scan(Lower& l, const ScanShape& shape, const ScanTypes& types)
      : l_(l),
        s_(shape),
        t_(types),
        type_(index_type(shape.outer * shape.count * shape.inner)),
        value_(kernel::value_scalar(types.out)) {}

  void run(const ArgRef& in, const ArgRef& out) {
    const bool shared = s_.inner == 1;
    const i64 chunk = shared ? kChunk : lane_chunk();
    const i64 chunks = ceil_div(s_.count, chunk);
    const char* owner = shared ? "lanes share a line" : "a lane has a line";
    if (chunks == 1) {
      l_.explain(fmt::format("{} lines of {}, {}", s_.outer * s_.inner, s_.count, owner));
      lines(in, out, nullptr, s_.count, 1, shared);
      return;
    }
    const u32 bytes = kernel::size_bytes(value_);
    const i64 cells = s_.outer * chunks * s_.inner;
    const ArgRef sums = l_.temp(static_cast<u64>(cells) * bytes);
    const ArgRef before = l_.temp(static_cast<u64>(cells) * bytes);
    const std::string cut = fmt::format("{} long lines of {} in {} chunks, {}", s_.outer * s_.inner,
                                        s_.count, chunks, owner);
    l_.explain(cut + ": the total of each");
    totals(in, sums, chunk, chunks, shared);
    Scan(l_, {s_.outer, chunks, s_.inner}, {value_, value_, true, false}).run(sums, before);
    l_.explain(cut + ": each from the sum before it on");
    lines(in, out, &before, chunk, chunks, shared);
  }

 private:
  // Longer chunks where there are lines enough.
  i64 lane_chunk() const {
    const i64 pieces = std::max<i64>(1, kLaneLines / std::max<i64>(1, s_.outer * s_.inner));
    return std::max(kLaneChunk, ceil_div(s_.count, pieces));
  }

  Value at(i64 x) const { return index(type_, x); }
  Value load(const Buffer& b, const Value& i) const { return kernel::cast(b.load(i), value_); }
  Value zero() const { return kernel::literal(value_, 0); }

  // Position of step q of a line in memory order.
  Value along(const Value& q) const { return t_.reverse ? at(s_.count - 1) - q : q; }

  // Calls body(line, chunk) for every chunk of every line, with lanes sharing it.
  void for_chunks(i64 lines, i64 length, const std::function<void(const Value&)>& body) const {
    const i64 per_group = per_workgroup(length);
    const Value group = kernel::cast(kernel::group(), type_);
    if (per_group == 1) {
      body(group);
    } else {
      const Value begin = group * at(per_group);
      kernel::For(begin, kernel::min(begin + at(per_group), at(lines)), at(1), body);
    }
  }
  i64 per_workgroup(i64 length) const {
    return l_.target().is_cpu() ? std::max<i64>(1, kChunk / std::max<i64>(1, length)) : 1;
  }

  // --- Sums of chunks: [outer, chunks, inner] ---

  void totals(const ArgRef& in, const ArgRef& sums, i64 chunk, i64 chunks, bool shared) {
    if (!shared) {
      launch_elements(l_, "scan_totals", s_.outer * chunks * s_.inner, {in, sums}, [&] {
        const Buffer x = kernel::param_buffer(t_.in), y = kernel::param_buffer(value_);
        return [=, this](const Value& cell) {
          const kernel::VarValue sum(zero());
          lane_line(kernel::cast(cell, type_), chunk, chunks,
                    [&](const Value& i, const Value&) { sum.set(sum.get() + load(x, i)); });
          y.store(cell, sum.get());
        };
      });
      return;
    }
    const u32 width = l_.target().width;
    kernel::Kernel k = kernel::trace("scan_totals", l_.target(), width, [&] {
      const Buffer x = kernel::param_buffer(t_.in), y = kernel::param_buffer(value_);
      for_chunks(s_.outer * chunks, chunk, [&](const Value& c) {
        const Value first = c % at(chunks) * at(chunk);
        const Value row = c / at(chunks) * at(s_.count);
        const kernel::VarValue sum(zero());
        for_lanes(first, kernel::min(at(chunk), at(s_.count) - first), -1,
                  [&](const Value& q) { sum.set(sum.get() + load(x, row + along(q))); });
        const Value total =
            kernel::group_reduce(sum.get(), [](const Value& a, const Value& b) { return a + b; });
        kernel::If(kernel::lane() == word(0), [&] { y.store(c, total); });
      });
    });
    l_.launch(std::move(k), ceil_div(s_.outer * chunks, per_workgroup(chunk)), {in, sums});
  }

  // --- The lines ---

  void lines(const ArgRef& in, const ArgRef& out, const ArgRef* before, i64 chunk, i64 chunks,
             bool shared) {
    std::vector<ArgRef> args = {in, out};
    if (before) args.push_back(*before);
    if (!shared) {
      launch_elements(l_, "scan", s_.outer * chunks * s_.inner, args, [&] {
        const Buffer x = kernel::param_buffer(t_.in), y = kernel::param_buffer(t_.out);
        std::optional<Buffer> start;
        if (before) start = kernel::param_buffer(value_);
        return [=, this](const Value& cell) {
          const kernel::VarValue sum(start ? start->load(cell) : zero());
          lane_line(kernel::cast(cell, type_), chunk, chunks, [&](const Value& i, const Value&) {
            const Value old = sum.get();
            sum.set(old + load(x, i));
            y.store(i, t_.exclusive ? old : sum.get());
          });
        };
      });
      return;
    }
    const u32 width = row_width(chunk);
    kernel::Kernel k = kernel::trace("scan", l_.target(), width, [&] {
      const Buffer x = kernel::param_buffer(t_.in), y = kernel::param_buffer(t_.out);
      std::optional<Buffer> start;
      if (before) start = kernel::param_buffer(value_);
      for_chunks(s_.outer * chunks, chunk, [&](const Value& c) {
        const Value first = chunks == 1 ? at(0) : c % at(chunks) * at(chunk);
        const Value row = (chunks == 1 ? c : c / at(chunks)) * at(s_.count);
        const Value count = kernel::min(at(chunk), at(s_.count) - first);
        shared_line(x, y, row, first, count, start ? start->load(c) : zero());
      });
    });
    l_.launch(std::move(k), ceil_div(s_.outer * chunks, per_workgroup(chunk)), args);
  }

  u32 row_width(i64 count) const {
    if (l_.target().is_cpu()) return l_.target().width;
    u32 w = l_.target().subgroup;
    while (w < l_.target().width && w < count) w *= 2;
    return w;
  }

  // Positions first .. first + count of a line, a gang at a time.
  void shared_line(const Buffer& x, const Buffer& y, const Value& row, const Value& first,
                   const Value& count, const Value& start) const {
    const Value lane = kernel::cast(kernel::lane(), type_);
    const kernel::VarValue carry(start);
    if (t_.exclusive) {
      kernel::If(kernel::Bool((lane | first) == at(0)),
                 [&] { y.store(row + along(at(0)), zero()); });
    }
    kernel::For(at(0), count, at(kernel::width()), [&](const Value& done) {
      const Value q = first + done + lane;
      const kernel::Bool inside(done + lane < count);
      const kernel::VarValue v(zero());
      kernel::If(inside, [&] { v.set(load(x, row + along(q))); });
      const GroupScan scan = group_scan(v.get());
      const Value sum = carry.get() + scan.inclusive;
      if (t_.exclusive) {
        const Value next = q + at(1);
        kernel::If(inside & kernel::Bool(next < at(s_.count)),
                   [&] { y.store(row + along(next), sum); });
      } else {
        kernel::If(inside, [&] { y.store(row + along(q), sum); });
      }
      carry.set(carry.get() + scan.total);
    });
  }

  // The elements of cell (outer, chunk, inner), by their positions in memory.
  void lane_line(const Value& cell, i64 chunk, i64 chunks,
                 const std::function<void(const Value&, const Value&)>& body) const {
    const Value inner = cell % at(s_.inner);
    const Value c = cell / at(s_.inner);
    const Value first = chunks == 1 ? at(0) : c % at(chunks) * at(chunk);
    const Value outer = chunks == 1 ? c : c / at(chunks);
    const Value base = outer * at(s_.count * s_.inner) + inner;
    const Value end = chunks == 1 ? at(s_.count) : kernel::min(first + at(chunk), at(s_.count));
    kernel::For(first, end, at(1),
                [&](const Value& q) { body(base + along(q) * at(s_.inner), q); });
  }

  Lower& l_;
  ScanShape s_;
  ScanTypes t_;
  kernel::Scalar type_;
  kernel::Scalar value_;
};

struct Cumsum {
  static constexpr OpInfo kInfo{.name = "cumsum", .kind = OpKind::Kernel};
  struct Attrs {
    u32 axis;
    bool exclusive;
    bool reverse;
  };
  static void infer(Infer& in, const Attrs&) {
    const bool widens = in.dtype(0) == DType::Bool || in.dtype(0) == DType::U8;
    in.out(widens ? DType::U32 : in.dtype(0), in.shape(0));
  }
  static void lower(Lower& l, const Attrs& a) {
    const Shape& x = l.in(0).shape;
    ScanShape s;
    for (u32 i = 0; i < a.axis; ++i) s.outer *= x[i];
    s.count = x[a.axis];
    for (u32 i = a.axis + 1; i < x.rank(); ++i) s.inner *= x[i];
    launch_scan(l, s,
                {graph::element_scalar(l.in(0).dtype), graph::element_scalar(l.out().dtype),
                 a.exclusive, a.reverse},
                l.input(0), l.output());
  }
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs& a) {
    return gradients({record<Cumsum>({grad(g)}, {a.axis, a.exclusive, !a.reverse})});
  }
  static void samples(Samples& s) {
    for (DType t : kAll) s.call({{{3, 37}, t}}, Attrs{1, false, false});
    s.call({{{37, 3}}}, Attrs{0, true, false});
    s.call({{{2, 5, 3}}}, Attrs{1, false, true});
    s.call({{{1}}}, Attrs{0, true, true});
    s.call({{{3, 0}}}, Attrs{1, false, false});
    s.call({{{2, 700}, DType::I32, -9, 9}}, Attrs{1, true, true});
  }
};

}  // namespace

OpList scan_ops() { return graph::op_list<Cumsum>(); }

void launch_scan(Lower& l, const ScanShape& shape, const ScanTypes& types, const ArgRef& in,
                 const ArgRef& out) {
  Scan(l, shape, types).run(in, out);
}

Matrix cumsum(const Matrix& x, i64 axis, CumsumOptions options) {
  return record<Cumsum>(
      {x}, {resolve_axis("cumsum", axis, x.rank()), options.exclusive, options.reverse});
}

}  // namespace oa::matrix
