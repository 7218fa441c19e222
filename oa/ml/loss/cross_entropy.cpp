#include "oa/ml/loss/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "oa/kernel/math.h"
#include "oa/matrix/create.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/index_rules.h"
#include "oa/matrix/movement.h"
#include "oa/matrix/reduce.h"
#include "oa/matrix/transcendental.h"
#include "oa/ml/matrix/ml_ops.h"

namespace oa::ml {
namespace loss {
namespace {

using namespace oa::matrix;  // NOLINT: the ops of the layer below
using graph::Samples;
using kernel::Value;

DType wide_dtype(DType t) { return t == DType::F64 ? DType::F64 : DType::F32; }
Matrix widen(const Matrix& x) {
  return x.dtype() == wide_dtype(x.dtype()) ? x : cast(x, wide_dtype(x.dtype()));
}

// The axes before the last.
Shape leading(const Shape& x) {
  Shape rows = x;
  rows.erase(rows.rank() - 1);
  return rows;
}

struct CrossEntropyAttrs {
  Reduction reduction = Reduction::Mean;
  bool has_ignore = false;
  bool has_weights = false;
  bool has_mask = false;
  bool smooth = false;
  Scalar ignore;
  Scalar smoothing;
  Scalar inverse = 1;  // of what Mean divides by, where that does not depend on the targets
  bool counts() const {
    return reduction == Reduction::Mean && !has_mask && (has_ignore || has_weights);
  }
};

// Positions of the scalars among the attributes.
constexpr u32 kIgnore = 0, kSmoothing = 1;

// What the kernels know about a row.
struct Row {
  Value target;
  Value chosen;  // neither ignored nor masked; invalid: always
  Value bad;     // chosen, and not a class
  Value safe;    // a class in any case
};

// `targets` and `mask` are operands with one element per row.
Row row_of(Emit& e, const CrossEntropyAttrs& a, i64 classes, u32 targets, u32 mask) {
  Row r{.target = e.input(targets)};
  const auto also = [&](const Value& c) { r.chosen = r.chosen.valid() ? (r.chosen & c) : c; };
  if (a.has_ignore) {
    const Value ignore = e.scalar(kIgnore, kernel::Scalar::I32);
    also(kernel::cast(r.target, kernel::Scalar::I32) != ignore);
  }
  if (a.has_mask) {
    const Value m = e.input(mask);
    also(m != kernel::constant(m.scalar(), 0));
  }
  const Value outside = out_of_range(r.target, classes);
  r.bad = r.chosen.valid() ? (outside & r.chosen) : outside;
  r.safe = kernel::select(outside, kernel::literal(r.target.scalar(), 0), r.target);
  return r;
}

// `value` of chosen rows with a class, NaN of a bad one, 0 of the others.
Value of_row(const Row& r, const Value& value) {
  const Value nan = kernel::constant(value.scalar(), std::numeric_limits<f64>::quiet_NaN());
  const Value v = kernel::select(r.bad, nan, value);
  return r.chosen.valid() ? kernel::select(r.chosen, v, kernel::constant(value.scalar(), 0)) : v;
}

// The samples of the parts are those of the whole.
using Attrs = CrossEntropyAttrs;

// The weight of each row's target: operands targets [R] and, if stated, weights [C] and mask [R].
struct TargetWeight {
  static constexpr OpInfo kInfo{.name = "cross_entropy_weight",
                                .kind = OpKind::Elementwise,
                                .indexed_inputs = 1u << 1,
                                .cost = 3};
  static constexpr bool kDetached = true;
  using Attrs = CrossEntropyAttrs;
  static void infer(Infer& in, const Attrs&) {
    in.out(in.count() > 1 ? wide_dtype(in.dtype(1)) : DType::F32, in.shape(0));
  }
  static Value emit(Emit& e, const Attrs& a) {
    const kernel::Scalar type = graph::value_scalar(e.out_dtype());
    const Row r = row_of(e, a, a.has_weights ? e.shape(1)[0] : 1, 0, 0);
    const Value w =
        a.has_weights ? e.input_indexed(1, std::span(&r.safe, 1), {}) : kernel::constant(type, 1);
    return r.chosen.valid() ? kernel::select(r.chosen, w, kernel::constant(type, 0)) : w;
  }
  static void samples(Samples& s) {
    const Attrs plain{.has_ignore = true, .ignore = 2};
    s.call({{{9}, DType::I32, 0, 4}}, plain);
    const Attrs weighted{.has_ignore = true, .has_weights = true, .ignore = 2};
    s.call({{{9}, DType::U8, 0, 4}, {{5}}}, weighted);
  }
};

// Operands logits [R, C], targets [R], per row the maximum and the logarithm of the sum of the
// exponentials without it; then, if stated, weights [C], the smoothed part [R], the mask [R].
template <bool kWeighted>
struct RowLoss {
  static constexpr OpInfo kInfo{.name = "cross_entropy",
                                .kind = OpKind::Elementwise,
                                .indexed_inputs = 1u | (kWeighted ? 1u << 4 : 0u),
                                .cost = 12};
  static constexpr bool kDetached = true;  // the whole op states the gradient
  using Attrs = CrossEntropyAttrs;
  static void infer(Infer& in, const Attrs&) { in.out(in.dtype(2), in.shape(1)); }
  static i64 index_limit(const Infer& in, const Attrs&) { return in.shape(0)[1]; }
  static Value emit(Emit& e, const Attrs& a) {
    const i64 classes = e.shape(0)[1];
    const Row r = row_of(e, a, classes, 1, e.count() - 1);
    const Value row = e.coord(0);
    e.check(r.bad, row, r.target);
    const kernel::Scalar type = graph::value_scalar(e.out_dtype());
    const Value at[2] = {row, r.safe};
    Value nll = e.input(3) - (e.input_indexed(0, at, {}) - e.input(2));
    if (kWeighted) nll = nll * e.input_indexed(4, std::span(&r.safe, 1), {});
    if (a.smooth) {
      const Value s = e.scalar(kSmoothing, type);
      const Value all = e.input(kWeighted ? 5 : 4);
      nll = nll * (kernel::constant(type, 1) - s) +
            all * (s * kernel::constant(type, 1 / static_cast<f64>(classes)));
    }
    return of_row(r, nll);
  }
  static void samples(Samples& s) {
    const SampleOperandList base = {{{3, 5}}, {{3}, DType::I32, 0, 4}, {{3}}, {{3}}};
    SampleOperandList all = base;
    if (kWeighted) all.push_back({{5}});
    s.call(all, Attrs{.has_weights = kWeighted});
  }
  using SampleOperandList = std::vector<graph::SampleOperand>;
};

// The gradient of the logits [R, C]: operands logits, then [R, 1] of targets, maxima and
// logarithms, the gradient of a row's loss ([R, 1] or [1, 1]); then, if stated, weights [C], their
// sum [1, 1], the mask [R, 1].
template <bool kWeighted>
struct LogitGradient {
  static constexpr OpInfo kInfo{.name = "cross_entropy_backward",
                                .kind = OpKind::Elementwise,
                                .indexed_inputs = kWeighted ? 1u << 5 : 0u,
                                .cost = 20};
  using Attrs = CrossEntropyAttrs;
  static void infer(Infer& in, const Attrs&) { in.out(in.dtype(0), in.shape(0)); }
  static Value emit(Emit& e, const Attrs& a) {
    const i64 classes = e.shape(0)[1];
    const Row r = row_of(e, a, classes, 1, e.count() - 1);
    const kernel::Scalar type = e.input(2).scalar();
    const auto number = [&](f64 x) { return kernel::constant(type, x); };
    // The loss has the first exponential too; the second one is once for a row.
    const Value p = kernel::exp(e.input(0) - e.input(2)) * kernel::exp(-e.input(3));
    const Value column = kernel::cast(e.coord(1), kernel::Scalar::U32);
    const Value hit = column == kernel::cast(r.target, kernel::Scalar::U32);
    Value d = p - kernel::select(hit, number(1), number(0));
    if (kWeighted) d = d * e.input_indexed(5, std::span(&r.safe, 1), {});
    if (a.smooth) {
      const Value s = e.scalar(kSmoothing, type);
      const Value spread = kWeighted ? p * e.input(6) - e.input(5)
                                     : p * number(static_cast<f64>(classes)) - number(1);
      d = d * (number(1) - s) + spread * (s * number(1 / static_cast<f64>(classes)));
    }
    return of_row(r, d * e.input(4));
  }
  static void samples(Samples& s) {
    std::vector<graph::SampleOperand> all = {
        {{3, 5}}, {{3, 1}, DType::I32, 0, 4}, {{3, 1}}, {{3, 1}}, {{3, 1}}};
    if (kWeighted) all.push_back({{5}});
    s.call(all, Attrs{.has_weights = kWeighted});
  }
};

struct CrossEntropy {
  static constexpr OpInfo kInfo{.name = "cross_entropy", .kind = OpKind::Composite};
  using Attrs = CrossEntropyAttrs;
  static constexpr u32 kDetachedInputs = ~1u;  // all but the logits
  // Operands logits [..., C], targets [...]; if stated weights [C], mask [...]. Results: the loss;
  // per row the maximum, and the logarithm of the sum of exponentials without it; and where Mean
  // divides by something that depends on the targets, its inverse, 0 for 0.
  static void infer(Infer& in, const Attrs& a) {
    const Shape& x = in.shape(0);
    if (!is_float(in.dtype(0)) || x.rank() == 0 || x.back() == 0) {
      in.reject("bad logits, got {} {}, expected a float [..., C] with C > 0", token(in.dtype(0)),
                x);
    }
    need_indices(in, 1);
    const Shape rows = leading(x);
    if (in.shape(1) != rows) {
      in.reject("targets do not fit, got {}, expected {} for logits {}", in.shape(1), rows, x);
    }
    const u32 mask = in.count() - 1;
    if (a.has_weights && (in.dtype(2) != in.dtype(0) || in.shape(2) != Shape{x.back()})) {
      in.reject("class weights do not fit, got {} {}, expected {} {}", token(in.dtype(2)),
                in.shape(2), token(in.dtype(0)), Shape{x.back()});
    }
    if (a.has_mask && (in.dtype(mask) != DType::F32 || in.shape(mask) != rows)) {
      in.reject("mask does not fit, got {} {}, expected f32 {}", token(in.dtype(mask)),
                in.shape(mask), rows);
    }
    const DType wide = wide_dtype(in.dtype(0));
    const Shape flat{rows.elements()};
    in.out(wide, a.reduction == Reduction::None ? rows : Shape{});
    in.out(wide, flat);
    in.out(wide, flat);
    if (a.counts()) in.out(wide, {});
  }

