#include "oa/matrix/movement.h"

#include <algorithm>
#include <limits>

#include "oa/graph/reshape.h"
#include "oa/matrix/all_ops.h"
#include "oa/matrix/kernel_tools.h"
#include "oa/matrix/record.h"
#include "oa/matrix/reduce.h"
#include "oa/matrix/sample_sets.h"

namespace oa::matrix {
namespace {

using graph::AffineExpr;
using graph::AffineMap;
using graph::View;
using kernel::Value;

constexpr OpInfo movement(std::string_view name) {
  return {.name = name, .kind = OpKind::Movement, .cost = 0};
}

struct BroadcastTo {
  static constexpr OpInfo kInfo = movement("broadcast_to");
  struct Attrs {
    Shape shape;
  };
  static void infer(Infer& in, const Attrs& a) {
    check_shape(in.op(), a.shape, size_bytes(in.dtype(0)));
    if (broadcast_shapes(in.op(), in.shape(0), a.shape) != a.shape) {
      in.reject("shape does not broadcast, got {} to {}, expected extents of 1 or equal ones",
                in.shape(0), a.shape);
    }
    in.out(in.dtype(0), a.shape);
  }
  static AffineMap view(const View& v, const Attrs& a) {
    AffineMap map;
    const u32 skip = a.shape.rank() - v.input_shape().rank();
    for (u32 i = 0; i < v.input_shape().rank(); ++i) {
      const bool repeats = v.input_shape()[i] == 1 && a.shape[i + skip] != 1;
      map.axes.push_back(repeats ? v.constant(0) : v.axis(i + skip));
    }
    return map;
  }
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs&) {
    return gradients({sum_to(grad(g), g.inputs[0]->shape())});
  }
  static void samples(Samples& s) {
    for (DType t : kAll) s.call({{{3, 1}, t, -2, 2, true}}, Attrs{{2, 3, 4}});
    for (const auto& [from, to] : {std::pair<Shape, Shape>{{}, {}},
                                   {{}, {2, 3}},
                                   {{1, 1}, {4, 1}},
                                   {{1, 3}, {0, 3}},
                                   {{5}, {1, 1, 5}},
                                   {{2, 1, 2, 1, 2, 1, 2}, {2, 3, 2, 2, 2, 1, 2}}}) {
      s.call({{from}}, Attrs{to});
    }
    s.reject({{{2}}}, Attrs{{3}},
             "broadcast_to: shapes do not broadcast, got [2] and [3], expected equal extents or 1");
    s.reject({{{2, 3}}}, Attrs{{3}},
             "broadcast_to: shape does not broadcast, got [2, 3] to [3], expected extents of 1 or "
             "equal ones");
    s.reject({{{1}}}, Attrs{{-1}},
             "broadcast_to: negative extent, got shape [-1], expected extents of 0 or more");
  }
};

struct Permute {
  static constexpr OpInfo kInfo = movement("permute");
  struct Attrs {
    Dims order;
  };
  static void infer(Infer& in, const Attrs& a) {
    const u32 rank = in.shape(0).rank();
    std::vector<bool> seen(rank);
    bool fits = a.order.size() == rank;
    for (u32 i = 0; fits && i < rank; ++i) {
      fits = a.order[i] >= 0 && a.order[i] < rank && !seen[static_cast<size_t>(a.order[i])];
      if (fits) seen[static_cast<size_t>(a.order[i])] = true;
    }
    if (!fits)
      in.reject("order is no permutation, got {}, expected each axis of {} once", a.order,
                in.shape(0));
    Shape out;
    for (i64 axis : a.order) out.push_back(in.shape(0)[static_cast<u32>(axis)]);
    in.out(in.dtype(0), out);
  }
  static AffineMap view(const View& v, const Attrs& a) {
    AffineMap map;
    map.axes.resize(a.order.size());
    for (u32 i = 0; i < a.order.size(); ++i) map.axes[static_cast<size_t>(a.order[i])] = v.axis(i);
    return map;
  }
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs& a) {
    Dims back = a.order;
    for (u32 i = 0; i < a.order.size(); ++i) back[static_cast<size_t>(a.order[i])] = i;
    return gradients({permute(grad(g), back)});
  }
  static void samples(Samples& s) {
    for (DType t : kAll) s.call({{{5, 9}, t, -2, 2, true}}, Attrs{{1, 0}});
    s.call({{{}}}, Attrs{{}});
    s.call({{{40}}}, Attrs{{0}});
    s.call({{{2, 3, 5}}}, Attrs{{2, 0, 1}});
    s.call({{{37, 1, 41}}}, Attrs{{2, 1, 0}});
    s.call({{{3, 0, 2}}}, Attrs{{1, 2, 0}});
    s.call({{{2, 3, 2, 1, 2, 3, 2}}}, Attrs{{6, 1, 4, 3, 5, 0, 2}});
    s.reject({{{2, 3}}}, Attrs{{0, 0}},
             "permute: order is no permutation, got [0, 0], expected each axis of [2, 3] once");
    s.reject({{{2, 3}}}, Attrs{{0}},
             "permute: order is no permutation, got [0], expected each axis of [2, 3] once");
    s.reject({{{2, 3}}}, Attrs{{0, 2}},
             "permute: order is no permutation, got [0, 2], expected each axis of [2, 3] once");
  }
};

