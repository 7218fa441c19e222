#include "oa/ml/loss/elementwise.h"

#include <algorithm>

#include "oa/kernel/math.h"
#include "oa/matrix/create.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/record.h"
#include "oa/matrix/reduce.h"
#include "oa/ml/matrix/ml_ops.h"

namespace oa::ml {
namespace loss {
namespace {

using namespace oa::matrix;  // NOLINT: the ops of the layer below
using graph::Samples;
using kernel::Value;

Value number(const Value& like, f64 x) { return kernel::constant(like.scalar(), x); }

// Losses of one element.
Value square_of(const Value& p, const Value& t) { return (p - t) * (p - t); }
Value distance_of(const Value& p, const Value& t) { return kernel::abs(p - t); }
Value smooth_of(const Value& p, const Value& t) {
  const Value d = p - t, size = kernel::abs(d);
  return kernel::select(size < number(d, 1), number(d, 0.5) * (d * d), size - number(d, 0.5));
}
constexpr f64 kLeast = 1e-7;
Value kept(const Value& p) {
  return kernel::min(kernel::max(p, number(p, kLeast)), number(p, 1 - kLeast));
}
Value bce_of(const Value& p, const Value& t) {
  const Value q = kept(p);
  return -(t * kernel::log(q) + (number(t, 1) - t) * kernel::log(number(q, 1) - q));
}
// The part of an infinite logit that the target excludes is 0, not NaN.
Value bce_logits_of(const Value& x, const Value& t) {
  return kernel::softplus(x) - kernel::select(t == number(t, 0), t, t * x);
}
Value bce_slope(const Value& p, const Value& t) {
  const Value q = kept(p);
  return (q - t) / (q * (number(q, 1) - q));
}

using Pair = Value (*)(const Value&, const Value&);

void infer_pair(Infer& in) {
  if (!is_float(in.dtype(0))) {
    in.reject("operand 0 has the wrong dtype, got {}, expected a float", token(in.dtype(0)));
  }
  if (in.in(1) != in.in(0)) {
    in.reject("target does not fit, got {} {}, expected {} {}", token(in.dtype(1)), in.shape(1),
              token(in.dtype(0)), in.shape(0));
  }
}
DType wide_dtype(DType t) { return t == DType::F64 ? DType::F64 : DType::F32; }

// Losses of single elements, in F32 at least.
template <const char* kName, Pair kLoss>
struct Element {
  static constexpr OpInfo kInfo{.name = kName, .kind = OpKind::Elementwise, .cost = 16};
  static constexpr u32 kDetachedInputs = 1u << 1;
  using Attrs = NoAttrs;
  static void infer(Infer& in, const Attrs&) {
    infer_pair(in);
    in.out(wide_dtype(in.dtype(0)), in.shape(0));
  }
  static Value emit(Emit& e, const Attrs&) { return kLoss(e.input(0), e.input(1)); }
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs&)
    requires(kLoss == bce_of)
  {
    return {record<BceGradient>({input(g, 0), input(g, 1), grad(g)}).tensor()};
  }
  static void samples(Samples& s) {
    const f64 low = kLoss == bce_of ? 0.01 : -3, high = kLoss == bce_of ? 0.99 : 3;
    for (DType t : graph::kFloats) s.call({{{5, 7}, t, low, high}, {{5, 7}, t, 0, 1}}, Attrs{});
    s.call({{{}, DType::F32, low, high}, {{}}}, Attrs{});
    s.call({{{0, 3}}, {{0, 3}}}, Attrs{});
    s.call({{{41}, DType::F32, low, high, kLoss != bce_of}, {{41}}}, Attrs{});
    s.reject({{{3}, DType::I32}, {{3}, DType::I32}}, Attrs{},
             fmt::format("{}: operand 0 has the wrong dtype, got i32, expected a float", kName));
    s.reject({{{4, 3}}, {{3}}}, Attrs{},
             fmt::format("{}: target does not fit, got f32 [3], expected f32 [4, 3]", kName));
    s.reject({{{3}}, {{3}, DType::F64}}, Attrs{},
             fmt::format("{}: target does not fit, got f64 [3], expected f32 [3]", kName));
  }