  static std::vector<TensorRef> define(std::span<const TensorRef> in, const Attrs& a) {
    const Matrix logits = rows_of(Matrix(in[0]));
    const i64 rows = logits.shape()[0], classes = logits.shape()[1];
    const Matrix targets = Matrix(in[1]).reshape({rows});
    const Matrix x = widen(logits);
    const Matrix peaks = max(x, 1, true);
    const Matrix z = x - peaks;
    const Matrix peak = peaks.reshape({rows}), log_sum = log(sum(exp(z), 1));

    std::vector<TensorRef> operands = {logits.tensor(), targets.tensor(), peak.tensor(),
                                       log_sum.tensor()};
    if (a.has_weights) operands.push_back(in[2]);
    if (a.smooth) {
      // Over all classes, with lse - x as the logarithm less z: both parts are positive.
      Matrix all = log_sum * static_cast<f64>(classes) - sum(z, 1);
      if (a.has_weights) {
        const Matrix w = widen(Matrix(in[2]));
        all = log_sum * sum(w) - sum(z * w, 1);
      }
      operands.push_back(all.tensor());
    }
    if (a.has_mask) operands.push_back(Matrix(in.back()).reshape({rows}).tensor());
    const Matrix row = Matrix(a.has_weights ? record_all<RowLoss<true>>(operands, a)[0]
                                            : record_all<RowLoss<false>>(operands, a)[0]);

    std::vector<TensorRef> results = {{}, peak.tensor(), log_sum.tensor()};
    if (a.reduction == Reduction::None) {
      results[0] = row.reshape(Matrix(in[1]).shape()).tensor();
      return results;
    }
    Matrix total = sum(row);
    if (a.counts()) {
      std::vector<TensorRef> weighed = {targets.tensor()};
      if (a.has_weights) weighed.push_back(in[2]);
      const Matrix weight =
          sum(widen(cast(Matrix(record_all<TargetWeight>(weighed, a)[0]), x.dtype())));
      const Matrix zero = full_like(weight, 0);
      const Matrix inverse = where(equal(weight, zero), zero, reciprocal(weight));
      total = total * inverse;
      results.push_back(inverse.tensor());
    } else if (a.reduction == Reduction::Mean) {
      total = total * full_like(total, a.inverse);
    }
    results[0] = total.tensor();
    return results;
  }

  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs& a) {
    const Matrix logits = rows_of(input(g, 0));
    const i64 rows = logits.shape()[0];
    Matrix scale = grad(g).reshape(a.reduction == Reduction::None ? Shape{rows, 1} : Shape{1, 1});
    if (a.counts()) {
      scale = scale * output(g, 3);
    } else if (a.reduction == Reduction::Mean) {
      scale = scale * full_like(scale, a.inverse);
    }
    std::vector<TensorRef> operands = {logits.tensor()};
    for (const Matrix& m : {input(g, 1), output(g, 1), output(g, 2)}) {
      operands.push_back(m.reshape({rows, 1}).tensor());
    }
    operands.push_back(scale.tensor());
    if (a.has_weights) {
      operands.push_back(g.inputs[2]);
      if (a.smooth) {
        operands.push_back(sum(widen(input(g, 2))).reshape({1, 1}).tensor());
      }
    }
    if (a.has_mask) operands.push_back(Matrix(g.inputs.back()).reshape({rows, 1}).tensor());
    const Matrix dx = Matrix(a.has_weights ? record_all<LogitGradient<true>>(operands, a)[0]
                                           : record_all<LogitGradient<false>>(operands, a)[0]);
    return {dx.reshape(input(g, 0).shape()).tensor()};
  }

