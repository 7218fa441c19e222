#include "oa/matrix/transcendental.h"

#include "oa/kernel/math.h"
#include "oa/matrix/all_ops.h"
#include "oa/matrix/float_op.h"

namespace oa::matrix {
namespace {

using kernel::Value;

Matrix exp_slope(const Matrix& y) { return y; }
Matrix tanh_slope(const Matrix& y) { return 1 + -square(y); }
Matrix sigmoid_slope(const Matrix& y) { return y - square(y); }

constexpr char kExp[] = "exp", kExpm1[] = "expm1", kLog[] = "log", kLog1p[] = "log1p",
               kSin[] = "sin", kCos[] = "cos", kTanh[] = "tanh", kSigmoid[] = "sigmoid",
               kSoftplus[] = "softplus", kErf[] = "erf", kRsqrt[] = "rsqrt";

using Exp = FloatOp<kernel::exp, kExp, 12, exp_slope>;
using Expm1 = FloatOp<kernel::expm1, kExpm1, 16>;
using Log = FloatOp<kernel::log, kLog, 14>;
using Log1p = FloatOp<kernel::log1p, kLog1p, 18>;
using Sin = FloatOp<kernel::sin, kSin, 16>;
using Cos = FloatOp<kernel::cos, kCos, 16>;
using Tanh = FloatOp<kernel::tanh, kTanh, 16, tanh_slope>;
using Sigmoid = FloatOp<kernel::sigmoid, kSigmoid, 16, sigmoid_slope>;
using Softplus = FloatOp<kernel::softplus, kSoftplus, 24>;
using Erf = FloatOp<kernel::erf, kErf, 20>;
using Rsqrt = FloatOp<kernel::rsqrt, kRsqrt, 8>;

struct PowScalar {
  static constexpr OpInfo kInfo{.name = "pow", .kind = OpKind::Elementwise, .cost = 40};
  struct Attrs {
    Scalar exponent;
  };
  static void infer(Infer& in, const Attrs&) {
    need_float(in, 0);
    in.out(in.dtype(0), in.shape(0));
  }
  static Value emit(Emit& e, const Attrs&) {
    const Value x = e.input(0);
    return kernel::pow(x, e.scalar(0, x.scalar()));
  }
  static void samples(Samples& s) {
    unary_samples(s, kFloats, Attrs{1.5}, 0, 4);
    for (f64 exponent : {0.0, 1.0, 2.0, 3.0, -1.0, 0.5, -0.5}) {
      s.call({{{37}, DType::F32, -4, 4, true}}, Attrs{exponent});
    }
    reject_integers(s, kInfo.name, Attrs{2});
  }
};

struct Pow {
  static constexpr OpInfo kInfo{.name = "pow", .kind = OpKind::Elementwise, .cost = 40};
  using Attrs = NoAttrs;
  static void infer(Infer& in, const Attrs&) {
    need_float(in, 0);
    if (in.dtype(0) != in.dtype(1)) {
      in.reject("operand dtypes differ, got {} and {}, expected equal ones", token(in.dtype(0)),
                token(in.dtype(1)));
    }
    in.out(in.dtype(0), broadcast_shapes(in.op(), in.shape(0), in.shape(1)));
  }
  static Value emit(Emit& e, const Attrs&) { return kernel::pow(e.input(0), e.input(1)); }
  static void samples(Samples& s) {
    binary_samples(s, kFloats, Attrs{}, -3, 3);
    s.call({{{60}, DType::F32, 0, 9}, {{60}, DType::F32, -9, 9}}, Attrs{});
    s.reject({{{3}, DType::U8}, {{3}, DType::U8}}, Attrs{},
             "pow: operand 0 has the wrong dtype, got u8, expected a float");
    s.reject({{{3}}, {{3}, DType::F64}}, Attrs{},
             "pow: operand dtypes differ, got f32 and f64, expected equal ones");
  }
};

}  // namespace

OpList transcendental_ops() {
  return graph::op_list<Exp, Expm1, Log, Log1p, Sin, Cos, Tanh, Sigmoid, Softplus, Erf, Rsqrt,
                        PowScalar, Pow>();
}

Matrix exp(const Matrix& x) { return record<Exp>({x}); }
Matrix expm1(const Matrix& x) { return record<Expm1>({x}); }
Matrix log(const Matrix& x) { return record<Log>({x}); }
Matrix log1p(const Matrix& x) { return record<Log1p>({x}); }
Matrix sin(const Matrix& x) { return record<Sin>({x}); }
Matrix cos(const Matrix& x) { return record<Cos>({x}); }
Matrix tanh(const Matrix& x) { return record<Tanh>({x}); }
Matrix sigmoid(const Matrix& x) { return record<Sigmoid>({x}); }
Matrix softplus(const Matrix& x) { return record<Softplus>({x}); }
Matrix erf(const Matrix& x) { return record<Erf>({x}); }
Matrix rsqrt(const Matrix& x) { return record<Rsqrt>({x}); }
Matrix pow(const Matrix& x, f64 exponent) { return record<PowScalar>({x}, {exponent}); }
Matrix pow(const Matrix& x, const Matrix& y) { return record<Pow>({x, y}); }

}  // namespace oa::matrix
