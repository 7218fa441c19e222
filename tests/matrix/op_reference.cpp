#include "op_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace oa::test {
namespace {

constexpr f64 kInf = std::numeric_limits<f64>::infinity();
constexpr f64 kNan = std::numeric_limits<f64>::quiet_NaN();
using Args = std::span<const f64>;
using Index = std::vector<i64>;

i64 as_int(const Attributes& a, size_t i) { return std::get<i64>(a.at(i)); }
f64 as_number(const Attributes& a, size_t i) { return std::get<f64>(a.at(i)); }
const Dims& as_dims(const Attributes& a, size_t i) { return std::get<Dims>(a.at(i)); }

// A runtime scalar as a kernel of dtype `t` sees it.
f64 scalar_of(DType t, f64 x) { return t == DType::F64 ? x : static_cast<f32>(x); }

size_t flat(const Shape& shape, const Index& at) {
  i64 i = 0;
  for (u32 a = 0; a < shape.rank(); ++a) i = i * shape[a] + at[a];
  return static_cast<size_t>(i);
}

// Calls f(position) for every position of a shape, in row-major order.
template <class F>
void for_each_position(const Shape& shape, F&& f) {
  if (shape.elements() == 0) return;
  Index at(shape.rank(), 0);
  for (;;) {
    f(static_cast<const Index&>(at));
    u32 a = shape.rank();
    while (a > 0 && ++at[a - 1] == shape[a - 1]) at[--a] = 0;
    if (a == 0) return;
  }
}

// The element of `x` that broadcasting puts at a position of a larger shape.
f64 broadcast_at(const Array& x, const Index& at) {
  const size_t skip = at.size() - x.shape.rank();
  Index own(x.shape.rank());
  for (u32 a = 0; a < x.shape.rank(); ++a) own[a] = x.shape[a] == 1 ? 0 : at[a + skip];
  return x.v[flat(x.shape, own)];
}

template <class F>
Array elementwise(DType out, const std::vector<Array>& in, F&& f) {
  Shape shape = in[0].shape;
  for (size_t i = 1; i < in.size(); ++i) shape = broadcast_shapes("reference", shape, in[i].shape);
  Array result{out, shape, {}};
  std::vector<f64> args(in.size());
  for_each_position(shape, [&](const Index& at) {
    for (size_t i = 0; i < in.size(); ++i) args[i] = broadcast_at(in[i], at);
    result.v.push_back(stored(out, f(Args(args))));
  });
  return result;
}

// Operand 0 at another position.
template <class F>
Expected moved(const std::vector<Array>& in, const Shape& shape, F&& from) {
  Array result{in[0].dtype, shape, {}};
  for_each_position(
      shape, [&](const Index& at) { result.v.push_back(in[0].v[flat(in[0].shape, from(at))]); });
  return {result};
}

// --- Elementwise ---

// Integers are exact in 64 bits; what leaves 32 wraps.
f64 wrapped(DType t, i64 x) {
  return t == DType::I32 ? static_cast<f64>(static_cast<i32>(static_cast<u32>(x)))
                         : static_cast<f64>(static_cast<u32>(x));
}

template <class Float, class Int>
Reference arithmetic(Float f, Int g) {
  return [=](const std::vector<Array>& in, const Attributes&) -> Expected {
    const DType t = in[0].dtype;
    return {elementwise(t, in, [&](Args x) {
      return is_float(t) ? f(x[0], x[1])
                         : wrapped(t, g(static_cast<i64>(x[0]), static_cast<i64>(x[1])));
    })};
  };
}

template <class F>
Reference comparison(F f) {
  return [=](const std::vector<Array>& in, const Attributes&) -> Expected {
    return {elementwise(DType::Bool, in, [&](Args x) { return f64(f(x[0], x[1])); })};
  };
}

template <class F>
Reference with_scalar(F f, bool signed_zero = true) {
  return [=](const std::vector<Array>& in, const Attributes& a) -> Expected {
    const DType t = in[0].dtype;
    const f64 s = scalar_of(t, as_number(a, 0));
    return {.value = elementwise(t, in, [&](Args x) { return f(x[0], s); }),
            .signed_zero = signed_zero};
  };
}

template <class F>
Reference exact(F f) {
  return [=](const std::vector<Array>& in, const Attributes&) -> Expected {
    return {elementwise(in[0].dtype, in, [&](Args x) { return f(x[0]); })};
  };
}

// Functions of the kernel math library, whose bounds are a few ulp.
template <class F>
Reference function(F f, f64 ulps = 3) {
  return [=](const std::vector<Array>& in, const Attributes&) -> Expected {
    return {.value = elementwise(
                in[0].dtype, in,
                [&](Args x) { return static_cast<f64>(f(static_cast<long double>(x[0]))); }),
            .ulps = ulps};
  };
}

// Sine and cosine promise no digits where an argument has none left after a few turns.
template <class F>
Reference turning(F f) {
  return [=](const std::vector<Array>& in, const Attributes& a) -> Expected {
    Expected e = function(f)(in, a);
    const f64 limit = in[0].dtype == DType::F64 ? 1e9 : 1e5;
    for (size_t i = 0; i < in[0].v.size(); ++i) {
      const f64 x = std::abs(in[0].v[i]);
      e.scale.push_back(x > limit && x < kInf ? kInf : std::abs(e.value.v[i]));
    }
    return e;
  };
}

f64 power(f64 x, f64 y) {
  return static_cast<f64>(std::pow(static_cast<long double>(x), static_cast<long double>(y)));
}

f64 greater_of(f64 a, f64 b) { return std::isnan(a) || std::isnan(b) ? kNan : std::max(a, b); }
f64 lesser_of(f64 a, f64 b) { return std::isnan(a) || std::isnan(b) ? kNan : std::min(a, b); }

f64 to_integer(f64 x, f64 low, f64 high) {
  return std::isnan(x) ? 0 : std::clamp(std::trunc(x), low, high);
}

f64 converted(DType from, DType to, f64 x) {
  if (to == DType::Bool) return x != 0;
  if (is_float(to) || !is_float(from)) return stored(to, x);
  if (to == DType::I32) return to_integer(x, -0x1p31, 0x1p31 - 1);
  return to_integer(x, 0, to == DType::U8 ? 255 : 0x1p32 - 1);
}

// --- Reductions ---

struct Row {
  std::vector<f64> v;
};

// Calls f(row) for every row along `axes`, in the order of the result.
template <class F>
Array reduced(const Array& x, const Dims& axes, bool keepdims, DType out, F&& f) {
  std::vector<bool> is_reduced(x.shape.rank());
  for (i64 a : axes) is_reduced[static_cast<size_t>(a)] = true;
  Shape kept, inner, result_shape;
  for (u32 i = 0; i < x.shape.rank(); ++i) {
    kept.push_back(is_reduced[i] ? 1 : x.shape[i]);
    inner.push_back(is_reduced[i] ? x.shape[i] : 1);
    if (!is_reduced[i] || keepdims) result_shape.push_back(kept[i]);
  }
  Array result{out, result_shape, {}};
  for_each_position(kept, [&](const Index& outer) {
    Row row;
    for_each_position(inner, [&](const Index& at) {
      Index sum(at.size());
      for (size_t i = 0; i < at.size(); ++i) sum[i] = at[i] + outer[i];
      row.v.push_back(x.v[flat(x.shape, sum)]);
    });
    result.v.push_back(stored(out, f(row)));
  });
  return result;
}

i64 length_of(const Array& x, const Dims& axes) {
  i64 n = 1;
  for (i64 a : axes) n *= x.shape[static_cast<u32>(a)];
  return n;
}

DType sum_dtype(DType t) { return t == DType::Bool || t == DType::U8 ? DType::U32 : t; }

f64 total(const Row& r) {
  long double s = 0;
  for (f64 x : r.v) s += x;
  return static_cast<f64>(s);
}
f64 magnitude(const Row& r) {
  long double s = 0;
  for (f64 x : r.v) s += std::abs(x);
  return static_cast<f64>(s);
}

Expected sum_of(const std::vector<Array>& in, const Attributes& a, bool mean) {
  const Array& x = in[0];
  const Dims& axes = as_dims(a, 0);
  const bool keep = as_int(a, 1) != 0;
  const DType t = sum_dtype(x.dtype);
  const f64 n = mean ? static_cast<f64>(length_of(x, axes)) : 1;
  Expected e;
  e.value = reduced(x, axes, keep, t, [&](const Row& r) {
    return is_float(t) ? total(r) / n : wrapped(t, static_cast<i64>(total(r)));
  });
  if (!is_float(t)) return e;
  e.ulps = 2;
  e.length = length_of(x, axes);
  e.scale = reduced(x, axes, keep, DType::F64, [&](const Row& r) { return magnitude(r) / n; }).v;
  return e;
}

Expected product_of(const std::vector<Array>& in, const Attributes& a) {
  const Array& x = in[0];
  const Dims& axes = as_dims(a, 0);
  const DType t = sum_dtype(x.dtype);
  Expected e;
  e.value = reduced(x, axes, as_int(a, 1) != 0, t, [&](const Row& r) {
    long double p = 1;
    u64 wrapping = 1;
    for (f64 v : r.v) {
      p *= v;
      if (!is_float(t)) wrapping *= static_cast<u64>(static_cast<i64>(v));
    }
    return is_float(t) ? static_cast<f64>(p) : wrapped(t, static_cast<i64>(wrapping));
  });
  if (is_float(t)) e.ulps = static_cast<f64>(length_of(x, axes)) + 1;
  return e;
}

Expected extreme_of(const std::vector<Array>& in, const Attributes& a, bool greatest, bool index) {
  const Array& x = in[0];
  Expected e{.signed_zero = false};
  e.value =
      reduced(x, as_dims(a, 0), as_int(a, 1) != 0, index ? DType::I32 : x.dtype, [&](const Row& r) {
        size_t best = 0;
        for (size_t i = 1; i < r.v.size() && !std::isnan(r.v[best]); ++i) {
          const f64 v = r.v[i];
          const bool better = greatest ? v > r.v[best] : v < r.v[best];
          if (better || std::isnan(v)) best = i;
        }
        return index ? static_cast<f64>(best) : r.v[best];
      });
  return e;
}

// --- Along one axis ---

f64 row_peak(const Row& r) {
  f64 m = -kInf;
  for (f64 x : r.v) m = greater_of(m, x);
  return m;
}

// log(sum(exp(r))) without overflow; -inf for a row without mass, inf if an element is.
f64 log_sum(const Row& r) {
  const f64 m = row_peak(r);
  if (std::isnan(m) || std::isinf(m)) return m;
  long double s = 0;
  for (f64 x : r.v) s += std::exp(static_cast<long double>(x) - m);
  return static_cast<f64>(m + std::log(s));
}

Expected log_sum_exp(const std::vector<Array>& in, const Attributes& a) {
  const Dims axes{as_int(a, 0)};
  const bool keep = as_int(a, 1) != 0;
  const Array& x = in[0];
  Expected e{.ulps = 6, .length = length_of(x, axes), .composite = true};
  e.value = reduced(x, axes, keep, x.dtype, log_sum);
  e.scale = reduced(x, axes, keep, DType::F64, [](const Row& r) {
              return std::abs(row_peak(r)) + std::abs(log_sum(r)) + 1;
            }).v;
  return e;
}

// The maximum of a row, and the sum of exp(x - maximum) and its logarithm.
struct RowMass {
  f64 peak;
  long double sum = 0;
  f64 size;
  explicit RowMass(const Row& r) : peak(row_peak(r)), size(static_cast<f64>(r.v.size())) {
    for (f64 x : r.v) sum += std::exp(static_cast<long double>(x) - peak);
  }
};

// Every element from its row's mass and itself.
template <class F>
Array per_row(const Array& x, i64 axis, DType out, F&& f) {
  Array result{out, x.shape, std::vector<f64>(x.v.size())};
  Shape kept = x.shape;
  kept[static_cast<u32>(axis)] = 1;
  for_each_position(kept, [&](const Index& outer) {
    Row row;
    std::vector<size_t> places;
    Index at = outer;
    for (i64 i = 0; i < x.shape[static_cast<u32>(axis)]; ++i) {
      at[static_cast<size_t>(axis)] = i;
      places.push_back(flat(x.shape, at));
      row.v.push_back(x.v[places.back()]);
    }
    const RowMass mass(row);
    for (size_t i = 0; i < places.size(); ++i) {
      result.v[places[i]] = stored(out, f(mass, row.v[i]));
    }
  });
  return result;
}

Expected softmax(const std::vector<Array>& in, const Attributes& a) {
  const Array& x = in[0];
  const i64 axis = as_int(a, 0);
  const auto value = [](const RowMass& r, f64 v) {
    return std::isinf(r.peak)
               ? kNan
               : static_cast<f64>(std::exp(static_cast<long double>(v) - r.peak) / r.sum);
  };
  Expected e{.ulps = 8, .length = length_of(x, Dims{axis}), .composite = true};
  e.value = per_row(x, axis, x.dtype, value);
  e.scale = per_row(x, axis, DType::F64, [&](const RowMass& r, f64 v) {
              const f64 y = value(r, v);
              return y == 0 ? 0 : y * (1 + std::abs(v - r.peak));
            }).v;
  return e;
}

Expected log_softmax(const std::vector<Array>& in, const Attributes& a) {
  const Array& x = in[0];
  const i64 axis = as_int(a, 0);
  Expected e{.ulps = 6, .length = length_of(x, Dims{axis}), .composite = true};
  e.value = per_row(x, axis, x.dtype, [](const RowMass& r, f64 v) {
    return std::isinf(r.peak) ? kNan : static_cast<f64>(v - r.peak - std::log(r.sum));
  });
  e.scale = per_row(x, axis, DType::F64, [](const RowMass& r, f64 v) {
              return std::abs(v) + std::abs(r.peak) + std::log(r.size) + 1;
            }).v;
  return e;
}

Expected variance(const std::vector<Array>& in, const Attributes& a) {
  const Array& x = in[0];
  const Dims& axes = as_dims(a, 0);
  const bool keep = as_int(a, 1) != 0;
  const f64 n = static_cast<f64>(length_of(x, axes));
  const f64 divisor = n - static_cast<f64>(as_int(a, 2));
  const auto spread = [&](const Row& r, bool scale) {
    const f64 mean = total(r) / n;
    long double s = 0;
    for (f64 v : r.v) s += (v - mean) * (scale ? std::abs(v) + std::abs(mean) : v - mean);
    if (scale) s = 0;
    for (f64 v : r.v) {
      if (scale) s += std::abs(v - mean) * (std::abs(v) + std::abs(mean));
    }
    return static_cast<f64>(s / divisor);
  };
  Expected e{.ulps = 6, .length = length_of(x, axes), .composite = true};
  e.value = reduced(x, axes, keep, x.dtype, [&](const Row& r) { return spread(r, false); });
  e.scale = reduced(x, axes, keep, DType::F64, [&](const Row& r) { return spread(r, true); }).v;
  return e;
}

// --- Products ---

Reference product(bool transpose_a, bool transpose_b) {
  return [=](const std::vector<Array>& in, const Attributes& attributes) -> Expected {
    const Array &a = in[0], &b = in[1];
    const u32 ra = a.shape.rank(), rb = b.shape.rank();
    const i64 m = a.shape[ra - (transpose_a ? 1 : 2)], k = a.shape[ra - (transpose_a ? 2 : 1)];
    const i64 n = b.shape[rb - (transpose_b ? 2 : 1)];
    Shape batch_a, batch_b;
    for (u32 i = 0; i + 2 < ra; ++i) batch_a.push_back(a.shape[i]);
    for (u32 i = 0; i + 2 < rb; ++i) batch_b.push_back(b.shape[i]);
    const Shape batch = broadcast_shapes("reference", batch_a, batch_b);
    const bool wide = attributes.size() > 1 && as_int(attributes, 1) != 0;
    const DType t = wide ? DType::F32 : a.dtype;
    Expected e;
    e.value = {t, batch, {}};
    e.value.shape.push_back(m);
    e.value.shape.push_back(n);
    const auto matrix_at = [](const Shape& own, const Index& at) {
      i64 i = 0;
      for (u32 d = 0; d < own.rank(); ++d) {
        const i64 c = own[d] == 1 ? 0 : at[d + at.size() - own.rank()];
        i = i * own[d] + c;
      }
      return i;
    };
    for_each_position(batch, [&](const Index& at) {
      const i64 a0 = matrix_at(batch_a, at) * m * k, b0 = matrix_at(batch_b, at) * k * n;
      for (i64 i = 0; i < m; ++i) {
        for (i64 j = 0; j < n; ++j) {
          long double sum = 0, size = 0;
          u64 wrapping = 0;
          for (i64 l = 0; l < k; ++l) {
            const f64 x = a.v[static_cast<size_t>(a0 + (transpose_a ? l * m + i : i * k + l))];
            const f64 y = b.v[static_cast<size_t>(b0 + (transpose_b ? j * k + l : l * n + j))];
            sum += static_cast<long double>(x) * y;
            size += std::abs(static_cast<long double>(x) * y);
            if (!is_float(t)) {
              wrapping +=
                  static_cast<u64>(static_cast<i64>(x)) * static_cast<u64>(static_cast<i64>(y));
            }
          }
          e.value.v.push_back(stored(
              t, is_float(t) ? static_cast<f64>(sum) : wrapped(t, static_cast<i64>(wrapping))));
          e.scale.push_back(static_cast<f64>(size));
        }
      }
    });
    if (is_float(t)) {
      // Operands may be rounded to 16 bits, or stay as they are where nobody stores them.
      const auto precision = static_cast<Precision>(as_int(attributes, 0));
      e.ulps = precision == Precision::BF16 ? 1 << 16 : precision == Precision::F16 ? 1 << 14 : 2;
      e.length = k;
    }
    return e;
  };
}

// --- Movement and creation ---

Expected pad(const std::vector<Array>& in, const Attributes& a) {
  const auto axis = static_cast<u32>(as_int(a, 0));
  const DType t = in[0].dtype;
  Shape shape = in[0].shape;
  shape[axis] += as_int(a, 1) + as_int(a, 2);
  const f64 fill = converted(DType::F64, t, as_number(a, 3));
  Array result{t, shape, {}};
  for_each_position(shape, [&](const Index& at) {
    Index from = at;
    from[axis] -= as_int(a, 1);
    const bool inside = from[axis] >= 0 && from[axis] < in[0].shape[axis];
    result.v.push_back(inside ? in[0].v[flat(in[0].shape, from)] : fill);
  });
  return {result};
}

Expected concat(const std::vector<Array>& in, const Attributes& a) {
  const auto axis = static_cast<u32>(as_int(a, 0));
  Shape shape = in[0].shape;
  for (size_t i = 1; i < in.size(); ++i) shape[axis] += in[i].shape[axis];
  Array result{in[0].dtype, shape, {}};
  for_each_position(shape, [&](const Index& at) {
    Index from = at;
    size_t i = 0;
    while (from[axis] >= in[i].shape[axis]) from[axis] -= in[i++].shape[axis];
    result.v.push_back(in[i].v[flat(in[i].shape, from)]);
  });
  return {result};
}

std::map<std::string, Reference> make_references() {
  using L = long double;
  std::map<std::string, Reference> r;
  r["add"] = arithmetic([](f64 a, f64 b) { return a + b; }, [](i64 a, i64 b) { return a + b; });
  r["sub"] = arithmetic([](f64 a, f64 b) { return a - b; }, [](i64 a, i64 b) { return a - b; });
  r["mul"] = arithmetic(
      [](f64 a, f64 b) { return a * b; },
      [](i64 a, i64 b) { return static_cast<i64>(static_cast<u64>(a) * static_cast<u64>(b)); });
  r["div"] = arithmetic([](f64 a, f64 b) { return a / b; }, [](i64 a, i64 b) { return a / b; });
  const auto without_sign = [](Reference f) -> Reference {
    return [f](const std::vector<Array>& in, const Attributes& a) {
      Expected e = f(in, a);
      e.signed_zero = false;
      return e;
    };
  };
  r["maximum"] = without_sign(arithmetic(greater_of, [](i64 a, i64 b) { return std::max(a, b); }));
  r["minimum"] = without_sign(arithmetic(lesser_of, [](i64 a, i64 b) { return std::min(a, b); }));
  r["equal/2"] = comparison([](f64 a, f64 b) { return a == b; });
  r["not_equal"] = comparison([](f64 a, f64 b) { return a != b; });
  r["less"] = comparison([](f64 a, f64 b) { return a < b; });
  r["less_equal"] = comparison([](f64 a, f64 b) { return a <= b; });
  r["logical_and"] = comparison([](f64 a, f64 b) { return a != 0 && b != 0; });
  r["logical_or"] = comparison([](f64 a, f64 b) { return a != 0 || b != 0; });
  r["logical_xor"] = comparison([](f64 a, f64 b) { return (a != 0) != (b != 0); });
  r["logical_not"] = exact([](f64 a) -> f64 { return a == 0; });
  r["scale"] = with_scalar([](f64 x, f64 s) { return x * s; });
  r["add_scalar"] = with_scalar([](f64 x, f64 s) { return x + s; });
  r["sub_scalar"] = with_scalar([](f64 x, f64 s) { return x - s; });
  r["div_scalar"] = with_scalar([](f64 x, f64 s) { return x / s; });
  r["clamp_min"] = with_scalar(greater_of, false);
  r["clamp_max"] = with_scalar(lesser_of, false);
  r["equal/1"] = [](const std::vector<Array>& in, const Attributes& a) -> Expected {
    const f64 s = scalar_of(in[0].dtype, as_number(a, 0));
    return {elementwise(DType::F32, in, [&](Args x) { return f64(x[0] == s); })};
  };
  r["neg"] = exact([](f64 x) { return -x; });
  r["abs"] = exact([](f64 x) { return std::abs(x); });
  r["sign"] =
      without_sign(exact([](f64 x) { return std::isnan(x) ? x : f64(x > 0) - f64(x < 0); }));
  r["sqrt"] = exact([](f64 x) { return std::sqrt(x); });
  r["reciprocal"] = exact([](f64 x) { return 1 / x; });
  r["square"] = exact([](f64 x) { return x * x; });
  r["floor"] = exact([](f64 x) { return std::floor(x); });
  r["ceil"] = exact([](f64 x) { return std::ceil(x); });
  r["round"] = exact([](f64 x) { return std::nearbyint(x); });
  r["copy"] = exact([](f64 x) { return x; });
  r["is_nan"] = [](const std::vector<Array>& in, const Attributes&) -> Expected {
    return {elementwise(DType::Bool, in, [](Args x) { return f64(std::isnan(x[0])); })};
  };
  r["where"] = [](const std::vector<Array>& in, const Attributes&) -> Expected {
    return {elementwise(in[1].dtype, in, [](Args x) { return x[0] != 0 ? x[1] : x[2]; })};
  };
  r["cast"] = [](const std::vector<Array>& in, const Attributes& a) -> Expected {
    const auto to = static_cast<DType>(as_int(a, 0));
    return {elementwise(to, in, [&](Args x) { return converted(in[0].dtype, to, x[0]); })};
  };

  r["exp"] = function([](L x) { return std::exp(x); });
  r["expm1"] = function([](L x) { return std::expm1(x); });
  r["log"] = function([](L x) { return std::log(x); });
  r["log1p"] = function([](L x) { return std::log1p(x); });
  r["sin"] = turning([](L x) { return std::sin(x); });
  r["cos"] = turning([](L x) { return std::cos(x); });
  r["tanh"] = function([](L x) { return std::tanh(x); });
  r["sigmoid"] = function([](L x) { return 1 / (1 + std::exp(-x)); });
  r["softplus"] =
      function([](L x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); });
  r["erf"] = function([](L x) { return std::erf(x); });
  r["rsqrt"] = function([](L x) { return 1 / std::sqrt(x); });
  r["pow/1"] = [](const std::vector<Array>& in, const Attributes& a) -> Expected {
    const f64 y = scalar_of(in[0].dtype, as_number(a, 0));
    return {.value = elementwise(in[0].dtype, in, [&](Args x) { return power(x[0], y); }),
            .ulps = 3};
  };
  r["pow/2"] = [](const std::vector<Array>& in, const Attributes&) -> Expected {
    return {.value = elementwise(in[0].dtype, in, [](Args x) { return power(x[0], x[1]); }),
            .ulps = 3};
  };

