#include "oa/matrix/reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "oa/matrix/all_ops.h"
#include "oa/matrix/create.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/movement.h"
#include "oa/matrix/record.h"
#include "oa/matrix/sample_sets.h"
#include "oa/matrix/transcendental.h"

namespace oa::matrix {
namespace {

using graph::Reducer;
using graph::ReduceSpec;
using kernel::Value;
using Values = std::vector<Value>;
using Span = std::span<const Value>;

// --- How elements combine ---

Value sum_type(const Value& x) {
  return x.scalar() == kernel::Scalar::Bool ? kernel::cast(x, kernel::Scalar::U32) : x;
}
kernel::Scalar sum_scalar(kernel::Scalar s) {
  return s == kernel::Scalar::Bool ? kernel::Scalar::U32 : s;
}

constexpr Reducer kSum{
    .init = [](kernel::Scalar s) -> Values { return {kernel::literal(sum_scalar(s), 0)}; },
    .step = [](Span a, const Value& x, const Value&) -> Values { return {a[0] + sum_type(x)}; },
    .merge = [](Span a, Span b) -> Values { return {a[0] + b[0]}; },
    .finish = [](Span a, i64, kernel::Scalar out) { return kernel::cast(a[0], out); },
};

constexpr Reducer kMean{
    .init = kSum.init,
    .step = kSum.step,
    .merge = kSum.merge,
    .finish = [](Span a, i64 n, kernel::Scalar) { return a[0] / static_cast<f64>(n); },
};

constexpr Reducer kProd{
    .init = [](kernel::Scalar s) -> Values { return {kernel::literal(sum_scalar(s), 1)}; },
    .step = [](Span a, const Value& x, const Value&) -> Values { return {a[0] * sum_type(x)}; },
    .merge = [](Span a, Span b) -> Values { return {a[0] * b[0]}; },
    .finish = kSum.finish,
};

// The least (greatest) number of a type.
Value extreme(kernel::Scalar s, bool least) {
  constexpr f64 inf = std::numeric_limits<f64>::infinity();
  if (kernel::is_float(s)) return kernel::constant(s, least ? -inf : inf);
  if (s == kernel::Scalar::I32) {
    return kernel::constant_int(
        s, least ? std::numeric_limits<i32>::min() : std::numeric_limits<i32>::max());
  }
  return kernel::constant_int(s, least ? 0 : -1);
}

constexpr Reducer kMax{
    .init = [](kernel::Scalar s) -> Values { return {extreme(s, true)}; },
    .step = [](Span a, const Value& x, const Value&) -> Values { return {kernel::max(a[0], x)}; },
    .merge = [](Span a, Span b) -> Values { return {kernel::max(a[0], b[0])}; },
    .finish = [](Span a, i64, kernel::Scalar) { return a[0]; },
};

constexpr Reducer kMin{
    .init = [](kernel::Scalar s) -> Values { return {extreme(s, false)}; },
    .step = [](Span a, const Value& x, const Value&) -> Values { return {kernel::min(a[0], x)}; },
    .merge = [](Span a, Span b) -> Values { return {kernel::min(a[0], b[0])}; },
    .finish = kMax.finish,
};

// Of two (value, position) pairs the better one: the greater (less) value, a NaN over any number,
// the first position among equals.
template <bool kGreatest>
Values better(Span a, Span b) {
  Value take = kGreatest ? b[0] > a[0] : b[0] < a[0];
  Value same = a[0] == b[0];
  if (kernel::is_float(a[0].scalar())) {
    const Value a_nan = kernel::is_nan(a[0]), b_nan = kernel::is_nan(b[0]);
    take = take | (b_nan & !a_nan);
    same = same | (a_nan & b_nan);
  }
  take = take | (same & (b[1] < a[1]));
  return {kernel::select(take, b[0], a[0]), kernel::select(take, b[1], a[1])};
}

template <bool kGreatest>
constexpr Reducer kArg{
    .init = [](kernel::Scalar s) -> Values {
      return {extreme(s, kGreatest), kernel::constant_int(kernel::Scalar::U32, -1)};
    },
    .step = [](Span a, const Value& x, const Value& position) -> Values {
      const Value b[2] = {x, position};
      return better<kGreatest>(a, b);
    },
    .merge = better<kGreatest>,
    .finish = [](Span a, i64, kernel::Scalar out) { return kernel::cast(a[1], out); },
    .uses_position = true,
};

// --- The op ---

enum class Kind : u8 { Sum, Mean, Prod, Max, Min, ArgMax, ArgMin };
constexpr std::string_view kNames[] = {"sum", "mean", "prod", "max", "min", "argmax", "argmin"};

const Reducer& reducer(Kind k) {
  switch (k) {
    case Kind::Sum: return kSum;
    case Kind::Mean: return kMean;
    case Kind::Prod: return kProd;
    case Kind::Max: return kMax;
    case Kind::Min: return kMin;
    case Kind::ArgMax: return kArg<true>;
    case Kind::ArgMin: return kArg<false>;
  }
  return kSum;
}

Matrix reduce_gradient(Kind kind, const Matrix& x, const Matrix& y, const Matrix& g,
                       const Dims& axes);

template <Kind kKind>
struct Reduce {
  static constexpr OpInfo kInfo{.name = kNames[static_cast<int>(kKind)], .kind = OpKind::Reduction};
  struct Attrs {
    Dims axes;  // ascending
    bool keepdims;
  };
  static constexpr bool kIsArg = kKind == Kind::ArgMax || kKind == Kind::ArgMin;
  static constexpr bool kNeedsElements = kIsArg || kKind == Kind::Max || kKind == Kind::Min;