struct Slice {
  static constexpr OpInfo kInfo = movement("slice");
  struct Attrs {
    u32 axis;
    i64 start;
    i64 end;
  };
  static void infer(Infer& in, const Attrs& a) {
    const i64 extent = in.shape(0)[a.axis];
    if (a.start < 0 || a.end > extent || a.start > a.end) {
      in.reject(
          "range out of bounds, got {} to {}, expected 0 <= start <= end <= {} on axis {} of {}",
          a.start, a.end, extent, a.axis, in.shape(0));
    }
    Shape out = in.shape(0);
    out[a.axis] = a.end - a.start;
    in.out(in.dtype(0), out);
  }
  static AffineMap view(const View& v, const Attrs& a) {
    AffineMap map = v.output();
    map.axes[a.axis].offset += a.start;
    return map;
  }
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs& a) {
    const i64 after = g.inputs[0]->shape()[a.axis] - a.end;
    return gradients({pad(grad(g), a.axis, a.start, after)});
  }
  static void samples(Samples& s) {
    for (DType t : kAll) s.call({{{9, 7}, t, -2, 2, true}}, Attrs{1, 2, 5});
    s.call({{{40}}}, Attrs{0, 3, 40});
    s.call({{{40}}}, Attrs{0, 39, 40});
    s.call({{{5, 6}}}, Attrs{0, 2, 2});
    s.call({{{5, 6}}}, Attrs{0, 0, 5});
    s.call({{{0, 6}}}, Attrs{1, 1, 6});
    s.call({{{2, 3, 2, 5, 2, 3, 2}}}, Attrs{3, 1, 4});
    s.reject({{{5, 6}}}, Attrs{0, 3, 2},
             "slice: range out of bounds, got 3 to 2, expected 0 <= start <= end <= 5 on axis 0 of "
             "[5, 6]");
    s.reject({{{5, 6}}}, Attrs{1, 0, 7},
             "slice: range out of bounds, got 0 to 7, expected 0 <= start <= end <= 6 on axis 1 of "
             "[5, 6]");
    s.reject(
        {{{5, 6}}}, Attrs{1, -1, 2},
        "slice: range out of bounds, got -1 to 2, expected 0 <= start <= end <= 6 on axis 1 of "
        "[5, 6]");
  }
};

struct Flip {
  static constexpr OpInfo kInfo = movement("flip");
  struct Attrs {
    u32 axis;
  };
  static void infer(Infer& in, const Attrs&) { in.out(in.dtype(0), in.shape(0)); }
  static AffineMap view(const View& v, const Attrs& a) {
    AffineMap map = v.output();
    AffineExpr e = map.axes[a.axis].scaled(-1);
    e.offset += v.input_shape()[a.axis] - 1;
    map.axes[a.axis] = std::move(e);
    return map;
  }
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs& a) {
    return gradients({flip(grad(g), a.axis)});
  }
  static void samples(Samples& s) {
    for (DType t : kAll) s.call({{{5, 9}, t, -2, 2, true}}, Attrs{1});
    for (const Shape& shape : {Shape{1}, Shape{40}, Shape{4, 1, 7}, Shape{0, 3}}) {
      s.call({{shape}}, Attrs{0});
    }
    s.call({{{2, 3, 2, 5, 2, 3, 2}}}, Attrs{3});
  }
};

