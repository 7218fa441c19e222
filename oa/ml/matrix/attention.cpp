#include "oa/ml/matrix/attention.h"

#include <cmath>
#include <limits>

#include "oa/matrix/create.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/matmul.h"
#include "oa/matrix/movement.h"
#include "oa/matrix/reduce.h"
#include "oa/matrix/transcendental.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/matrix/attention_kernels.h"
#include "oa/ml/matrix/ml_ops.h"

namespace oa::ml::matrix {
namespace {

using namespace oa::matrix;  // NOLINT: the ops of the layer below
using graph::Infer;
using graph::Samples;
using graph::Scalar;

// softmax(scores scale + mask); a row of -inf is one of zeros.
struct SoftmaxScaledMasked {
  static constexpr graph::OpInfo kInfo{.name = "softmax_scaled_masked",
                                       .kind = graph::OpKind::Composite};
  static constexpr u32 kDetachedInputs = 1u << 1;  // the mask
  struct Attrs {
    Scalar scale;
  };
  static void infer(Infer& in, const Attrs&) {
    const Shape& x = in.shape(0);
    if (!is_float(in.dtype(0)) || x.rank() == 0) {
      in.reject("bad scores, got {} {}, expected a float of rank 1 or more", token(in.dtype(0)), x);
    }
    if (in.count() > 1 &&
        (in.dtype(1) != in.dtype(0) || broadcast_shapes(in.op(), in.shape(1), x) != x)) {
      in.reject("mask does not fit, got {} {}, expected {} that broadcasts to {}",
                token(in.dtype(1)), in.shape(1), token(in.dtype(0)), x);
    }
    in.out(in.dtype(0), x);
  }
  static std::vector<TensorRef> define(std::span<const TensorRef> in, const Attrs& a) {
    Matrix x = Matrix(in[0]) * full_like(Matrix(in[0]), a.scale);
    if (x.num_elements() == 0) return {x.tensor()};
    if (in.size() > 1) x = x + Matrix(in[1]);
    const Matrix peak = max(x, -1, true);
    const Matrix none = equal(peak, full_like(peak, -std::numeric_limits<f64>::infinity()));
    const Matrix zero = full_like(peak, 0);
    const Matrix e = exp(x - where(none, zero, peak));
    const Matrix inverse = where(none, zero, reciprocal(sum(e, -1, true)));
    return {(e * inverse).tensor()};
  }
  static std::vector<TensorRef> gradient(const graph::Gradient& g, const Attrs& a) {
    const Matrix y = oa::matrix::output(g);
    std::vector<TensorRef> result(g.inputs.size());
    const Matrix weighted = oa::matrix::grad(g) * y;
    if (y.num_elements() == 0) {
      result[0] = weighted.tensor();
      return result;
    }
    const Matrix dx = weighted - y * sum(weighted, -1, true);
    result[0] = (dx * full_like(dx, a.scale)).tensor();
    return result;
  }
  static void samples(Samples& s) {
    for (DType t : graph::kFloats) s.call({{{3, 17}, t}, {{3, 17}, t}}, Attrs{0.5});
    s.call({{{2, 3, 5}}, {{1, 5}}}, Attrs{-2.0});
    s.call({{{4, 9}}}, Attrs{1});
    s.call({{{0, 9}}}, Attrs{1});
    s.reject({{{3}, DType::I32}}, Attrs{1},
             "softmax_scaled_masked: bad scores, got i32 [3], expected a float of rank 1 or more");
  }
};

struct Rope {
  static constexpr graph::OpInfo kInfo{.name = "rope", .kind = graph::OpKind::Composite};
  struct Attrs {
    i64 heads;
    i64 dim;
    bool back;  // turns the other way, for the gradient
    Scalar log_theta;
    Scalar offset;
  };
  static void infer(Infer& in, const Attrs& a) {
    const Shape& x = in.shape(0);
    if (!is_float(in.dtype(0)) || x.rank() != 2 || x[1] != a.heads * a.dim) {
      in.reject("operand 0 does not fit, got {} {}, expected a float [T, {}]", token(in.dtype(0)),
                x, a.heads * a.dim);
    }
    in.out(in.dtype(0), x);
  }
  static std::vector<TensorRef> define(std::span<const TensorRef> in, const Attrs& a) {
    const Matrix x(in[0]);
    if (x.num_elements() == 0) return {copy(x).tensor()};
    const i64 rows = x.shape()[0], half = a.dim / 2;
    const Matrix pairs = x.reshape({rows, a.heads, 2, half});
    const Matrix x0 = slice(pairs, 2, 0, 1), x1 = slice(pairs, 2, 1, 2);
    const DType wide = x.dtype() == DType::F64 ? DType::F64 : DType::F32;
    const Matrix i = arange_like(x, half, 0, wide).reshape({1, 1, 1, half});
    Matrix t = arange_like(x, rows, 0, wide).reshape({rows, 1, 1, 1});
    t = t + full_like(t, a.offset);
    const Matrix rate = exp(i * full_like(i, a.log_theta) * (-2.0 / static_cast<f64>(a.dim)));
    const Matrix angle = t * rate;
    const Matrix c = cast(cos(angle), x.dtype());
    const Matrix s = cast(a.back ? -sin(angle) : sin(angle), x.dtype());
    return {concat({x0 * c - x1 * s, x0 * s + x1 * c}, 2).reshape(x.shape()).tensor()};
  }
  static std::vector<TensorRef> gradient(const graph::Gradient& g, const Attrs& a) {
    Attrs back = a;
    back.back = !a.back;
    return {record_all<Rope>(g.grads, back)[0]};
  }
  static void samples(Samples& s) {
    for (DType t : {DType::F32, DType::F64, DType::BF16}) {
      s.call({{{7, 12}, t}}, Attrs{2, 6, false, std::log(10000.0), 3});
    }
    s.call({{{5, 2}}}, Attrs{1, 2, false, std::log(10.0), 0});
    s.call({{{0, 4}}}, Attrs{1, 4, true, 1, 0});
    s.reject({{{5, 3}}}, Attrs{1, 2, false, 1, 0},
             "rope: operand 0 does not fit, got f32 [5, 3], expected a float [T, 2]");
  }
};

constexpr f64 kInfinity = std::numeric_limits<f64>::infinity();

// Additive and 4-dimensional, whatever the caller's mask is.
Matrix additive(const Matrix& mask, DType dtype) {
  const NoGrad quiet;
  Matrix m = detach(mask);
  if (m.dtype() == DType::Bool) {
    const Matrix zero = cast(m, DType::F32) * 0.0;
    m = where(m, zero, full_like(zero, -kInfinity));
  }
  m = cast(m, dtype);
  Shape shape = m.shape();
  while (shape.rank() < 4) shape.insert(0, 1);
  return m.reshape(shape);
}

Matrix masked_softmax(const Matrix& scores, const Matrix& mask, f64 scale) {
  std::vector<TensorRef> in = {scores.tensor()};
  if (mask.valid()) in.push_back(mask.tensor());
  return Matrix(record_all<SoftmaxScaledMasked>(in, {scale})[0]);
}

Matrix standard(const Matrix& q, const Matrix& k, const Matrix& v, f64 scale,
                const AttentionOptions& o) {
  const auto heads_first = [&](const Matrix& x) { return o.heads_inner ? transpose(x, 1, 2) : x; };
  Matrix qh = heads_first(q), kh = heads_first(k), vh = heads_first(v);
  const i64 sharing = qh.shape()[1] / kh.shape()[1];
  if (sharing > 1) {
    kh = repeat_interleave(kh, sharing, 1);
    vh = repeat_interleave(vh, sharing, 1);
  }
  Matrix mask;
  if (o.mask.valid()) mask = additive(o.mask, q.dtype());
  if (o.causal) {
    const Matrix future = causal_mask(qh, qh.shape()[2], kh.shape()[2]);
    mask = mask.valid() ? mask + future : future;
  }
  const Matrix scores = mat_mul_nt(qh, kh, o.precision);
  return heads_first(mat_mul(masked_softmax(scores, mask, scale), vh, o.precision));
}

void need_rank(std::string_view op, const Matrix& x, u32 rank) {
  if (!x.valid() || x.rank() != rank) {
    invalid(op, "wrong rank, got {}, expected rank {}", x.valid() ? x.shape() : Shape(), rank);
  }
}

}  // namespace

OpList attention_ops() {
  return graph::op_list<Attention, AttentionBackward, SoftmaxScaledMasked, Rope>();
}

Matrix causal_mask(const Matrix& like, i64 rows, i64 columns) {
  const NoGrad quiet;
  const Matrix i = arange_like(like, rows, 0, DType::I32).reshape({rows, 1});
  const Matrix j = arange_like(like, columns, 0, DType::I32).reshape({1, columns});
  const Matrix hidden = less(i, j);
  const Matrix zero = cast(cast(hidden, DType::F32) * 0.0, like.dtype());
  return where(hidden, full_like(zero, -kInfinity), zero);
}

Matrix attention(const Matrix& q, const Matrix& k, const Matrix& v,
                 const AttentionOptions& options) {
  for (const Matrix* m : {&q, &k, &v}) need_rank("attention", *m, 4);
  const f64 dim = static_cast<f64>(q.shape()[3]);
  const f64 scale = options.scale != 0 ? options.scale : dim > 0 ? 1 / std::sqrt(dim) : 1;
  if (options.backend == AttentionBackend::Standard) {
    // The shape rule is the same for both.
    graph::Spec specs[3] = {q.tensor()->spec(), k.tensor()->spec(), v.tensor()->spec()};
    const graph::Spec* in[3] = {&specs[0], &specs[1], &specs[2]};
    Infer infer("attention", in);
    Attention::infer(infer, {options.heads_inner, options.causal, scale});
    return standard(q, k, v, scale, options);
  }
  std::vector<TensorRef> in = {q.tensor(), k.tensor(), v.tensor()};
  if (options.mask.valid()) in.push_back(additive(options.mask, q.dtype()).tensor());
  // Part of the structure of programs, so only where it means something.
  const Precision wanted = precision_of(q, options.precision);
  const Precision precision = rounds(wanted) ? wanted : Precision::F32;
  return Matrix(
      record_all<Attention>(in, {options.heads_inner, options.causal, scale, precision})[0]);
}

Matrix scaled_dot_product_attention(const Matrix& q, const Matrix& k, const Matrix& v,
                                    const Matrix& additive_mask, f64 scale, bool causal) {
  constexpr std::string_view kOp = "scaled_dot_product_attention";
  for (const Matrix* m : {&q, &k, &v}) need_rank(kOp, *m, 3);
  AttentionOptions o{.scale = scale, .causal = causal};
  if (additive_mask.valid()) {
    const i64 n = q.shape()[0], rows = q.shape()[1], columns = k.shape()[1];
    if (additive_mask.shape() != Shape{n * rows, columns}) {
      invalid(kOp, "mask does not fit, got {}, expected {}", additive_mask.shape(),
              Shape{n * rows, columns});
    }
    o.mask = additive_mask.reshape({n, 1, rows, columns});
  }
  const Matrix y = attention(q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1), o);
  return y.squeeze(1);
}