  static void infer(Infer& in, const Attrs& a) {
    const DType t = in.dtype(0);
    if (kKind == Kind::Mean && !is_float(t)) {
      in.reject("operand 0 has the wrong dtype, got {}, expected a float", token(t));
    }
    if (kNeedsElements && t == DType::Bool) {
      in.reject("operand 0 has the wrong dtype, got bool, expected a number");
    }
    Shape out;
    i64 count = 1;
    for (u32 i = 0; i < in.shape(0).rank(); ++i) {
      const bool reduced = std::find(a.axes.begin(), a.axes.end(), i) != a.axes.end();
      if (reduced) count *= in.shape(0)[i];
      if (!reduced) out.push_back(in.shape(0)[i]);
      if (reduced && a.keepdims) out.push_back(1);
    }
    if (kNeedsElements && count == 0) {
      in.reject("no elements along axes {}, got shape {}, expected at least one", a.axes,
                in.shape(0));
    }
    const bool widens =
        (kKind == Kind::Sum || kKind == Kind::Prod) && (t == DType::Bool || t == DType::U8);
    in.out(kIsArg ? DType::I32 : widens ? DType::U32 : t, out);
  }
  static ReduceSpec reduce(const Infer&, const Attrs& a) {
    ReduceSpec spec{.reducer = &reducer(kKind)};
    for (i64 axis : a.axes) spec.axes.push_back(static_cast<u32>(axis));
    return spec;
  }
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs& a)
    requires(!kIsArg)
  {
    return gradients({reduce_gradient(kKind, input(g, 0), output(g), grad(g), a.axes)});
  }
  static void samples(Samples& s) {
    const std::span<const DType> dtypes = kKind == Kind::Mean ? std::span<const DType>(kFloats)
                                          : kNeedsElements    ? std::span<const DType>(kNumbers)
                                                              : std::span<const DType>(kAll);
    // Long products stay in range.
    const f64 low = kKind == Kind::Prod ? 0.98 : -3, high = kKind == Kind::Prod ? 1.02 : 3;
    const auto along = [&](Shape shape, Dims axes, bool keepdims = false, DType t = DType::F32) {
      s.call({{std::move(shape), t, low, high}}, Attrs{std::move(axes), keepdims});
    };
    for (DType t : dtypes) {
      along({5, 37}, {1}, false, t);
      along({37, 5}, {0}, true, t);
      if (kKind != Kind::Sum && kKind != Kind::Mean && kKind != Kind::Prod) {
        s.call({{{4, 29}, t, -2, 2, true}}, Attrs{{1}, false});
        s.call({{{29, 4}, t, -2, 2, true}}, Attrs{{0}, false});
      }
    }
    along({1}, {0});
    along({1, 1, 1}, {0, 1, 2}, true);
    along({3, 1}, {1});
    along({1, 3}, {0});
    along({40, 41}, {0, 1});
    along({3, 4, 5}, {0, 2});
    along({3, 4, 5}, {1}, true);
    along({3, 1, 5, 2}, {0, 3});
    along({2, 3, 2, 3, 2, 3}, {0, 2, 4});
    along({2, 3, 2, 3, 2, 3}, {1, 3, 5}, true);
    along({2, 1, 3, 2, 1, 2, 3}, {1, 3, 6});
    along({3, 4}, {});
    along({2, 700}, {1});
    along({700, 3}, {0});
    along({0, 5}, {1});
    along({5, 0, 3}, {0}, true);
    if (kNeedsElements) {
      const std::string op(kInfo.name);
      s.reject({{{3, 0}}}, Attrs{{1}, false},
               op + ": no elements along axes [1], got shape [3, 0], expected at least one");
      s.reject({{{3}, DType::Bool}}, Attrs{{0}, false},
               op + ": operand 0 has the wrong dtype, got bool, expected a number");
    } else {
      along({0, 5}, {0});
      along({3, 0}, {1}, true);
      along({0}, {0});
    }
    // Few long rows are cut into slices.
    along({33000}, {0});
    along({2, 33001}, {1});
    along({2100, 3}, {0});
    if (kKind == Kind::Mean) {
      s.reject({{{3}, DType::I32}}, Attrs{{0}, false},
               "mean: operand 0 has the wrong dtype, got i32, expected a float");
    }
  }
};

// y spread over the reduced axes of x's shape.
Matrix spread(const Matrix& y, const Shape& x, const Dims& axes) {
  Shape kept = x;
  for (i64 axis : axes) kept[static_cast<u32>(axis)] = 1;
  return broadcast_to(y.reshape(kept), x);
}

Matrix reduce_gradient(Kind kind, const Matrix& x, const Matrix& y, const Matrix& g,
                       const Dims& axes) {
  const Shape& shape = x.shape();
  const Matrix wide = spread(g, shape, axes);
  if (kind == Kind::Sum) return wide;
  if (kind == Kind::Mean) {
    const i64 n = y.num_elements() == 0 ? 1 : x.num_elements() / y.num_elements();
    return wide / static_cast<f64>(n);
  }
  const Matrix zero = full_like(x, 0), one = full_like(x, 1);
  if (kind == Kind::Prod) {
    // The product of the others: with a zero among them only that zero's gradient is not 0.
    const Matrix is_zero = equal(x, zero);
    const Matrix zeros = sum(where(is_zero, one, zero), axes, true);
    const Matrix rest = record<Reduce<Kind::Prod>>({where(is_zero, one, x)}, {axes, true});
    const Matrix alone = where(is_zero, broadcast_to(rest, shape), zero);
    const Matrix none = rest / where(is_zero, one, x);
    return wide * where(equal(zeros, full_like(zeros, 0)), none,
                        where(equal(zeros, full_like(zeros, 1)), alone, zero));
  }
  // All elements that equal the extremum share; where it is NaN, the NaNs do.
  const Matrix peak = spread(y, shape, axes);
  const Matrix hit = logical_or(equal(x, peak), logical_and(is_nan(x), is_nan(peak)));
  const Matrix count = sum(where(hit, one, zero), axes, true);
  return where(hit, wide / broadcast_to(count, shape), zero);
}

Dims all_axes(const Matrix& x) {
  Dims axes;
  for (u32 i = 0; i < x.rank(); ++i) axes.push_back(i);
  return axes;
}

Dims resolve_axes(std::string_view op, const Matrix& x, const Dims& axes) {
  std::vector<i64> list;
  for (i64 a : axes) list.push_back(resolve_axis(op, a, x.rank()));
  std::sort(list.begin(), list.end());
  if (std::adjacent_find(list.begin(), list.end()) != list.end()) {
    invalid(op, "an axis is named twice, got {}, expected different ones", axes);
  }
  return Dims(std::span<const i64>(list));
}

// A value of rank 0 is reduced as one element.
template <Kind kKind>
Matrix reduce(const Matrix& x, const Dims& axes, bool keepdims) {
  if (x.rank() == 0) return record<Reduce<kKind>>({x.reshape({1})}, {Dims{0}, false});
  return record<Reduce<kKind>>({x}, {axes, keepdims});
}

template <Kind kKind>
Matrix reduce(const Matrix& x, i64 axis, bool keepdims) {
  const std::string_view op = Reduce<kKind>::kInfo.name;
  return reduce<kKind>(x, Dims{resolve_axis(op, axis, x.rank())}, keepdims);
}

// --- Composites ---

struct AxisAttrs {
  i64 axis;  // resolved
  bool keepdims;
};

void float_along_axis(const Infer& in) {
  if (!is_float(in.dtype(0))) {
    in.reject("operand 0 has the wrong dtype, got {}, expected a float", token(in.dtype(0)));
  }
}

Shape without_axis(const Shape& shape, i64 axis, bool keepdims) {
  Shape out = shape;
  if (keepdims) {
    out[static_cast<u32>(axis)] = 1;
  } else {
    out.erase(static_cast<u32>(axis));
  }
  return out;
}

// The maximum along an axis, with 0 for an infinite one, so that subtracting it is always safe.
Matrix finite_max(const Matrix& x, i64 axis) {
  const Matrix peak = max(x, axis, true);
  return where(less(abs(peak), full_like(peak, std::numeric_limits<f64>::infinity())), peak,
               full_like(peak, 0));
}

// Ops along one axis: rows and columns of every length that kernels treat differently.
template <class MakeAttrs>
void row_samples(Samples& s, MakeAttrs&& attrs) {
  for (DType t : kFloats) {
    s.call({{{5, 37}, t, -9, 9}}, attrs(1));
    s.call({{{37, 5}, t, -9, 9}}, attrs(0));
  }
  s.call({{{1}}}, attrs(0));
  s.call({{{6, 1}}}, attrs(1));
  s.call({{{1, 6}}}, attrs(0));
  s.call({{{3, 4, 5}}}, attrs(1));
  s.call({{{2, 3, 1, 2, 5, 1, 2}}}, attrs(4));
  s.call({{{3, 700}, DType::F32, -30, 30}}, attrs(1));
  s.call({{{0, 3}}}, attrs(1));
  s.call({{{2, 33001}}}, attrs(1));
  s.call({{{29, 7}, DType::F32, -2, 2, true}}, attrs(1));
}

struct LogSumExp {
  static constexpr OpInfo kInfo{.name = "log_sum_exp", .kind = OpKind::Composite};
  using Attrs = AxisAttrs;
  static void infer(Infer& in, const Attrs& a) {
    float_along_axis(in);
    in.out(in.dtype(0), without_axis(in.shape(0), a.axis, a.keepdims));
  }
  static std::vector<TensorRef> define(std::span<const TensorRef> in, const Attrs& a) {
    const Matrix x(in[0]);
    if (x.shape()[static_cast<u32>(a.axis)] == 0) {  // log of an empty sum
      return {log(sum(x, a.axis, a.keepdims)).tensor()};
    }
    const Matrix shift = finite_max(x, a.axis);
    const Matrix y = log(sum(exp(x - shift), a.axis, true)) + shift;
    return {(a.keepdims ? y : y.squeeze(a.axis)).tensor()};
  }
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs& a) {
    const Matrix x = input(g, 0);
    const Dims axis{a.axis};
    const Matrix y = spread(output(g), x.shape(), axis);
    // A row of -inf has gradient 0.
    const Matrix none = equal(y, full_like(y, -std::numeric_limits<f64>::infinity()));
    return gradients({where(none, full_like(y, 0), spread(grad(g), x.shape(), axis) * exp(x - y))});
  }
  static void samples(Samples& s) {
    row_samples(s, [](i64 axis) { return Attrs{axis, false}; });
    s.call({{{3, 4, 5}}}, Attrs{1, true});
    s.call({{{5, 0}}}, Attrs{1, true});
    s.call({{{0, 5}}}, Attrs{0, false});
    s.reject({{{3}, DType::U32}}, Attrs{0, false},
             "log_sum_exp: operand 0 has the wrong dtype, got u32, expected a float");
  }
};