  static void samples(Samples& s) {
    const auto call = [&](Shape x, Attrs a, DType t = DType::F32, DType index = DType::I32) {
      const f64 last = static_cast<f64>(x.back() - 1);
      std::vector<graph::SampleOperand> in = {{x, t, -4, 4}, {leading(x), index, 0, last}};
      if (a.has_weights) in.push_back({{x.back()}, t, 0.5, 2});
      if (a.has_mask) in.push_back({leading(x), DType::F32, -1, 1});
      a.inverse = x.elements() == 0 ? 0 : last / static_cast<f64>(x.elements());
      s.call(std::move(in), a);
    };
    using enum Reduction;
    for (DType t : graph::kFloats) call({5, 37}, {}, t);
    for (DType t : graph::kIntegers) call({3, 4, 7}, {.reduction = None}, DType::F32, t);
    call({1}, {});
    call({6}, {.reduction = Sum});
    call({0, 3}, {});
    call({3, 700}, {});
    call({9, 6}, {.has_ignore = true, .ignore = 2});
    call({9, 1}, {.has_ignore = true, .ignore = 0});  // all of them
    call({9, 6}, {.reduction = Sum, .has_ignore = true, .ignore = 2});
    call({9, 6}, {.has_weights = true});
    call({9, 6}, {.smooth = true, .smoothing = 0.1});
    call({9, 6},
         {.has_ignore = true, .has_weights = true, .smooth = true, .ignore = 3, .smoothing = 0.3});
    call(
        {9, 6},
        {.reduction = None, .has_weights = true, .has_mask = true, .smooth = true, .smoothing = 1});
    call({9, 6}, {.has_mask = true}, DType::F16);
    s.reject({{{3, 4}, DType::I32}, {{3}, DType::I32}}, Attrs{},
             "cross_entropy: bad logits, got i32 [3, 4], expected a float [..., C] with C > 0");
    s.reject({{{3, 0}}, {{3}, DType::I32}}, Attrs{},
             "cross_entropy: bad logits, got f32 [3, 0], expected a float [..., C] with C > 0");
    s.reject({{{3, 4}}, {{4}, DType::I32}}, Attrs{},
             "cross_entropy: targets do not fit, got [4], expected [3] for logits [3, 4]");
    s.reject({{{3, 4}}, {{3}}}, Attrs{},
             "cross_entropy: operand 1 has the wrong dtype, got f32, expected i32, u32 or u8");
    s.reject({{{3, 4}}, {{3}, DType::I32}, {{3}}}, Attrs{.has_weights = true},
             "cross_entropy: class weights do not fit, got f32 [3], expected f32 [4]");
    s.reject({{{3, 4}}, {{3}, DType::I32}, {{3}, DType::Bool}}, Attrs{.has_mask = true},
             "cross_entropy: mask does not fit, got bool [3], expected f32 [3]");
  }