// Chooses between an operand and a fill value by position.
struct Pad {
  static constexpr OpInfo kInfo{.name = "pad", .kind = OpKind::Elementwise, .cost = 2};
  struct Attrs {
    u32 axis;
    i64 before;
    i64 after;
    Scalar value;
  };
  static void infer(Infer& in, const Attrs& a) {
    if (a.before < 0 || a.after < 0) {
      in.reject("negative width, got {} before and {} after, expected 0 or more", a.before,
                a.after);
    }
    Shape out = in.shape(0);
    out[a.axis] += a.before + a.after;
    check_shape(in.op(), out, size_bytes(in.dtype(0)));
    in.out(in.dtype(0), out);
  }
  static Value emit(Emit& e, const Attrs& a) {
    const Value fill = scalar_as(e, 0, e.dtype(0));
    if (e.shape(0)[a.axis] == 0) return fill;
    const Value at = e.coord(a.axis);
    const auto word = [&](i64 x) { return kernel::constant_int(at.scalar(), x); };
    // Unsigned arithmetic: a position before the operand wraps to a large one.
    const Value inside = at - word(a.before) < word(e.shape(0)[a.axis]);
    AffineMap map = e.map();
    map.axes[a.axis].offset -= a.before;
    return kernel::select(inside, e.input_if(0, map, inside), fill);
  }
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs& a) {
    return gradients({slice(grad(g), a.axis, a.before, a.before + g.inputs[0]->shape()[a.axis])});
  }
  static void samples(Samples& s) {
    for (DType t : kAll) s.call({{{5, 9}, t, -2, 2, true}}, Attrs{1, 2, 3, 1});
    s.call({{{40}}}, Attrs{0, 0, 1, -0.5});
    s.call({{{40}, DType::I32}}, Attrs{0, 1, 1, 16777217});
    s.call({{{40}, DType::U8}}, Attrs{0, 1, 1, 300});
    s.call({{{40}}}, Attrs{0, 7, 0, std::numeric_limits<f64>::infinity()});
    s.call({{{1, 3}}}, Attrs{0, 1, 1, 0});
    s.call({{{0, 3}}}, Attrs{0, 2, 1, 4});
    s.call({{{3, 0}}}, Attrs{0, 2, 1, 4});
    s.call({{{2, 3, 2, 5, 2, 3, 2}}}, Attrs{3, 1, 1, 9});
    s.reject({{{5}}}, Attrs{0, -1, 2, 0},
             "pad: negative width, got -1 before and 2 after, expected 0 or more");
  }
};

struct Concat {
  static constexpr OpInfo kInfo{.name = "concat", .kind = OpKind::Elementwise, .cost = 3};
  struct Attrs {
    u32 axis;
  };
  static void infer(Infer& in, const Attrs& a) {
    Shape out = in.shape(0);
    for (u32 i = 1; i < in.count(); ++i) {
      if (in.dtype(i) != in.dtype(0)) {
        in.reject("dtypes differ, got {} and {}, expected equal ones", token(in.dtype(0)),
                  token(in.dtype(i)));
      }
      Shape expected = in.shape(i);
      if (expected.rank() == out.rank()) expected[a.axis] = out[a.axis];
      if (expected != out) {
        in.reject("operand {} does not fit, got {} beside {}, expected equal extents off axis {}",
                  i, in.shape(i), in.shape(0), a.axis);
      }
      out[a.axis] += in.shape(i)[a.axis];
    }
    in.out(in.dtype(0), out);
  }
  static Value emit(Emit& e, const Attrs& a) {
    const Value at = e.coord(a.axis);
    const auto word = [&](i64 x) { return kernel::constant_int(at.scalar(), x); };
    Value result;
    i64 begin = 0;
    for (u32 i = 0; i < e.count(); ++i) {
      const i64 extent = e.shape(i)[a.axis];
      if (extent == 0) continue;
      AffineMap map = e.map();
      map.axes[a.axis].offset -= begin;
      const Value inside = at - word(begin) < word(extent);
      const Value x = e.input_if(i, map, inside);
      result = result.valid() ? kernel::select(inside, x, result) : x;
      begin += extent;
    }
    if (!result.valid()) result = kernel::cast(word(0), graph::value_scalar(e.out_dtype()));
    return result;
  }
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs& a) {
    std::vector<TensorRef> parts(g.inputs.size());
    i64 begin = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      const i64 end = begin + g.inputs[i]->shape()[a.axis];
      if (g.wanted[i]) parts[i] = slice(grad(g), a.axis, begin, end).tensor();
      begin = end;
    }
    return parts;
  }
  static void samples(Samples& s) {
    for (DType t : kAll) {
      s.call({{{5, 3}, t, -2, 2, true}, {{5, 4}, t}, {{5, 1}, t, -2, 2, true}}, Attrs{1});
    }
    s.call({{{40}}}, Attrs{0});
    s.call({{{3}}, {{0}}, {{4}}}, Attrs{0});
    s.call({{{0, 3}}, {{0, 2}}}, Attrs{1});
    s.call({{{0}}, {{0}}}, Attrs{0});
    s.call({{{2, 5}}, {{1, 5}}, {{3, 5}}, {{1, 5}}, {{2, 5}}}, Attrs{0});
    s.call({{{2, 1, 2, 3, 2, 1, 2}}, {{2, 1, 2, 1, 2, 1, 2}}}, Attrs{3});
    s.reject({{{2, 3}}, {{2, 3}, DType::F16}}, Attrs{0},
             "concat: dtypes differ, got f32 and f16, expected equal ones");
    s.reject({{{2, 3}}, {{2, 4}}}, Attrs{0},
             "concat: operand 1 does not fit, got [2, 4] beside [2, 3], expected equal extents off "
             "axis 0");
    s.reject({{{2, 3}}, {{2}}}, Attrs{0},
             "concat: operand 1 does not fit, got [2] beside [2, 3], expected equal extents off "
             "axis 0");
  }
};

}  // namespace