struct Softmax {
  static constexpr OpInfo kInfo{.name = "softmax", .kind = OpKind::Composite};
  struct Attrs {
    i64 axis;
  };
  static void infer(Infer& in, const Attrs&) {
    float_along_axis(in);
    in.out(in.dtype(0), in.shape(0));
  }
  static std::vector<TensorRef> define(std::span<const TensorRef> in, const Attrs& a) {
    const Matrix x(in[0]);
    if (x.num_elements() == 0) return {copy(x).tensor()};
    const Matrix e = exp(x - max(x, a.axis, true));
    return {(e * reciprocal(sum(e, a.axis, true))).tensor()};
  }
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs& a) {
    const Matrix y = output(g), weighted = grad(g) * y;
    if (y.num_elements() == 0) return gradients({weighted});
    return gradients({weighted - y * sum(weighted, a.axis, true)});
  }
  static void samples(Samples& s) {
    row_samples(s, [](i64 axis) { return Attrs{axis}; });
    s.reject({{{3}, DType::I32}}, Attrs{0},
             "softmax: operand 0 has the wrong dtype, got i32, expected a float");
  }
};

struct LogSoftmax {
  static constexpr OpInfo kInfo{.name = "log_softmax", .kind = OpKind::Composite};
  using Attrs = Softmax::Attrs;
  static void infer(Infer& in, const Attrs& a) { Softmax::infer(in, a); }
  static std::vector<TensorRef> define(std::span<const TensorRef> in, const Attrs& a) {
    const Matrix x(in[0]);
    if (x.num_elements() == 0) return {copy(x).tensor()};
    const Matrix shifted = x - max(x, a.axis, true);
    return {(shifted - log(sum(exp(shifted), a.axis, true))).tensor()};
  }
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs& a) {
    const Matrix y = output(g);
    if (y.num_elements() == 0) return gradients({grad(g)});
    return gradients({grad(g) - exp(y) * sum(grad(g), a.axis, true)});
  }
  static void samples(Samples& s) {
    row_samples(s, [](i64 axis) { return Attrs{axis}; });
    s.reject({{{3}, DType::Bool}}, Attrs{0},
             "log_softmax: operand 0 has the wrong dtype, got bool, expected a float");
  }
};