Matrix scaled_dot_product_attention_causal(const Matrix& q, const Matrix& k, const Matrix& v,
                                           i64 sequence_length, i64 num_heads) {
  constexpr std::string_view kOp = "scaled_dot_product_attention_causal";
  for (const Matrix* m : {&q, &k, &v}) need_rank(kOp, *m, 2);
  if (sequence_length < 1 || num_heads < 1 || q.shape()[0] % sequence_length != 0 ||
      q.shape()[1] % num_heads != 0 || k.shape() != q.shape() || v.shape() != q.shape()) {
    invalid(kOp,
            "operands do not fit, got q {}, k {}, v {} for {} positions and {} heads, expected "
            "equal [B S, D] that they divide",
            q.shape(), k.shape(), v.shape(), sequence_length, num_heads);
  }
  const Shape split{q.shape()[0] / sequence_length, sequence_length, num_heads,
                    q.shape()[1] / num_heads};
  const Matrix y = attention(q.reshape(split), k.reshape(split), v.reshape(split),
                             {.causal = true, .heads_inner = true});
  return y.reshape(q.shape());
}

Matrix flash_attention_causal(const Matrix& q, const Matrix& k, const Matrix& v, f64 scale) {
  for (const Matrix* m : {&q, &k, &v}) need_rank("flash_attention_causal", *m, 3);
  const AttentionOptions o{.scale = scale, .causal = true, .backend = AttentionBackend::Flash};
  return attention(q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1), o).squeeze(1);
}