 private:
  // Operands p, t and the gradient of the loss.
  struct BceGradient {
    static constexpr OpInfo kInfo{.name = "bce_backward", .kind = OpKind::Elementwise, .cost = 12};
    using Attrs = NoAttrs;
    static void infer(Infer& in, const Attrs&) { in.out(in.dtype(0), in.shape(0)); }
    static Value emit(Emit& e, const Attrs&) {
      return bce_slope(e.input(0), e.input(1)) * e.input(2);
    }
    static void samples(Samples& s) {
      s.call({{{5, 7}, DType::F32, 0, 1}, {{5, 7}, DType::F32, 0, 1}, {{5, 7}}}, Attrs{});
    }
  };
};

constexpr char kMse[] = "mse", kL1[] = "l1", kSmoothL1[] = "smooth_l1", kBce[] = "bce",
               kBceLogits[] = "bce_with_logits";
using Mse = Element<kMse, square_of>;
using L1 = Element<kL1, distance_of>;
using SmoothL1 = Element<kSmoothL1, smooth_of>;
using Bce = Element<kBce, bce_of>;
using BceWithLogits = Element<kBceLogits, bce_logits_of>;

// One semantic op per loss: the elements and what becomes of them.
template <class E>
struct Reduced {
  static constexpr OpInfo kInfo{.name = E::kInfo.name, .kind = OpKind::Composite};
  static constexpr u32 kDetachedInputs = 1u << 1;
  struct Attrs {
    bool mean;
  };
  static void infer(Infer& in, const Attrs&) {
    infer_pair(in);
    in.out(wide_dtype(in.dtype(0)), {});
  }
  static std::vector<TensorRef> define(std::span<const TensorRef> in, const Attrs& a) {
    const Matrix each = record<E>({Matrix(in[0]), Matrix(in[1])});
    const i64 n = std::max<i64>(1, each.num_elements());
    const Matrix total = sum(each);
    return {(a.mean ? total / static_cast<f64>(n) : total).tensor()};
  }
  static void samples(Samples& s) {
    const bool unit = E::kInfo.name == kBce;
    const f64 low = unit ? 0.01 : -3, high = unit ? 0.99 : 3;
    for (DType t : {DType::F32, DType::F64, DType::BF16}) {
      s.call({{{5, 37}, t, low, high}, {{5, 37}, t, 0, 1}}, Attrs{true});
    }
    s.call({{{5, 37}, DType::F32, low, high}, {{5, 37}, DType::F32, 0, 1}}, Attrs{false});
    s.call({{{0, 3}}, {{0, 3}}}, Attrs{true});
    s.call({{{}, DType::F32, low, high}, {{}, DType::F32, 0, 1}}, Attrs{true});
    s.reject({{{4, 3}}, {{3}}}, Attrs{true},
             fmt::format("{}: target does not fit, got f32 [3], expected f32 [4, 3]", kInfo.name));
  }
};

template <class E>
Matrix apply(const Matrix& prediction, const Matrix& target, Reduction reduction) {
  if (reduction == Reduction::None) return record<E>({prediction, target});
  return record<Reduced<E>>({prediction, target}, {reduction == Reduction::Mean});
}

}  // namespace

Matrix mse(const Matrix& prediction, const Matrix& target, Reduction reduction) {
  return apply<Mse>(prediction, target, reduction);
}
Matrix l1(const Matrix& prediction, const Matrix& target, Reduction reduction) {
  return apply<L1>(prediction, target, reduction);
}
Matrix smooth_l1(const Matrix& prediction, const Matrix& target, Reduction reduction) {
  return apply<SmoothL1>(prediction, target, reduction);
}
Matrix bce(const Matrix& prediction, const Matrix& target, Reduction reduction) {
  return apply<Bce>(prediction, target, reduction);
}
Matrix bce_with_logits(const Matrix& logits, const Matrix& target, Reduction reduction) {
  return apply<BceWithLogits>(logits, target, reduction);
}

}  // namespace loss

namespace matrix {
OpList loss_ops() {
  using namespace loss;  // NOLINT
  return graph::op_list<Mse, L1, SmoothL1, Bce, BceWithLogits, Reduced<Mse>, Reduced<L1>,
                        Reduced<SmoothL1>, Reduced<Bce>, Reduced<BceWithLogits>>();
}
}  // namespace matrix

}  // namespace oa::ml