struct Variance {
  static constexpr OpInfo kInfo{.name = "variance", .kind = OpKind::Composite};
  struct Attrs {
    Dims axes;
    bool keepdims;
    i64 correction;
  };
  static void infer(Infer& in, const Attrs& a) {
    float_along_axis(in);
    Reduce<Kind::Mean>::infer(in, {a.axes, a.keepdims});
  }
  static std::vector<TensorRef> define(std::span<const TensorRef> in, const Attrs& a) {
    const Matrix x(in[0]);
    i64 n = 1;
    for (i64 axis : a.axes) n *= x.shape()[static_cast<u32>(axis)];
    const Matrix d = x - mean(x, a.axes, true);
    return {(sum(d * d, a.axes, a.keepdims) / static_cast<f64>(n - a.correction)).tensor()};
  }
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs& a) {
    const Matrix x = input(g, 0);
    i64 n = 1;
    for (i64 axis : a.axes) n *= x.shape()[static_cast<u32>(axis)];
    const Matrix d = x - mean(x, a.axes, true);
    return gradients(
        {spread(grad(g), x.shape(), a.axes) * d * (2.0 / static_cast<f64>(n - a.correction))});
  }
  static void samples(Samples& s) {
    row_samples(s, [](i64 axis) { return Attrs{Dims{axis}, false, 0}; });
    s.call({{{3, 4, 5}}}, Attrs{{0, 2}, true, 1});
    s.call({{{3, 4, 5}}}, Attrs{{0, 1, 2}, false, 0});
    s.call({{{4, 9}, DType::F32, 1000, 1001}}, Attrs{{1}, false, 1});
    s.reject({{{3}, DType::U8}}, Attrs{{0}, false, 0},
             "variance: operand 0 has the wrong dtype, got u8, expected a float");
  }
};

}  // namespace