Matrix softmax_scaled_masked(const Matrix& scores, const Matrix& mask, f64 scale) {
  return masked_softmax(scores, mask.valid() ? detach(mask) : mask, scale);
}

Matrix split_heads(const Matrix& x, i64 batch, i64 sequence_length, i64 num_heads) {
  need_rank("split_heads", x, 2);
  if (num_heads < 1 || x.shape()[1] % num_heads != 0 || x.shape()[0] != batch * sequence_length) {
    invalid("split_heads", "shape does not fit, got {} for {} x {} rows and {} heads", x.shape(),
            batch, sequence_length, num_heads);
  }
  const i64 dim = x.shape()[1] / num_heads;
  if (num_heads == 1) return x.reshape({batch, sequence_length, dim});
  return permute(x.reshape({batch, sequence_length, num_heads, dim}), {0, 2, 1, 3})
      .reshape({batch * num_heads, sequence_length, dim});
}

Matrix merge_heads(const Matrix& x, i64 batch, i64 sequence_length, i64 num_heads) {
  need_rank("merge_heads", x, 3);
  if (num_heads < 1 || x.shape()[0] != batch * num_heads || x.shape()[1] != sequence_length) {
    invalid("merge_heads", "shape does not fit, got {} for {} x {} rows and {} heads", x.shape(),
            batch, sequence_length, num_heads);
  }
  const i64 dim = x.shape()[2];
  if (num_heads == 1) return x.reshape({batch * sequence_length, dim});
  return permute(x.reshape({batch, num_heads, sequence_length, dim}), {0, 2, 1, 3})
      .reshape({batch * sequence_length, num_heads * dim});
}

Matrix rope(const Matrix& x, i64 num_heads, i64 head_dim, f64 theta_base, u32 position_offset) {
  if (num_heads < 1 || head_dim < 2 || head_dim % 2 != 0) {
    invalid("rope", "bad sizes, got {} heads of {}, expected an even head size", num_heads,
            head_dim);
  }
  if (!(theta_base > 0) || !std::isfinite(theta_base)) {
    invalid("rope", "bad theta, got {}, expected a finite number above 0", theta_base);
  }
  return record<Rope>(
      {x}, {num_heads, head_dim, false, std::log(theta_base), static_cast<f64>(position_offset)});
}

}  // namespace oa::ml::matrix
