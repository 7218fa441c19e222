#include "oa/matrix/create.h"

#include "oa/matrix/record.h"

namespace oa::matrix {
namespace {

using kernel::Value;

// A runtime scalar in the type that values of `dtype` are computed in.
Value scalar_as(Emit& e, DType dtype) {
  const kernel::Scalar type = graph::value_scalar(dtype);
  if (dtype == DType::U8 || type == kernel::Scalar::Bool) return kernel::cast(e.scalar(0), type);
  return e.scalar(0, type);
}

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
  static Value emit(Emit& e, const Attrs& a) { return scalar_as(e, a.dtype); }
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
    return scalar_as(e, a.dtype) + kernel::cast(e.coord(0), graph::value_scalar(a.dtype));
  }
};

}  // namespace

Matrix full(const Engine& engine, const Shape& shape, f64 value, DType dtype) {
  return record_on<Full>(engine, {shape, dtype, value});
}
Matrix zeros(const Engine& engine, const Shape& shape, DType dtype) {
  return full(engine, shape, 0, dtype);
}
Matrix ones(const Engine& engine, const Shape& shape, DType dtype) {
  return full(engine, shape, 1, dtype);
}
Matrix full_like(const Matrix& x, f64 value) {
  return Matrix(x.tensor()->recorder().graph().record(
      graph::op_def<Full>(), graph::make_attrs<Full>({x.shape(), x.dtype(), value}), {})[0]);
}
Matrix arange(const Engine& engine, i64 count, f64 start, DType dtype) {
  return record_on<Arange>(engine, {count, dtype, start});
}

}  // namespace oa::matrix