OpList movement_ops() { return graph::op_list<BroadcastTo, Permute, Slice, Flip, Pad, Concat>(); }

Matrix reshape(const Matrix& x, const Shape& shape) { return x.reshape(shape); }

Matrix broadcast_to(const Matrix& x, const Shape& shape) {
  return x.shape() == shape ? x : record<BroadcastTo>({x}, {shape});
}

Matrix permute(const Matrix& x, const Dims& order) {
  Dims resolved = order;
  if (order.size() == x.rank()) {
    for (u32 i = 0; i < order.size(); ++i)
      resolved[i] = resolve_axis("permute", order[i], x.rank());
  }
  return record<Permute>({x}, {resolved});
}

Matrix transpose(const Matrix& x, i64 axis0, i64 axis1) {
  const u32 a = resolve_axis("transpose", axis0, x.rank());
  const u32 b = resolve_axis("transpose", axis1, x.rank());
  Dims order;
  for (u32 i = 0; i < x.rank(); ++i) order.push_back(i == a ? b : i == b ? a : i);
  return record<Permute>({x}, {order});
}

Matrix slice(const Matrix& x, i64 axis, i64 start, i64 end) {
  const u32 a = resolve_axis("slice", axis, x.rank());
  const i64 extent = x.shape()[a];
  return record<Slice>({x}, {a, start < 0 ? start + extent : start, end < 0 ? end + extent : end});
}

Matrix flip(const Matrix& x, i64 axis) {
  return record<Flip>({x}, {resolve_axis("flip", axis, x.rank())});
}

Matrix repeat_interleave(const Matrix& x, i64 repeats, i64 axis) {
  const u32 a = resolve_axis("repeat_interleave", axis, x.rank());
  if (repeats < 1) invalid("repeat_interleave", "bad repeats, got {}, expected 1 or more", repeats);
  // A new axis behind the repeated one, broadcast and folded in.
  Shape wide = x.shape();
  wide.insert(a + 1, repeats);
  Shape folded = x.shape();
  folded[a] *= repeats;
  return broadcast_to(x.unsqueeze(a + 1), wide).reshape(folded);
}

Matrix pad(const Matrix& x, i64 axis, i64 before, i64 after, f64 value) {
  const u32 a = resolve_axis("pad", axis, x.rank());
  if (before == 0 && after == 0) return x;
  return record<Pad>({x}, {a, before, after, value});
}

Matrix concat(const std::vector<Matrix>& list, i64 axis) {
  if (list.empty()) invalid("concat", "empty list, expected at least one value");
  const u32 a = resolve_axis("concat", axis, list[0].rank());
  std::vector<TensorRef> inputs;
  for (const Matrix& m : list) inputs.push_back(m.tensor());
  return record_all<Concat>(inputs, {a})[0];
}

}  // namespace oa::matrix