 private:
  static Matrix rows_of(const Matrix& x) {
    const i64 classes = x.shape().back();
    return x.reshape({x.num_elements() / classes, classes});
  }
};

// Targets that are distributions: operands logits and targets [..., C], weights [C] if stated.
struct SoftCrossEntropy {
  static constexpr OpInfo kInfo{.name = "cross_entropy", .kind = OpKind::Composite};
  struct Attrs {
    Reduction reduction = Reduction::Mean;
    Scalar smoothing;
  };
  // Results: as of CrossEntropy, without the last.
  static void infer(Infer& in, const Attrs& a) {
    const Shape& x = in.shape(0);
    if (!is_float(in.dtype(0)) || x.rank() == 0 || x.back() == 0) {
      in.reject("bad logits, got {} {}, expected a float [..., C] with C > 0", token(in.dtype(0)),
                x);
    }
    if (in.in(1) != in.in(0)) {
      in.reject("targets do not fit, got {} {}, expected classes {} or {} {}", token(in.dtype(1)),
                in.shape(1), leading(x), token(in.dtype(0)), x);
    }
    if (in.count() > 2 && (in.dtype(2) != in.dtype(0) || in.shape(2) != Shape{x.back()})) {
      in.reject("class weights do not fit, got {} {}, expected {} {}", token(in.dtype(2)),
                in.shape(2), token(in.dtype(0)), Shape{x.back()});
    }
    const DType wide = wide_dtype(in.dtype(0));
    in.out(wide, a.reduction == Reduction::None ? leading(x) : Shape{});
    in.out(wide, {leading(x).elements(), 1});
    in.out(wide, {leading(x).elements(), 1});
  }
  static std::vector<TensorRef> define(std::span<const TensorRef> in, const Attrs& a) {
    const Matrix x = flat(Matrix(in[0]));
    const Matrix peak = max(x, 1, true);
    const Matrix z = x - peak;
    const Matrix log_sum = log(sum(exp(z), 1, true));
    const Matrix q = shares(in, a), zero = full_like(q, 0);
    // A class of share 0 adds nothing, however unlikely it is.
    const Matrix row = log_sum * sum(q, 1, true) - sum(where(equal(q, zero), zero, q * z), 1, true);
    Matrix loss = row.reshape(leading(Matrix(in[0]).shape()));
    if (a.reduction != Reduction::None) {
      loss = sum(row);
      if (a.reduction == Reduction::Mean) loss = loss / rows_or_one(x);
    }
    return {loss.tensor(), peak.tensor(), log_sum.tensor()};
  }
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs& a) {
    const Matrix x = flat(input(g, 0)), q = shares(g.inputs, a);
    const bool each = a.reduction == Reduction::None;
    Matrix scale = grad(g).reshape(each ? Shape{x.shape()[0], 1} : Shape{1, 1});
    if (a.reduction == Reduction::Mean) scale = scale / rows_or_one(x);
    const Matrix z = (x - output(g, 1)) - output(g, 2);
    const auto like = [&](const Matrix& m, u32 i) {
      const Matrix in = input(g, i);
      return (m.dtype() == in.dtype() ? m : cast(m, in.dtype())).reshape(in.shape()).tensor();
    };
    std::vector<TensorRef> result(g.inputs.size());
    if (g.wanted[0]) result[0] = like((exp(z) * sum(q, 1, true) - q) * scale, 0);
    if (g.wanted[1]) {
      const Matrix s = full_like(z, a.smoothing);
      Matrix d = (s - 1.0) * z * scale;
      if (g.inputs.size() > 2) d = d * widen(input(g, 2));
      result[1] = like(d, 1);
    }
    return result;
  }
  static constexpr u32 kDetachedInputs = 1u << 2;  // the weights
  static void samples(Samples& s) {
    const auto call = [&](Shape x, Attrs a, bool weights = false, DType t = DType::F32) {
      std::vector<graph::SampleOperand> in = {{x, t, -4, 4}, {x, t, 0, 1}};
      if (weights) in.push_back({{x.back()}, t, 0.5, 2});
      s.call(std::move(in), a);
    };
    using enum Reduction;
    for (DType t : graph::kFloats) call({5, 37}, {}, false, t);
    call({3, 2, 7}, {.reduction = None, .smoothing = 0.2}, true);
    call({7}, {.reduction = Sum});
    call({0, 3}, {});
    call({4, 1}, {}, true);
    s.reject({{{3, 4}}, {{3}}}, Attrs{},
             "cross_entropy: targets do not fit, got f32 [3], expected classes [3] or f32 [3, 4]");
    s.reject({{{3, 4}}, {{3, 4}}, {{3}}}, Attrs{},
             "cross_entropy: class weights do not fit, got f32 [3], expected f32 [4]");
  }

