#include "oa/ml/matrix/activation.h"

#include <cmath>
#include <numbers>

#include "oa/kernel/math.h"
#include "oa/matrix/float_op.h"
#include "oa/matrix/movement.h"
#include "oa/ml/matrix/ml_ops.h"

namespace oa::ml::matrix {
namespace {

using namespace oa::matrix;  // NOLINT: the ops of the layer below
using graph::Samples;
using kernel::Value;

Value number(const Value& like, f64 x) { return kernel::constant(like.scalar(), x); }

// y; beyond far, where it is 0 or x, exactly that: no infinity times 0, in slopes neither.
Value settled(const Value& x, const Value& far, const Value& y) {
  return kernel::select(x < -far, number(x, -0.0), kernel::select(x > far, x, y));
}
// Where e^-x is 0.
Value underflow(const Value& x) {
  return number(x, x.scalar() == kernel::Scalar::F64 ? 1000 : 100);
}

// Chosen by conditions that NaN fails, so that it takes the branch of x.
Value relu_of(const Value& x) { return kernel::select(x <= number(x, 0), number(x, 0), x); }

// (1 + tanh(u)) / 2 is the sigmoid of 2 u, which keeps its digits where tanh is near -1. Far out,
// where u overflows, the result is settled without it.
Value gelu_of(const Value& x) {
  const f64 c = std::sqrt(2 / std::numbers::pi);
  const Value far = number(x, x.scalar() == kernel::Scalar::F64 ? 30 : 12);
  const Value twice = x * (number(x, 2 * c * 0.044715) * (x * x) + number(x, 2 * c));
  return settled(x, far, x * kernel::sigmoid(twice));
}

Value gelu_erf_of(const Value& x) {
  const Value t = kernel::erf(x * number(x, std::numbers::sqrt2 / 2));
  return settled(x, number(x, 12), x * number(x, 0.5) * (number(x, 1) + t));
}

Value silu_of(const Value& x) { return settled(x, underflow(x), x * kernel::sigmoid(x)); }

// With n = e^x (e^x + 2): tanh(log(1 + e^x)) = n / (n + 2), which is 1 from x = 20 on.
Value mish_of(const Value& x) {
  const Value e = kernel::exp(kernel::min(x, number(x, 20)));
  const Value n = e * (e + number(x, 2));
  return settled(x, underflow(x), x * (n / (n + number(x, 2))));
}

constexpr char kRelu[] = "relu", kGelu[] = "gelu", kGeluErf[] = "gelu_erf", kSilu[] = "silu",
               kMish[] = "mish";

using Relu = FloatOp<relu_of, kRelu, 1>;
using Gelu = FloatOp<gelu_of, kGelu, 26>;
using GeluErf = FloatOp<gelu_erf_of, kGeluErf, 26>;
using Silu = FloatOp<silu_of, kSilu, 20>;
using Mish = FloatOp<mish_of, kMish, 26>;

// x where it is positive (or NaN), else something of x and alpha.
template <bool kExponential>
struct Leaky {
  static constexpr OpInfo kInfo{.name = kExponential ? "elu" : "leaky_relu",
                                .kind = OpKind::Elementwise,
                                .cost = kExponential ? 18 : 2};
  struct Attrs {
    Scalar alpha;
  };
  static void infer(Infer& in, const Attrs&) {
    need_float(in, 0);
    in.out(in.dtype(0), in.shape(0));
  }
  static Value emit(Emit& e, const Attrs&) {
    const Value x = e.input(0), alpha = e.scalar(0, x.scalar());
    return kernel::select(x <= number(x, 0), alpha * (kExponential ? kernel::expm1(x) : x), x);
  }
  static void samples(Samples& s) {
    unary_samples(s, kFloats, Attrs{0.3}, -5, 5);
    for (f64 alpha : {0.0, 1.0, 2.5, -0.5}) s.call({{{37}, DType::F32, -9, 9}}, Attrs{alpha});
    s.reject(
        {{{3}, DType::U8}}, Attrs{1},
        fmt::format("{}: operand 0 has the wrong dtype, got u8, expected a float", kInfo.name));
  }
};

struct Swiglu {
  static constexpr OpInfo kInfo{.name = "swiglu", .kind = OpKind::Elementwise, .cost = 21};
  using Attrs = NoAttrs;
  static void infer(Infer& in, const Attrs&) {
    need_float(in, 0);
    if (in.in(0) != in.in(1)) {
      in.reject("operands differ, got {} {} and {} {}, expected equal shapes and dtypes",
                token(in.dtype(0)), in.shape(0), token(in.dtype(1)), in.shape(1));
    }
    in.out(in.dtype(0), in.shape(0));
  }
  static Value emit(Emit& e, const Attrs&) { return silu_of(e.input(0)) * e.input(1); }
  static void samples(Samples& s) {
    for (DType t : kFloats) s.call({{{5, 7}, t, -5, 5}, {{5, 7}, t}}, Attrs{});
    s.call({{{0, 3}}, {{0, 3}}}, Attrs{});
    s.call({{{41}, DType::F32, -3, 3, true}, {{41}}}, Attrs{});
    s.reject({{{4, 3}}, {{3}}}, Attrs{},
             "swiglu: operands differ, got f32 [4, 3] and f32 [3], expected equal shapes and "
             "dtypes");
    s.reject({{{3}, DType::I32}, {{3}, DType::I32}}, Attrs{},
             "swiglu: operand 0 has the wrong dtype, got i32, expected a float");
  }
};

struct SiluMul {
  static constexpr OpInfo kInfo{.name = "silu_mul", .kind = OpKind::Composite};
  struct Attrs {
    i64 size;
  };
  static void infer(Infer& in, const Attrs& a) {
    need_float(in, 0);
    const Shape& x = in.shape(0);
    if (a.size < 1 || x.rank() == 0 || x.back() != 2 * a.size) {
      in.reject("last axis does not fit, got {} for size {}, expected twice a size above 0", x,
                a.size);
    }
    Shape out = x;
    out[x.rank() - 1] = a.size;
    in.out(in.dtype(0), out);
  }
  static std::vector<TensorRef> define(std::span<const TensorRef> in, const Attrs& a) {
    const Matrix x(in[0]);
    const Matrix gate = slice(x, -1, 0, a.size), up = slice(x, -1, a.size, 2 * a.size);
    return {record<Swiglu>({gate, up}).tensor()};
  }
  static void samples(Samples& s) {
    for (DType t : kFloats) s.call({{{5, 14}, t, -5, 5}}, Attrs{7});
    s.call({{{2, 3, 2}}}, Attrs{1});
    s.call({{{0, 8}}}, Attrs{4});
    s.reject({{{3, 5}}}, Attrs{2},
             "silu_mul: last axis does not fit, got [3, 5] for size 2, expected twice a size "
             "above 0");
    s.reject({{{3, 0}}}, Attrs{0},
             "silu_mul: last axis does not fit, got [3, 0] for size 0, expected twice a size "
             "above 0");
  }
};

}  // namespace

OpList activation_ops() {
  return graph::op_list<Relu, Gelu, GeluErf, Silu, Mish, Leaky<false>, Leaky<true>, Swiglu,
                        SiluMul>();
}

Matrix relu(const Matrix& x) { return record<Relu>({x}); }
Matrix leaky_relu(const Matrix& x, f64 alpha) { return record<Leaky<false>>({x}, {alpha}); }
Matrix elu(const Matrix& x, f64 alpha) { return record<Leaky<true>>({x}, {alpha}); }
Matrix gelu(const Matrix& x) { return record<Gelu>({x}); }
Matrix gelu_erf(const Matrix& x) { return record<GeluErf>({x}); }
Matrix silu(const Matrix& x) { return record<Silu>({x}); }
Matrix mish(const Matrix& x) { return record<Mish>({x}); }
Matrix swiglu(const Matrix& gate, const Matrix& up) { return record<Swiglu>({gate, up}); }
Matrix silu_mul(const Matrix& x, i64 intermediate_size) {
  return record<SiluMul>({x}, {intermediate_size});
}

}  // namespace oa::ml::matrix