  r["sum"] = [](const auto& in, const auto& a) { return sum_of(in, a, false); };
  r["mean"] = [](const auto& in, const auto& a) { return sum_of(in, a, true); };
  r["prod"] = product_of;
  r["max"] = [](const auto& in, const auto& a) { return extreme_of(in, a, true, false); };
  r["min"] = [](const auto& in, const auto& a) { return extreme_of(in, a, false, false); };
  r["argmax"] = [](const auto& in, const auto& a) { return extreme_of(in, a, true, true); };
  r["argmin"] = [](const auto& in, const auto& a) { return extreme_of(in, a, false, true); };
  r["log_sum_exp"] = log_sum_exp;
  r["softmax"] = softmax;
  r["log_softmax"] = log_softmax;
  r["variance"] = variance;

  r["mat_mul"] = product(false, false);
  r["mat_mul_nt"] = product(false, true);
  r["mat_mul_tn"] = product(true, false);

  r["reshape"] = [](const std::vector<Array>& in, const Attributes& a) -> Expected {
    return {{in[0].dtype, Shape(as_dims(a, 0)), in[0].v}};
  };
  r["broadcast_to"] = [](const std::vector<Array>& in, const Attributes& a) -> Expected {
    Array result{in[0].dtype, Shape(as_dims(a, 0)), {}};
    for_each_position(result.shape,
                      [&](const Index& at) { result.v.push_back(broadcast_at(in[0], at)); });
    return {result};
  };
  r["permute"] = [](const std::vector<Array>& in, const Attributes& a) {
    const Dims& order = as_dims(a, 0);
    Shape shape;
    for (i64 axis : order) shape.push_back(in[0].shape[static_cast<u32>(axis)]);
    return moved(in, shape, [&](const Index& at) {
      Index from(at.size());
      for (u32 i = 0; i < order.size(); ++i) from[static_cast<size_t>(order[i])] = at[i];
      return from;
    });
  };
  r["slice"] = [](const std::vector<Array>& in, const Attributes& a) {
    const auto axis = static_cast<u32>(as_int(a, 0));
    Shape shape = in[0].shape;
    shape[axis] = as_int(a, 2) - as_int(a, 1);
    return moved(in, shape, [&](Index at) {
      at[axis] += as_int(a, 1);
      return at;
    });
  };
  r["flip"] = [](const std::vector<Array>& in, const Attributes& a) {
    const auto axis = static_cast<u32>(as_int(a, 0));
    return moved(in, in[0].shape, [&](Index at) {
      at[axis] = in[0].shape[axis] - 1 - at[axis];
      return at;
    });
  };
  r["pad"] = pad;
  r["concat"] = concat;

