#include "oa/matrix/transcendental.h"

#include "oa/kernel/math.h"
#include "oa/matrix/all_ops.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/record.h"
#include "oa/matrix/sample_sets.h"

namespace oa::matrix {
namespace {

using kernel::Value;

void need_float(const Infer& in, u32 i) {
  if (!is_float(in.dtype(i))) {
    in.reject("operand {} has the wrong dtype, got {}, expected a float", i, token(in.dtype(i)));
  }
}

template <class Attrs>
void reject_integers(Samples& s, std::string_view op, const Attrs& a) {
  s.reject({{{3}, DType::I32}}, a,
           fmt::format("{}: operand 0 has the wrong dtype, got i32, expected a float", op));
}

using Function = Value (*)(const Value&);

// Derivatives that are cheaper from the result than from the operand; null for the others.
using FromResult = Matrix (*)(const Matrix& y);
template <Function kFunction>
constexpr FromResult kFromResult = nullptr;
template <>
constexpr FromResult kFromResult<kernel::exp> = [](const Matrix& y) { return y; };
template <>
constexpr FromResult kFromResult<kernel::tanh> = [](const Matrix& y) { return 1 + -square(y); };
template <>
constexpr FromResult kFromResult<kernel::sigmoid> = [](const Matrix& y) { return y - square(y); };

template <Function kFunction, const char* kName, u32 kCost>
struct OfFloat {
  static constexpr OpInfo kInfo{.name = kName, .kind = OpKind::Elementwise, .cost = kCost};
  using Attrs = NoAttrs;
  static void infer(Infer& in, const Attrs&) {
    need_float(in, 0);
    in.out(in.dtype(0), in.shape(0));
  }
  static Value emit(Emit& e, const Attrs&) { return kFunction(e.input(0)); }
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs&)
    requires(kFromResult<kFunction> != nullptr)
  {
    return gradients({grad(g) * kFromResult<kFunction>(output(g))});
  }
  static void samples(Samples& s) {
    unary_samples(s, kFloats, Attrs{}, -5, 5);
    s.call({{{300}, DType::F32, 0, 40}}, Attrs{});
    s.call({{{300}, DType::F32, -40, 0}}, Attrs{});
    s.call({{{100}, DType::F32, -1e-3, 1e-3}}, Attrs{});
    reject_integers(s, kInfo.name, Attrs{});
  }
};

constexpr char kExp[] = "exp", kExpm1[] = "expm1", kLog[] = "log", kLog1p[] = "log1p",
               kSin[] = "sin", kCos[] = "cos", kTanh[] = "tanh", kSigmoid[] = "sigmoid",
               kSoftplus[] = "softplus", kErf[] = "erf", kRsqrt[] = "rsqrt";

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
  return graph::op_list<OfFloat<kernel::exp, kExp, 12>, OfFloat<kernel::expm1, kExpm1, 16>,
                        OfFloat<kernel::log, kLog, 14>, OfFloat<kernel::log1p, kLog1p, 18>,
                        OfFloat<kernel::sin, kSin, 16>, OfFloat<kernel::cos, kCos, 16>,
                        OfFloat<kernel::tanh, kTanh, 16>, OfFloat<kernel::sigmoid, kSigmoid, 16>,
                        OfFloat<kernel::softplus, kSoftplus, 24>, OfFloat<kernel::erf, kErf, 20>,
                        OfFloat<kernel::rsqrt, kRsqrt, 8>, PowScalar, Pow>();
}

Matrix exp(const Matrix& x) { return record<OfFloat<kernel::exp, kExp, 12>>({x}); }
Matrix expm1(const Matrix& x) { return record<OfFloat<kernel::expm1, kExpm1, 16>>({x}); }
Matrix log(const Matrix& x) { return record<OfFloat<kernel::log, kLog, 14>>({x}); }
Matrix log1p(const Matrix& x) { return record<OfFloat<kernel::log1p, kLog1p, 18>>({x}); }
Matrix sin(const Matrix& x) { return record<OfFloat<kernel::sin, kSin, 16>>({x}); }
Matrix cos(const Matrix& x) { return record<OfFloat<kernel::cos, kCos, 16>>({x}); }
Matrix tanh(const Matrix& x) { return record<OfFloat<kernel::tanh, kTanh, 16>>({x}); }
Matrix sigmoid(const Matrix& x) { return record<OfFloat<kernel::sigmoid, kSigmoid, 16>>({x}); }
Matrix softplus(const Matrix& x) { return record<OfFloat<kernel::softplus, kSoftplus, 24>>({x}); }
Matrix erf(const Matrix& x) { return record<OfFloat<kernel::erf, kErf, 20>>({x}); }
Matrix rsqrt(const Matrix& x) { return record<OfFloat<kernel::rsqrt, kRsqrt, 8>>({x}); }
Matrix pow(const Matrix& x, f64 exponent) { return record<PowScalar>({x}, {exponent}); }
Matrix pow(const Matrix& x, const Matrix& y) { return record<Pow>({x, y}); }

}  // namespace oa::matrix