OpList reduce_ops() {
  return graph::op_list<Reduce<Kind::Sum>, Reduce<Kind::Mean>, Reduce<Kind::Prod>,
                        Reduce<Kind::Max>, Reduce<Kind::Min>, Reduce<Kind::ArgMax>,
                        Reduce<Kind::ArgMin>, LogSumExp, Softmax, LogSoftmax, Variance>();
}

Matrix sum(const Matrix& x) { return reduce<Kind::Sum>(x, all_axes(x), false); }
Matrix sum(const Matrix& x, i64 axis, bool keepdims) {
  return reduce<Kind::Sum>(x, axis, keepdims);
}
Matrix sum(const Matrix& x, const Dims& axes, bool keepdims) {
  return reduce<Kind::Sum>(x, resolve_axes("sum", x, axes), keepdims);
}
Matrix mean(const Matrix& x) { return reduce<Kind::Mean>(x, all_axes(x), false); }
Matrix mean(const Matrix& x, i64 axis, bool keepdims) {
  return reduce<Kind::Mean>(x, axis, keepdims);
}
Matrix mean(const Matrix& x, const Dims& axes, bool keepdims) {
  return reduce<Kind::Mean>(x, resolve_axes("mean", x, axes), keepdims);
}
Matrix prod(const Matrix& x) { return reduce<Kind::Prod>(x, all_axes(x), false); }
Matrix prod(const Matrix& x, i64 axis, bool keepdims) {
  return reduce<Kind::Prod>(x, axis, keepdims);
}
Matrix max(const Matrix& x) { return reduce<Kind::Max>(x, all_axes(x), false); }
Matrix max(const Matrix& x, i64 axis, bool keepdims) {
  return reduce<Kind::Max>(x, axis, keepdims);
}
Matrix min(const Matrix& x) { return reduce<Kind::Min>(x, all_axes(x), false); }
Matrix min(const Matrix& x, i64 axis, bool keepdims) {
  return reduce<Kind::Min>(x, axis, keepdims);
}
Matrix argmax(const Matrix& x, i64 axis, bool keepdims) {
  return reduce<Kind::ArgMax>(x, axis, keepdims);
}
Matrix argmin(const Matrix& x, i64 axis, bool keepdims) {
  return reduce<Kind::ArgMin>(x, axis, keepdims);
}

