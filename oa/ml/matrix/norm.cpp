#include "oa/ml/matrix/norm.h"

#include <cmath>

#include "oa/matrix/create.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/movement.h"
#include "oa/matrix/record.h"
#include "oa/matrix/reduce.h"
#include "oa/matrix/transcendental.h"
#include "oa/ml/matrix/ml_ops.h"

namespace oa::ml::matrix {
namespace {

using namespace oa::matrix;  // NOLINT: the ops of the layer below
using graph::Samples;

struct EpsilonAttrs {
  Scalar epsilon;
};

// In the dtype of statistics.
DType wide_dtype(DType t) { return t == DType::F64 ? DType::F64 : DType::F32; }
Matrix widen(const Matrix& x) {
  return x.dtype() == wide_dtype(x.dtype()) ? x : cast(x, wide_dtype(x.dtype()));
}
Matrix narrow(const Matrix& x, DType t) { return x.dtype() == t ? x : cast(x, t); }

// A shape of one number per row.
Shape row_shape(const Shape& x) {
  Shape rows = x;
  rows[x.rank() - 1] = 1;
  return rows;
}

// x [..., D] and parameters [D] of its dtype.
void infer_norm(Infer& in) {
  const Shape& x = in.shape(0);
  if (!is_float(in.dtype(0)) || x.rank() == 0) {
    in.reject("operand 0 does not fit, got {} {}, expected a float of rank 1 or more",
              token(in.dtype(0)), x);
  }
  for (u32 i = 1; i < in.count(); ++i) {
    if (in.dtype(i) != in.dtype(0) || in.shape(i) != Shape{x.back()}) {
      in.reject("operand {} does not fit, got {} {}, expected {} {}", i, token(in.dtype(i)),
                in.shape(i), token(in.dtype(0)), Shape{x.back()});
    }
  }
  in.out(in.dtype(0), x);
}

// Sums over all axes but the last.
Matrix column_sum(const Matrix& x) {
  const i64 d = x.shape().back();
  return sum(x.reshape({d == 0 ? 0 : x.num_elements() / d, d}), 0);
}

// The first element of each row: what a constant row subtracts to exactly 0 with.
Matrix anchor(const Matrix& x) { return slice(x, -1, 0, 1); }

struct LayerNorm {
  static constexpr OpInfo kInfo{.name = "layer_norm", .kind = OpKind::Composite};
  using Attrs = EpsilonAttrs;
  // Results: y, and per row the mean less the row's first element, and 1 / sqrt(variance + eps).
  static void infer(Infer& in, const Attrs&) {
    infer_norm(in);
    const DType wide = wide_dtype(in.dtype(0));
    in.out(wide, row_shape(in.shape(0)));
    in.out(wide, row_shape(in.shape(0)));
  }
  static std::vector<TensorRef> define(std::span<const TensorRef> in, const Attrs& a) {
    const Matrix x = widen(Matrix(in[0]));
    const DType t = Matrix(in[0]).dtype();
    if (x.num_elements() == 0) {
      const Matrix rows = sum(x, -1, true);
      return {copy(Matrix(in[0])).tensor(), rows.tensor(), rows.tensor()};
    }
    const Matrix d = x - anchor(x);
    const Matrix shift = mean(d, -1, true);
    const Matrix centred = d - shift;
    const Matrix variance = mean(square(centred), -1, true);
    const Matrix rstd = rsqrt(variance + full_like(variance, a.epsilon));
    const Matrix y = centred * rstd * widen(Matrix(in[1])) + widen(Matrix(in[2]));
    return {narrow(y, t).tensor(), shift.tensor(), rstd.tensor()};
  }
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs&) {
    const Matrix x = widen(input(g, 0)), dy = widen(grad(g));
    const DType t = input(g, 0).dtype();
    std::vector<TensorRef> result(3);
    Matrix normal = dy;  // (x - mean) rstd
    if (x.num_elements() > 0) normal = ((x - anchor(x)) - output(g, 1)) * output(g, 2);
    if (g.wanted[0]) {
      const Matrix to = dy * widen(input(g, 1));
      Matrix dx = to;
      if (x.num_elements() > 0) {
        dx = (to - mean(to, -1, true) - normal * mean(to * normal, -1, true)) * output(g, 2);
      }
      result[0] = narrow(dx, t).tensor();
    }
    if (g.wanted[1]) result[1] = narrow(column_sum(dy * normal), t).tensor();
    if (g.wanted[2]) result[2] = narrow(column_sum(dy), t).tensor();
    return result;
  }
  static void samples(Samples& s) {
    const auto call = [&](Shape x, DType t = DType::F32, f64 low = -2, f64 high = 2) {
      const Shape d{x.back()};
      s.call({{std::move(x), t, low, high}, {d, t, 0.5, 1.5}, {d, t}}, Attrs{1e-5});
    };
    for (DType t : graph::kFloats) call({7, 37}, t);
    call({5});
    call({3, 2, 8});
    call({4, 1});
    call({0, 5});
    call({5, 0});
    call({3, 700});
    call({6, 4}, DType::F32, 9, 11);
    s.reject({{{3}, DType::I32}, {{3}, DType::I32}, {{3}, DType::I32}}, Attrs{1e-5},
             "layer_norm: operand 0 does not fit, got i32 [3], expected a float of rank 1 or more");
    s.reject({{{}}, {{}}, {{}}}, Attrs{1e-5},
             "layer_norm: operand 0 does not fit, got f32 [], expected a float of rank 1 or more");
    s.reject({{{2, 3}}, {{3}}, {{1}}}, Attrs{1e-5},
             "layer_norm: operand 2 does not fit, got f32 [1], expected f32 [3]");
    s.reject({{{2, 3}}, {{3}, DType::F16}, {{3}}}, Attrs{1e-5},
             "layer_norm: operand 1 does not fit, got f16 [3], expected f32 [3]");
  }
};

struct RmsNorm {
  static constexpr OpInfo kInfo{.name = "rms_norm", .kind = OpKind::Composite};
  using Attrs = EpsilonAttrs;
  // Results: y, and 1 / sqrt(mean(x^2) + eps) per row.
  static void infer(Infer& in, const Attrs&) {
    infer_norm(in);
    in.out(wide_dtype(in.dtype(0)), row_shape(in.shape(0)));
  }
  static std::vector<TensorRef> define(std::span<const TensorRef> in, const Attrs& a) {
    const Matrix x = widen(Matrix(in[0]));
    const DType t = Matrix(in[0]).dtype();
    if (x.num_elements() == 0) {
      return {copy(Matrix(in[0])).tensor(), sum(x, -1, true).tensor()};
    }
    const Matrix power = mean(square(x), -1, true);
    const Matrix inverse = rsqrt(power + full_like(power, a.epsilon));
    return {narrow(x * inverse * widen(Matrix(in[1])), t).tensor(), inverse.tensor()};
  }
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs&) {
    const Matrix x = widen(input(g, 0)), dy = widen(grad(g));
    const DType t = input(g, 0).dtype();
    std::vector<TensorRef> result(2);
    const Matrix normal = x * output(g, 1);
    if (g.wanted[0]) {
      const Matrix to = dy * widen(input(g, 1));
      Matrix dx = to;
      if (x.num_elements() > 0) {
        dx = (to - normal * mean(to * normal, -1, true)) * output(g, 1);
      }
      result[0] = narrow(dx, t).tensor();
    }
    if (g.wanted[1]) result[1] = narrow(column_sum(dy * normal), t).tensor();
    return result;
  }
  static void samples(Samples& s) {
    for (DType t : graph::kFloats) s.call({{{7, 37}, t}, {{37}, t, 0.5, 1.5}}, Attrs{1e-5});
    s.call({{{5}}, {{5}}}, Attrs{1e-5});
    s.call({{{3, 2, 8}}, {{8}}}, Attrs{1e-2});
    s.call({{{4, 1}}, {{1}}}, Attrs{1e-5});
    s.call({{{0, 5}}, {{5}}}, Attrs{1e-5});
    s.call({{{5, 0}}, {{0}}}, Attrs{1e-5});
    s.call({{{3, 700}}, {{700}}}, Attrs{1e-5});
    s.reject({{{2, 3}}, {{2}}}, Attrs{1e-5},
             "rms_norm: operand 1 does not fit, got f32 [2], expected f32 [3]");
  }
};

void check_epsilon(std::string_view op, f64 epsilon) {
  if (!(epsilon > 0) || !std::isfinite(epsilon)) {
    invalid(op, "bad epsilon, got {}, expected a finite number above 0", epsilon);
  }
}

}  // namespace

OpList norm_ops() { return graph::op_list<LayerNorm, RmsNorm>(); }

Matrix layer_norm(const Matrix& x, const Matrix& weight, const Matrix& bias, f64 epsilon) {
  check_epsilon("layer_norm", epsilon);
  return record<LayerNorm>({x, weight, bias}, {epsilon});
}

Matrix rms_norm(const Matrix& x, const Matrix& weight, f64 epsilon) {
  check_epsilon("rms_norm", epsilon);
  return record<RmsNorm>({x, weight}, {epsilon});
}

}  // namespace oa::ml::matrix
