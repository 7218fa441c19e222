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

Matrix silu_gradient(const Matrix& gate) {
  const Matrix s = sigmoid(gate);
  return s + gate * s * (1.0 + -s);
}

struct RmsNormGated {
  static constexpr OpInfo kInfo{.name = "rms_norm_gated", .kind = OpKind::Composite};
  using Attrs = EpsilonAttrs;
  // Operands x, gate, weight and perhaps bias. Results: y, and 1 / sqrt(mean(x^2) + eps) per row.
  static void infer(Infer& in, const Attrs&) {
    const Shape &x = in.shape(0), &w = in.shape(2);
    if (!is_float(in.dtype(0)) || x.rank() == 0 || x.back() == 0) {
      in.reject("operand 0 does not fit, got {} {}, expected a float [..., D] with D > 0",
                token(in.dtype(0)), x);
    }
    if (in.in(1) != in.in(0)) {
      in.reject("gate does not fit, got {} {}, expected {} {}", token(in.dtype(1)), in.shape(1),
                token(in.dtype(0)), x);
    }
    const i64 rows = x.elements() / x.back();
    const i64 groups = w.rank() == 0 ? 0 : w.elements() / x.back();
    if (in.dtype(2) != in.dtype(0) || w.rank() == 0 || w.back() != x.back() || groups == 0 ||
        rows % groups != 0) {
      in.reject(
          "weight does not fit, got {} {}, expected {} [..., groups, {}] with groups that "
          "divide the {} rows",
          token(in.dtype(2)), w, token(in.dtype(0)), x.back(), rows);
    }
    if (in.count() > 3 && in.in(3) != in.in(2)) {
      in.reject("bias does not fit, got {} {}, expected {} {}", token(in.dtype(3)), in.shape(3),
                token(in.dtype(2)), w);
    }
    in.out(in.dtype(0), x);
    in.out(wide_dtype(in.dtype(0)), row_shape(x));
  }

  static std::vector<TensorRef> define(std::span<const TensorRef> in, const Attrs& a) {
    const Grouped v(in);
    const Matrix power = mean(square(v.x), -1, true);
    const Matrix inverse = rsqrt(power + full_like(power, a.epsilon));
    Matrix y = v.x * inverse * v.weight;
    if (v.bias.valid()) y = y + v.bias;
    y = y * (v.gate * sigmoid(v.gate));
    const Matrix x(in[0]);
    return {narrow(y, x.dtype()).reshape(x.shape()).tensor(),
            inverse.reshape(row_shape(x.shape())).tensor()};
  }

  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs&) {
    const Grouped v(g.inputs);
    const Matrix inverse = output(g, 1).reshape(row_shape(v.x.shape()));
    const Matrix dy = widen(grad(g)).reshape(v.x.shape());
    const DType t = input(g, 0).dtype();
    const Matrix normal = v.x * inverse;
    const Matrix affine = dy * (v.gate * sigmoid(v.gate));  // gradient of normal w + b
    std::vector<TensorRef> result(g.inputs.size());
    const auto give = [&](u32 i, const Matrix& m) {
      result[i] = narrow(m, t).reshape(g.inputs[i]->shape()).tensor();
    };
    if (g.wanted[0]) {
      const Matrix to = affine * v.weight;
      give(0, (to - normal * mean(to * normal, -1, true)) * inverse);
    }
    if (g.wanted[1]) {
      Matrix inner = normal * v.weight;
      if (v.bias.valid()) inner = inner + v.bias;
      give(1, dy * inner * silu_gradient(v.gate));
    }
    if (g.wanted[2]) give(2, sum(affine * normal, 0));
    if (v.bias.valid() && g.wanted[3]) give(3, sum(affine, 0));
    return result;
  }

  static void samples(Samples& s) {
    const auto call = [&](Shape x, Shape w, bool bias, DType t = DType::F32) {
      std::vector<graph::SampleOperand> in = {{x, t}, {x, t, -4, 4}, {w, t, 0.5, 1.5}};
      if (bias) in.push_back({w, t});
      s.call(std::move(in), Attrs{1e-5});
    };
    for (DType t : graph::kFloats) call({6, 37}, {3, 37}, true, t);
    call({2, 3, 8}, {3, 8}, false);
    call({2, 3, 8}, {8}, true);
    call({4, 2, 5}, {2, 1, 5}, true);
    call({0, 5}, {5}, true);
    s.reject({{{3}}, {{4}}, {{3}}}, Attrs{1e-5},
             "rms_norm_gated: gate does not fit, got f32 [4], expected f32 [3]");
    s.reject({{{4, 3}}, {{4, 3}}, {{3, 3}}}, Attrs{1e-5},
             "rms_norm_gated: weight does not fit, got f32 [3, 3], expected f32 [..., groups, 3] "
             "with groups that divide the 4 rows");
    s.reject({{{4, 3}}, {{4, 3}}, {{2, 3}}, {{3}}}, Attrs{1e-5},
             "rms_norm_gated: bias does not fit, got f32 [3], expected f32 [2, 3]");
  }

 private:
  // The operands in F32 at least, x and gate as [rows / groups, groups, D].
  struct Grouped {
    explicit Grouped(std::span<const TensorRef> in) {
      const Matrix w(in[2]);
      const i64 d = w.shape().back(), groups = w.num_elements() / d;
      const Shape shape{Matrix(in[0]).num_elements() / (groups * d), groups, d};
      x = widen(Matrix(in[0]).reshape(shape));
      gate = widen(Matrix(in[1]).reshape(shape));
      weight = widen(w.reshape({groups, d}));
      if (in.size() > 3) bias = widen(Matrix(in[3]).reshape({groups, d}));
    }
    Matrix x, gate, weight, bias;
  };
};