Matrix sum_to(const Matrix& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  if (broadcast_shapes("sum_to", shape, x.shape()) != x.shape()) {
    invalid("sum_to", "shape does not fit, got {} to {}, expected one that broadcasts to the first",
            x.shape(), shape);
  }
  const u32 skip = x.rank() - shape.rank();
  Dims axes;
  for (u32 i = 0; i < x.rank(); ++i) {
    if (i < skip || (shape[i - skip] == 1 && x.shape()[i] != 1)) axes.push_back(i);
  }
  return (axes.size() == 0 ? x : sum(x, axes)).reshape(shape);
}

Matrix variance(const Matrix& x, i64 axis, bool keepdims, i64 correction) {
  return record<Variance>({x},
                          {Dims{resolve_axis("variance", axis, x.rank())}, keepdims, correction});
}
Matrix variance(const Matrix& x) {
  const Matrix flat = x.rank() == 0 ? x.reshape({1}) : x;
  return record<Variance>({flat}, {all_axes(flat), false, 0});
}

Matrix log_sum_exp(const Matrix& x, i64 axis, bool keepdims) {
  return record<LogSumExp>({x}, {resolve_axis("log_sum_exp", axis, x.rank()), keepdims});
}
Matrix softmax(const Matrix& x, i64 axis) {
  return record<Softmax>({x}, {resolve_axis("softmax", axis, x.rank())});
}
Matrix log_softmax(const Matrix& x, i64 axis) {
  return record<LogSoftmax>({x}, {resolve_axis("log_softmax", axis, x.rank())});
}

}  // namespace oa::matrix