  r["full"] = [](const std::vector<Array>&, const Attributes& a) -> Expected {
    const auto t = static_cast<DType>(as_int(a, 1));
    const Shape shape(as_dims(a, 0));
    const f64 x = converted(DType::F64, t, as_number(a, 2));
    return {{t, shape, std::vector<f64>(static_cast<size_t>(shape.elements()), x)}};
  };
  r["arange"] = [](const std::vector<Array>&, const Attributes& a) -> Expected {
    const auto t = static_cast<DType>(as_int(a, 1));
    Array result{t, Shape{as_int(a, 0)}, {}};
    for (i64 i = 0; i < as_int(a, 0); ++i) {
      result.v.push_back(stored(t, scalar_of(t, as_number(a, 2)) + static_cast<f64>(i)));
    }
    return {result};
  };
  return r;
}

}  // namespace

const std::map<std::string, Reference>& references() {
  static const std::map<std::string, Reference> table = make_references();
  return table;
}

f64 stored(DType t, f64 x) {
  switch (t) {
    case DType::F32: return static_cast<f32>(x);
    case DType::F64: return x;
    case DType::F16: return f16_to_f32(f32_to_f16(static_cast<f32>(x)));
    case DType::BF16: return bf16_to_f32(f32_to_bf16(static_cast<f32>(x)));
    case DType::I32: return static_cast<i32>(static_cast<u32>(static_cast<i64>(x)));
    case DType::U32: return static_cast<u32>(static_cast<i64>(x));
    case DType::U8: return static_cast<u8>(static_cast<i64>(x));
    case DType::Bool: return x != 0;
  }
  return x;
}