// sqrt(sum(x^2)) along an axis that stays.
struct Norm {
  static constexpr OpInfo kInfo{.name = "norm", .kind = OpKind::Composite};
  struct Attrs {
    i64 axis;
  };
  static void infer(Infer& in, const Attrs& a) {
    if (!is_float(in.dtype(0))) {
      in.reject("operand 0 has the wrong dtype, got {}, expected a float", token(in.dtype(0)));
    }
    Shape out = in.shape(0);
    out[static_cast<u32>(a.axis)] = 1;
    in.out(in.dtype(0), out);
  }
  static std::vector<TensorRef> define(std::span<const TensorRef> in, const Attrs& a) {
    const Matrix x(in[0]);
    return {narrow(sqrt(sum(square(widen(x)), a.axis, true)), x.dtype()).tensor()};
  }
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs&) {
    const Matrix y = output(g), zero = full_like(y, 0);
    return gradients({input(g, 0) * where(equal(y, zero), zero, grad(g) / y)});
  }
  static void samples(Samples& s) {
    for (DType t : graph::kFloats) {
      s.call({{{5, 37}, t}}, Attrs{1});
      s.call({{{37, 5}, t}}, Attrs{0});
    }
    s.call({{{3, 4, 5}}}, Attrs{1});
    s.call({{{1}}}, Attrs{0});
    s.call({{{0, 3}}}, Attrs{0});
    s.call({{{3, 0}}}, Attrs{0});
    s.call({{{2, 700}}}, Attrs{1});
    s.reject({{{3}, DType::I32}}, Attrs{0},
             "norm: operand 0 has the wrong dtype, got i32, expected a float");
  }
};

void check_epsilon(std::string_view op, f64 epsilon) {
  if (!(epsilon > 0) || !std::isfinite(epsilon)) {
    invalid(op, "bad epsilon, got {}, expected a finite number above 0", epsilon);
  }
}

}  // namespace

OpList norm_ops() { return graph::op_list<LayerNorm, RmsNorm, RmsNormGated, Norm>(); }

Matrix layer_norm(const Matrix& x, const Matrix& weight, const Matrix& bias, f64 epsilon) {
  check_epsilon("layer_norm", epsilon);
  return record<LayerNorm>({x, weight, bias}, {epsilon});
}

Matrix rms_norm(const Matrix& x, const Matrix& weight, f64 epsilon) {
  check_epsilon("rms_norm", epsilon);
  return record<RmsNorm>({x, weight}, {epsilon});
}

Matrix rms_norm_gated(const Matrix& x, const Matrix& weight, const std::optional<Matrix>& bias,
                      const Matrix& gate, f64 epsilon) {
  check_epsilon("rms_norm_gated", epsilon);
  std::vector<TensorRef> in = {x.tensor(), gate.tensor(), weight.tensor()};
  if (bias) in.push_back(bias->tensor());
  return Matrix(record_all<RmsNormGated>(in, {epsilon})[0]);
}

RmsNormGatedBackward rms_norm_gated_backward(const Matrix& x, const Matrix& weight,
                                             const std::optional<Matrix>& bias, const Matrix& gate,
                                             const Matrix& output_gradient, f64 epsilon) {
  constexpr std::string_view kOp = "rms_norm_gated_backward";
  check_epsilon(kOp, epsilon);
  std::vector<TensorRef> in = {x.tensor(), gate.tensor(), weight.tensor()};
  if (bias) in.push_back(bias->tensor());
  if (!output_gradient.valid() || !x.valid() || output_gradient.shape() != x.shape() ||
      output_gradient.dtype() != x.dtype()) {
    invalid(kOp, "output gradient does not fit, got {}, expected {}",
            output_gradient.valid() ? output_gradient.shape() : Shape(),
            x.valid() ? x.shape() : Shape());
  }
  const std::vector<TensorRef> out = record_all<RmsNormGated>(in, {epsilon});
  const TensorRef given[2] = {output_gradient.tensor(), {}};
  const std::vector<u8> wanted(in.size(), 1);
  const std::vector<TensorRef> d = RmsNormGated::gradient({in, out, given, wanted}, {epsilon});
  RmsNormGatedBackward result{
      .input = Matrix(d[0]), .weight = Matrix(d[2]), .bias = {}, .gate = Matrix(d[1])};
  if (bias) result.bias = Matrix(d[3]);
  return result;
}

Matrix norm(const Matrix& x, i64 axis, bool keepdims) {
  if (!x.valid()) invalid("norm", "operand 0 is empty, expected a value");
  const i64 resolved = resolve_axis("norm", axis, x.rank());
  const Matrix y = record<Norm>({x}, {resolved});
  return keepdims ? y : y.squeeze(resolved);
}

Matrix norm(const Matrix& x) {
  if (!x.valid()) invalid("norm", "operand 0 is empty, expected a value");
  return norm(x.reshape({x.num_elements()}), 0);
}

}  // namespace oa::ml::matrix
