#include "oa/matrix/create.h"

#include <limits>

#include "oa/matrix/all_ops.h"
#include "oa/matrix/kernel_tools.h"
#include "oa/matrix/record.h"
#include "oa/matrix/sample_sets.h"

namespace oa::matrix {

using kernel::Value;

Value scalar_as(Emit& e, u32 k, DType dtype) {
  const kernel::Scalar type = graph::value_scalar(dtype);
  if (type == kernel::Scalar::Bool) return kernel::cast(e.scalar(k), type);
  if (dtype != DType::U8) return e.scalar(k, type);
  return kernel::min(e.scalar(k, type), kernel::constant_int(type, 255));
}

namespace {

struct Full {
  static constexpr OpInfo kInfo{.name = "full", .kind = OpKind::Elementwise, .cost = 0};
  struct Attrs {
    Shape shape;
    DType dtype;
    Scalar value;
  };
  static void infer(Infer& in, const Attrs& a) {
    check_shape(in.op(), a.shape, size_bytes(a.dtype));
    in.out(a.dtype, a.shape);
  }
  static Value emit(Emit& e, const Attrs& a) { return scalar_as(e, 0, a.dtype); }
  static void samples(Samples& s) {
    for (DType t : kAll) {
      for (f64 x : {0.0, 1.0, -2.75, 300.5, std::numeric_limits<f64>::infinity(),
                    std::numeric_limits<f64>::quiet_NaN()}) {
        s.call({}, Attrs{{7}, t, x});
      }
    }
    for (const Shape& shape : {Shape{}, Shape{0}, Shape{3, 0, 2}, Shape{2, 1, 2, 1, 2, 1, 2}}) {
      s.call({}, Attrs{shape, DType::F32, -0.0});
    }
    s.reject({}, Attrs{{3, -1}, DType::F32, 0},
             "full: negative extent, got shape [3, -1], expected extents of 0 or more");
    s.reject({}, Attrs{{1ll << 40, 1ll << 30}, DType::F32, 0},
             "full: shape [1099511627776, 1073741824] has too many elements, expected fewer than "
             "2^63 bytes");
  }
};

struct Arange {
  static constexpr OpInfo kInfo{.name = "arange", .kind = OpKind::Elementwise};
  struct Attrs {
    i64 count;
    DType dtype;
    Scalar start;
  };
  static void infer(Infer& in, const Attrs& a) {
    if (a.count < 0) in.reject("negative count, got {}, expected 0 or more", a.count);
    if (a.dtype == DType::Bool) in.reject("dtype bool has no numbers, expected a number type");
    in.out(a.dtype, {a.count});
  }
  static Value emit(Emit& e, const Attrs& a) {
    return scalar_as(e, 0, a.dtype) + kernel::cast(e.coord(0), graph::value_scalar(a.dtype));
  }
  static void samples(Samples& s) {
    for (DType t : kNumbers) s.call({}, Attrs{41, t, 3});
    for (i64 n : {0, 1, 16, 300}) s.call({}, Attrs{n, DType::F32, -1.5});
    s.call({}, Attrs{300, DType::U8, 250});
    s.reject({}, Attrs{-1, DType::F32, 0}, "arange: negative count, got -1, expected 0 or more");
    s.reject({}, Attrs{3, DType::Bool, 0},
             "arange: dtype bool has no numbers, expected a number type");
  }
};

}  // namespace

OpList create_ops() { return graph::op_list<Full, Arange>(); }

Matrix full(const Engine& engine, const Shape& shape, f64 value, DType dtype) {
  return record_on<Full>(engine, {shape, dtype, value});
}
Matrix zeros(const Engine& engine, const Shape& shape, DType dtype) {
  return full(engine, shape, 0, dtype);
}
Matrix ones(const Engine& engine, const Shape& shape, DType dtype) {
  return full(engine, shape, 1, dtype);
}
Matrix full_like(const Matrix& x, const Scalar& value) { return full_like(x, x.shape(), value); }
Matrix full_like(const Matrix& x, const Shape& shape, const Scalar& value) {
  return Matrix(x.tensor()->recorder().graph().record(
      graph::op_def<Full>(), graph::make_attrs<Full>({shape, x.dtype(), value}), {})[0]);
}
Matrix arange_like(const Matrix& x, i64 count, f64 start, DType dtype) {
  return Matrix(x.tensor()->recorder().graph().record(
      graph::op_def<Arange>(), graph::make_attrs<Arange>({count, dtype, start}), {})[0]);
}
Matrix arange(const Engine& engine, i64 count, f64 start, DType dtype) {
  return record_on<Arange>(engine, {count, dtype, start});
}

}  // namespace oa::matrix