f64 epsilon(DType t) {
  switch (t) {
    case DType::F64: return 0x1p-52;
    case DType::F16: return 0x1p-10;
    case DType::BF16: return 0x1p-7;
    default: return 0x1p-23;
  }
}

f64 least_normal(DType t) {
  switch (t) {
    case DType::F64: return 0x1p-1022;
    case DType::F16: return 0x1p-14;
    default: return 0x1p-126;
  }
}

f64 greatest(DType t) {
  switch (t) {
    case DType::F64: return std::numeric_limits<f64>::max();
    case DType::F16: return 65504;
    case DType::BF16: return 0x1.fep127;
    default: return std::numeric_limits<f32>::max();
  }
}

f64 allowed_error(const Expected& e, size_t i) {
  if (e.ulps == 0) return 0;
  const DType t = e.value.dtype;
  const DType computed = e.composite || t == DType::F64 ? t : DType::F32;
  const f64 stated = e.scale.empty() ? std::abs(e.value.v[i]) : e.scale[i];
  if (std::isnan(stated) || std::isnan(e.value.v[i])) return 0;
  if (stated > greatest(computed)) return e.scale.empty() ? 0 : kInf;
  const f64 scale = std::max(stated, least_normal(t));
  const f64 factor = e.ulps + 2 * std::sqrt(static_cast<f64>(e.length));
  f64 error = epsilon(computed) * factor * scale;
  if (computed != t) error += epsilon(t) * std::max(std::abs(e.value.v[i]), least_normal(t));
  return error;
}

}  // namespace oa::test