 private:
  static Matrix flat(const Matrix& x) {
    const i64 classes = x.shape().back();
    return widen(x.reshape({x.num_elements() / classes, classes}));
  }
  static f64 rows_or_one(const Matrix& x) {
    return static_cast<f64>(std::max<i64>(1, x.shape()[0]));
  }
  // The smoothed targets times the weights of their classes.
  static Matrix shares(std::span<const TensorRef> in, const Attrs& a) {
    const Matrix t = flat(Matrix(in[1]));
    const Matrix s = full_like(t, a.smoothing);
    const Matrix q = t - s * (t + -1 / static_cast<f64>(t.shape()[1]));
    return in.size() > 2 ? q * widen(Matrix(in[2])) : q;
  }
};

}  // namespace

Matrix cross_entropy(const Matrix& logits, const Matrix& targets,
                     const CrossEntropyOptions& options) {
  constexpr std::string_view kOp = "cross_entropy";
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1)) {
    invalid(kOp, "bad label smoothing, got {}, expected 0 to 1", options.label_smoothing);
  }
  if (targets.valid() && is_float(targets.dtype())) {
    std::vector<TensorRef> in = {logits.tensor(), targets.tensor()};
    if (options.class_weights.valid()) in.push_back(options.class_weights.tensor());
    return Matrix(
        record_all<SoftCrossEntropy>(in, {options.reduction, options.label_smoothing})[0]);
  }
  const i64 ignore = options.ignore_index.value_or(0);
  if (ignore != static_cast<i32>(ignore)) {
    invalid(kOp, "bad ignore index, got {}, expected a 32-bit number", ignore);
  }
  Attrs a{.reduction = options.reduction,
          .has_ignore = options.ignore_index.has_value(),
          .has_weights = options.class_weights.valid(),
          .smooth = options.label_smoothing > 0,
          .ignore = static_cast<f64>(ignore),
          .smoothing = options.label_smoothing};
  const i64 rows = targets.valid() ? targets.num_elements() : 0;
  a.inverse = rows == 0 ? 0 : 1 / static_cast<f64>(rows);
  std::vector<TensorRef> in = {logits.tensor(), targets.tensor()};
  if (a.has_weights) in.push_back(options.class_weights.tensor());
  return Matrix(record_all<CrossEntropy>(in, a)[0]);
}

Matrix cross_entropy_masked(const Matrix& logits, const Matrix& targets, const Matrix& mask,
                            u32 valid_count) {
  const i64 rows = targets.valid() ? targets.num_elements() : 0;
  if (valid_count < 1 || valid_count > rows) {
    invalid("cross_entropy_masked", "bad valid count, got {}, expected 1 to {}", valid_count, rows);
  }
  const std::vector<TensorRef> in = {logits.tensor(), targets.tensor(), mask.tensor()};
  return Matrix(record_all<CrossEntropy>(
      in, {.has_mask = true, .inverse = 1 / static_cast<f64>(valid_count)})[0]);
}

}  // namespace loss

namespace matrix {
OpList cross_entropy_ops() {
  return graph::op_list<loss::CrossEntropy, loss::SoftCrossEntropy, loss::RowLoss<false>,
                        loss::RowLoss<true>, loss::LogitGradient<false>, loss::LogitGradient<true>,
                        loss::TargetWeight>();
}
}  // namespace matrix

}  // namespace oa::ml
