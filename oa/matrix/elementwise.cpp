#include "oa/matrix/elementwise.h"

#include <limits>

#include "oa/graph/reshape.h"
#include "oa/matrix/all_ops.h"
#include "oa/matrix/create.h"
#include "oa/matrix/float_op.h"

namespace oa::matrix {
namespace {

using kernel::Value;

constexpr OpInfo pointwise(std::string_view name, f32 cost = 1) {
  return {.name = name, .kind = OpKind::Elementwise, .cost = cost};
}

// --- Shape rules ---

void same_dtypes(const Infer& in, u32 a, u32 b) {
  if (in.dtype(a) != in.dtype(b)) {
    in.reject("operand dtypes differ, got {} and {}, expected equal ones", token(in.dtype(a)),
              token(in.dtype(b)));
  }
}
void need_number(const Infer& in, u32 i) {
  if (in.dtype(i) == DType::Bool) {
    in.reject("operand {} has the wrong dtype, got bool, expected a number", i);
  }
}
void need_bool(const Infer& in, u32 i) {
  if (in.dtype(i) != DType::Bool) {
    in.reject("operand {} has the wrong dtype, got {}, expected bool", i, token(in.dtype(i)));
  }
}
Shape common_shape(const Infer& in) { return broadcast_shapes(in.op(), in.shape(0), in.shape(1)); }

// --- Samples of rules above ---

std::string text(std::string_view op, std::string_view what) {
  return fmt::format("{}: {}", op, what);
}

template <class Attrs>
void reject_unequal(Samples& s, std::string_view op, const Attrs& a, DType first, DType second) {
  s.reject({{{3}, first}, {{3}, second}}, a,
           fmt::format("{}: operand dtypes differ, got {} and {}, expected equal ones", op,
                       token(first), token(second)));
}
template <class Attrs>
void reject_misfits(Samples& s, std::string_view op, const Attrs& a, DType t) {
  s.reject({{{2, 3}, t}, {{2}, t}}, a,
           text(op, "shapes do not broadcast, got [2, 3] and [2], expected equal extents or 1"));
}

template <class Attrs>
void reject_integers(Samples& s, std::string_view op, const Attrs& a) {
  s.reject({{{3}, DType::I32}}, a,
           text(op, "operand 0 has the wrong dtype, got i32, expected a float"));
  s.reject({{{3}, DType::Bool}}, a,
           text(op, "operand 0 has the wrong dtype, got bool, expected a float"));
}

// --- Two operands ---

struct Div;

template <class Fn>
struct Arithmetic {
  static constexpr OpInfo kInfo = pointwise(Fn::kName, Fn::kCost);
  using Attrs = NoAttrs;
  static void infer(Infer& in, const Attrs&) {
    need_number(in, 0);
    same_dtypes(in, 0, 1);
    in.out(in.dtype(0), common_shape(in));
  }
  static Value emit(Emit& e, const Attrs&) { return Fn::apply(e.input(0), e.input(1)); }
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs&)
    requires requires { &Fn::gradient; }
  {
    return Fn::gradient(g);
  }
  static void samples(Samples& s) {
    if constexpr (std::same_as<Fn, Div>) {
      binary_samples(s, kFloats, Attrs{});
      // Without zeros among the divisors: what those give is unspecified.
      for (DType t : kIntegers) s.call({{{41}, t, -90, 90, true}, {{41}, t, 1, 20}}, Attrs{});
      s.call({{{23}, DType::I32, -90, 90}, {{23}, DType::I32, -20, -1}}, Attrs{});
    } else {
      binary_samples(s, kNumbers, Attrs{}, -20, 20);
    }
    s.reject({{{3}, DType::Bool}, {{3}, DType::Bool}}, Attrs{},
             text(kInfo.name, "operand 0 has the wrong dtype, got bool, expected a number"));
    reject_unequal(s, kInfo.name, Attrs{}, DType::F32, DType::F16);
    reject_misfits(s, kInfo.name, Attrs{}, DType::F32);
  }
};

template <class Fn>
struct Comparison {
  static constexpr OpInfo kInfo = pointwise(Fn::kName);
  using Attrs = NoAttrs;
  static void infer(Infer& in, const Attrs&) {
    same_dtypes(in, 0, 1);
    in.out(DType::Bool, common_shape(in));
  }
  static Value emit(Emit& e, const Attrs&) { return Fn::apply(e.input(0), e.input(1)); }
  static void samples(Samples& s) {
    binary_samples(s, kAll, Attrs{});
    s.call({{{50}, DType::I32, -3, 3}, {{50}, DType::I32, -3, 3}}, Attrs{});
    reject_unequal(s, kInfo.name, Attrs{}, DType::F32, DType::I32);
    reject_misfits(s, kInfo.name, Attrs{}, DType::Bool);
  }
};

template <class Fn>
struct Logical {
  static constexpr OpInfo kInfo = pointwise(Fn::kName);
  using Attrs = NoAttrs;
  static void infer(Infer& in, const Attrs&) {
    need_bool(in, 0);
    need_bool(in, 1);
    in.out(DType::Bool, common_shape(in));
  }
  static Value emit(Emit& e, const Attrs&) { return Fn::apply(e.input(0), e.input(1)); }
  static void samples(Samples& s) {
    constexpr DType only[] = {DType::Bool};
    binary_samples(s, only, Attrs{});
    s.reject({{{3}, DType::Bool}, {{3}, DType::U8}}, Attrs{},
             text(kInfo.name, "operand 1 has the wrong dtype, got u8, expected bool"));
    reject_misfits(s, kInfo.name, Attrs{}, DType::Bool);
  }
};

struct Add {
  static constexpr std::string_view kName = "add";
  static constexpr f32 kCost = 1;
  static Value apply(const Value& a, const Value& b) { return a + b; }
  static std::vector<TensorRef> gradient(const Gradient& g) { return {g.grads[0], g.grads[0]}; }
};
struct Sub {
  static constexpr std::string_view kName = "sub";
  static constexpr f32 kCost = 1;
  static Value apply(const Value& a, const Value& b) { return a - b; }
  static std::vector<TensorRef> gradient(const Gradient& g) {
    return gradients({grad(g), g.wanted[1] ? neg(grad(g)) : Matrix()});
  }
};
struct Mul {
  static constexpr std::string_view kName = "mul";
  static constexpr f32 kCost = 1;
  static Value apply(const Value& a, const Value& b) { return a * b; }
  static std::vector<TensorRef> gradient(const Gradient& g) {
    return gradients({g.wanted[0] ? grad(g) * input(g, 1) : Matrix(),
                      g.wanted[1] ? grad(g) * input(g, 0) : Matrix()});
  }
};
struct Div {
  static constexpr std::string_view kName = "div";
  static constexpr f32 kCost = 4;
  static Value apply(const Value& a, const Value& b) { return a / b; }
};
struct Maximum {
  static constexpr std::string_view kName = "maximum";
  static constexpr f32 kCost = 2;
  static Value apply(const Value& a, const Value& b) { return kernel::max(a, b); }
};
struct Minimum {
  static constexpr std::string_view kName = "minimum";
  static constexpr f32 kCost = 2;
  static Value apply(const Value& a, const Value& b) { return kernel::min(a, b); }
};
struct Equal {
  static constexpr std::string_view kName = "equal";
  static Value apply(const Value& a, const Value& b) {
    return a.scalar() == kernel::Scalar::Bool ? !(a ^ b) : a == b;
  }
};
struct NotEqual {
  static constexpr std::string_view kName = "not_equal";
  static Value apply(const Value& a, const Value& b) {
    return a.scalar() == kernel::Scalar::Bool ? (a ^ b) : a != b;
  }
};
// Order of Bool is false < true.
Value as_number(const Value& v) {
  return v.scalar() == kernel::Scalar::Bool ? kernel::cast(v, kernel::Scalar::U32) : v;
}
struct Less {
  static constexpr std::string_view kName = "less";
  static Value apply(const Value& a, const Value& b) { return as_number(a) < as_number(b); }
};
struct LessEqual {
  static constexpr std::string_view kName = "less_equal";
  static Value apply(const Value& a, const Value& b) { return as_number(a) <= as_number(b); }
};
struct And {
  static constexpr std::string_view kName = "logical_and";
  static Value apply(const Value& a, const Value& b) { return a & b; }
};
struct Or {
  static constexpr std::string_view kName = "logical_or";
  static Value apply(const Value& a, const Value& b) { return a | b; }
};
struct Xor {
  static constexpr std::string_view kName = "logical_xor";
  static Value apply(const Value& a, const Value& b) { return a ^ b; }
};

// --- A number ---

Value scalar_like(Emit& e, const Value& x) { return e.scalar(0, x.scalar()); }

template <class Fn>
struct WithScalar {
  static constexpr OpInfo kInfo = pointwise(Fn::kName);
  struct Attrs {
    Scalar value;
  };
  static void infer(Infer& in, const Attrs&) {
    need_float(in, 0);
    in.out(in.dtype(0), in.shape(0));
  }
  static Value emit(Emit& e, const Attrs&) {
    const Value x = e.input(0);
    return Fn::apply(x, scalar_like(e, x));
  }
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs& a)
    requires requires { &Fn::gradient; }
  {
    return gradients({Fn::gradient(g, a.value)});
  }
  static void samples(Samples& s) {
    unary_samples(s, kFloats, Attrs{0.7});
    for (f64 value :
         {0.0, -3.0, std::numeric_limits<f64>::infinity(), std::numeric_limits<f64>::quiet_NaN()}) {
      s.call({{{37}, DType::F32, -2, 2, true}}, Attrs{value});
    }
    reject_integers(s, kInfo.name, Attrs{1});
  }
};

struct Scale {
  static constexpr std::string_view kName = "scale";
  static Value apply(const Value& x, const Value& s) { return x * s; }
  static Matrix gradient(const Gradient& g, const Scalar& s);
};
struct AddScalar {
  static constexpr std::string_view kName = "add_scalar";
  static Value apply(const Value& x, const Value& s) { return x + s; }
  static Matrix gradient(const Gradient& g, const Scalar&) { return grad(g); }
};
struct SubScalar {
  static constexpr std::string_view kName = "sub_scalar";
  static Value apply(const Value& x, const Value& s) { return x - s; }
  static Matrix gradient(const Gradient& g, const Scalar&) { return grad(g); }
};
struct DivScalar {
  static constexpr std::string_view kName = "div_scalar";
  static Value apply(const Value& x, const Value& s) { return x / s; }
};
struct ClampMin {
  static constexpr std::string_view kName = "clamp_min";
  static Value apply(const Value& x, const Value& s) { return kernel::max(x, s); }
  // Passes where nothing was clamped, the bound itself included.
  static Matrix gradient(const Gradient& g, const Scalar& s);
};
struct ClampMax {
  static constexpr std::string_view kName = "clamp_max";
  static Value apply(const Value& x, const Value& s) { return kernel::min(x, s); }
  static Matrix gradient(const Gradient& g, const Scalar& s);
};

// The mask keeps the original's dtype: F32.
struct EqualScalar {
  static constexpr bool kDetached = true;
  static constexpr OpInfo kInfo = pointwise("equal");
  struct Attrs {
    Scalar value;
  };
  static void infer(Infer& in, const Attrs&) {
    need_float(in, 0);
    in.out(DType::F32, in.shape(0));
  }
  static Value emit(Emit& e, const Attrs&) {
    const Value x = e.input(0);
    return kernel::cast(x == scalar_like(e, x), kernel::Scalar::F32);
  }
  static void samples(Samples& s) {
    unary_samples(s, kFloats, Attrs{0});
    s.call({{{9}, DType::F32, -2, 2, true}}, Attrs{std::numeric_limits<f64>::quiet_NaN()});
    reject_integers(s, kInfo.name, Attrs{1});
  }
};

// --- One operand ---

template <class Fn>
struct OfFloat {
  static constexpr OpInfo kInfo = pointwise(Fn::kName, Fn::kCost);
  using Attrs = NoAttrs;
  static void infer(Infer& in, const Attrs&) {
    need_float(in, 0);
    in.out(in.dtype(0), in.shape(0));
  }
  static Value emit(Emit& e, const Attrs&) { return Fn::apply(e.input(0)); }
  static void samples(Samples& s) {
    unary_samples(s, kFloats, Attrs{}, -9, 9);
    reject_integers(s, kInfo.name, Attrs{});
  }
};

template <class Fn>
struct OfSigned {
  static constexpr OpInfo kInfo = pointwise(Fn::kName);
  using Attrs = NoAttrs;
  static void infer(Infer& in, const Attrs&) {
    if (!is_float(in.dtype(0)) && in.dtype(0) != DType::I32) {
      in.reject("operand 0 has the wrong dtype, got {}, expected a float or i32",
                token(in.dtype(0)));
    }
    in.out(in.dtype(0), in.shape(0));
  }
  static Value emit(Emit& e, const Attrs&) { return Fn::apply(e.input(0)); }
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs&)
    requires requires { &Fn::gradient; }
  {
    return Fn::gradient(g);
  }
  static void samples(Samples& s) {
    unary_samples(s, kSigned, Attrs{});
    s.reject({{{3}, DType::U8}}, Attrs{},
             text(kInfo.name, "operand 0 has the wrong dtype, got u8, expected a float or i32"));
  }
};

struct Neg {
  static constexpr std::string_view kName = "neg";
  static Value apply(const Value& x) { return -x; }
  static std::vector<TensorRef> gradient(const Gradient& g) { return gradients({neg(grad(g))}); }
};
struct Abs {
  static constexpr std::string_view kName = "abs";
  static Value apply(const Value& x) { return kernel::abs(x); }
};
struct Sign {
  static constexpr std::string_view kName = "sign";
  static Value apply(const Value& x) {
    const Value zero = kernel::literal(x.scalar(), 0), one = kernel::literal(x.scalar(), 1);
    const Value s = kernel::select(x > zero, one, kernel::select(x < zero, -one, zero));
    return kernel::is_float(x.scalar()) ? kernel::select(kernel::is_nan(x), x, s) : s;
  }
};
struct Sqrt {
  static constexpr std::string_view kName = "sqrt";
  static constexpr f32 kCost = 6;
  static Value apply(const Value& x) { return kernel::sqrt(x); }
};
struct Reciprocal {
  static constexpr std::string_view kName = "reciprocal";
  static constexpr f32 kCost = 4;
  static Value apply(const Value& x) { return 1.0 / x; }
};
struct Square {
  static constexpr std::string_view kName = "square";
  static constexpr f32 kCost = 1;
  static Value apply(const Value& x) { return x * x; }
};
struct Floor {
  static constexpr std::string_view kName = "floor";
  static constexpr f32 kCost = 1;
  static Value apply(const Value& x) { return kernel::floor(x); }
};
struct Ceil {
  static constexpr std::string_view kName = "ceil";
  static constexpr f32 kCost = 1;
  static Value apply(const Value& x) { return kernel::ceil(x); }
};
struct Round {
  static constexpr std::string_view kName = "round";
  static constexpr f32 kCost = 1;
  static Value apply(const Value& x) { return kernel::round_even(x); }
};

struct IsNan {
  static constexpr OpInfo kInfo = pointwise("is_nan");
  using Attrs = NoAttrs;
  static void infer(Infer& in, const Attrs&) {
    need_float(in, 0);
    in.out(DType::Bool, in.shape(0));
  }
  static Value emit(Emit& e, const Attrs&) { return kernel::is_nan(e.input(0)); }
  static void samples(Samples& s) {
    unary_samples(s, kFloats, Attrs{});
    reject_integers(s, kInfo.name, Attrs{});
  }
};

struct LogicalNot {
  static constexpr OpInfo kInfo = pointwise("logical_not");
  using Attrs = NoAttrs;
  static void infer(Infer& in, const Attrs&) {
    need_bool(in, 0);
    in.out(DType::Bool, in.shape(0));
  }
  static Value emit(Emit& e, const Attrs&) { return !e.input(0); }
  static void samples(Samples& s) {
    constexpr DType only[] = {DType::Bool};
    unary_samples(s, only, Attrs{});
    s.reject({{{3}}}, Attrs{},
             text(kInfo.name, "operand 0 has the wrong dtype, got f32, expected bool"));
  }
};

struct Where {
  static constexpr OpInfo kInfo = pointwise("where");
  using Attrs = NoAttrs;
  static void infer(Infer& in, const Attrs&) {
    need_bool(in, 0);
    same_dtypes(in, 1, 2);
    const Shape ab = broadcast_shapes(in.op(), in.shape(1), in.shape(2));
    in.out(in.dtype(1), broadcast_shapes(in.op(), in.shape(0), ab));
  }
  static Value emit(Emit& e, const Attrs&) {
    return kernel::select(e.input(0), e.input(1), e.input(2));
  }
  // Chosen, not multiplied: what is not chosen gets exactly 0.
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs&) {
    const Matrix zero = full_like(grad(g), 0);
    return gradients({Matrix(), g.wanted[1] ? where(input(g, 0), grad(g), zero) : Matrix(),
                      g.wanted[2] ? where(input(g, 0), zero, grad(g)) : Matrix()});
  }
  static void samples(Samples& s) {
    for (DType t : kAll) {
      s.call({{{41}, DType::Bool}, {{41}, t, -2, 2, true}, {{41}, t, -2, 2, true}}, Attrs{});
    }
    s.call({{{}, DType::Bool}, {{3}}, {{2, 1}}}, Attrs{});
    s.call({{{4, 1, 3}, DType::Bool}, {{}}, {{5, 1}}}, Attrs{});
    s.call({{{0, 3}, DType::Bool}, {{1}}, {{1, 3}}}, Attrs{});
    s.reject({{{3}}, {{3}}, {{3}}}, Attrs{},
             "where: operand 0 has the wrong dtype, got f32, expected bool");
    s.reject({{{3}, DType::Bool}, {{3}, DType::U32}, {{3}, DType::I32}}, Attrs{},
             "where: operand dtypes differ, got u32 and i32, expected equal ones");
    s.reject({{{2}, DType::Bool}, {{3}}, {{1}}}, Attrs{},
             "where: shapes do not broadcast, got [2] and [3], expected equal extents or 1");
  }
};

struct Cast {
  static constexpr OpInfo kInfo = pointwise("cast");
  struct Attrs {
    DType dtype;
  };
  static void infer(Infer& in, const Attrs& a) { in.out(a.dtype, in.shape(0)); }
  static Value emit(Emit& e, const Attrs& a) {
    const Value x = e.input(0);
    if (a.dtype != DType::U8 || !kernel::is_float(x.scalar())) {
      return kernel::cast(x, graph::value_scalar(a.dtype));
    }
    // Saturation is at the range of the 8-bit type.
    return kernel::min(kernel::cast(x, kernel::Scalar::U32),
                       kernel::constant_int(kernel::Scalar::U32, 255));
  }
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs&) {
    return gradients({cast(grad(g), g.inputs[0]->dtype())});
  }
  static void samples(Samples& s) {
    for (DType from : kAll) {
      for (DType to : kAll) {
        if (from != to) s.call({{{41}, from, -300, 300, true}}, Attrs{to});
      }
    }
    for (const Shape& shape : {Shape{}, Shape{0}, Shape{3, 5}})
      s.call({{shape}}, Attrs{DType::I32});
  }
};

Matrix Scale::gradient(const Gradient& g, const Scalar& s) {
  return record<WithScalar<Scale>>({grad(g)}, {s});
}
Matrix ClampMin::gradient(const Gradient& g, const Scalar& s) {
  const Matrix x = input(g, 0);
  return where(less_equal(full_like(x, s), x), grad(g), full_like(x, 0));
}
Matrix ClampMax::gradient(const Gradient& g, const Scalar& s) {
  const Matrix x = input(g, 0);
  return where(less_equal(x, full_like(x, s)), grad(g), full_like(x, 0));
}

}  // namespace

OpList elementwise_ops() {
  return graph::op_list<
      Arithmetic<Add>, Arithmetic<Sub>, Arithmetic<Mul>, Arithmetic<Div>, Arithmetic<Maximum>,
      Arithmetic<Minimum>, Comparison<Equal>, Comparison<NotEqual>, Comparison<Less>,
      Comparison<LessEqual>, Logical<And>, Logical<Or>, Logical<Xor>, LogicalNot, WithScalar<Scale>,
      WithScalar<AddScalar>, WithScalar<SubScalar>, WithScalar<DivScalar>, WithScalar<ClampMin>,
      WithScalar<ClampMax>, EqualScalar, OfSigned<Neg>, OfSigned<Abs>, OfSigned<Sign>,
      OfFloat<Sqrt>, OfFloat<Reciprocal>, OfFloat<Square>, OfFloat<Floor>, OfFloat<Ceil>,
      OfFloat<Round>, IsNan, Where, Cast>();
}

Matrix add(const Matrix& a, const Matrix& b) { return record<Arithmetic<Add>>({a, b}); }
Matrix sub(const Matrix& a, const Matrix& b) { return record<Arithmetic<Sub>>({a, b}); }
Matrix mul(const Matrix& a, const Matrix& b) { return record<Arithmetic<Mul>>({a, b}); }
Matrix div(const Matrix& a, const Matrix& b) { return record<Arithmetic<Div>>({a, b}); }
Matrix maximum(const Matrix& a, const Matrix& b) { return record<Arithmetic<Maximum>>({a, b}); }
Matrix minimum(const Matrix& a, const Matrix& b) { return record<Arithmetic<Minimum>>({a, b}); }

Matrix scale(const Matrix& x, f64 s) { return record<WithScalar<Scale>>({x}, {s}); }
Matrix add_scalar(const Matrix& x, f64 s) { return record<WithScalar<AddScalar>>({x}, {s}); }
Matrix sub_scalar(const Matrix& x, f64 s) { return record<WithScalar<SubScalar>>({x}, {s}); }
Matrix div_scalar(const Matrix& x, f64 s) { return record<WithScalar<DivScalar>>({x}, {s}); }
Matrix clamp_min(const Matrix& x, f64 m) { return record<WithScalar<ClampMin>>({x}, {m}); }
Matrix clamp_max(const Matrix& x, f64 m) { return record<WithScalar<ClampMax>>({x}, {m}); }

Matrix neg(const Matrix& x) { return record<OfSigned<Neg>>({x}); }
Matrix abs(const Matrix& x) { return record<OfSigned<Abs>>({x}); }
Matrix sign(const Matrix& x) { return record<OfSigned<Sign>>({x}); }
Matrix sqrt(const Matrix& x) { return record<OfFloat<Sqrt>>({x}); }
Matrix reciprocal(const Matrix& x) { return record<OfFloat<Reciprocal>>({x}); }
Matrix square(const Matrix& x) { return record<OfFloat<Square>>({x}); }
Matrix floor(const Matrix& x) { return record<OfFloat<Floor>>({x}); }
Matrix ceil(const Matrix& x) { return record<OfFloat<Ceil>>({x}); }
Matrix round(const Matrix& x) { return record<OfFloat<Round>>({x}); }
Matrix copy(const Matrix& x) { return record<graph::Copy>({x}); }

Matrix equal(const Matrix& a, const Matrix& b) { return record<Comparison<Equal>>({a, b}); }
Matrix not_equal(const Matrix& a, const Matrix& b) { return record<Comparison<NotEqual>>({a, b}); }
Matrix less(const Matrix& a, const Matrix& b) { return record<Comparison<Less>>({a, b}); }
Matrix less_equal(const Matrix& a, const Matrix& b) {
  return record<Comparison<LessEqual>>({a, b});
}
Matrix greater(const Matrix& a, const Matrix& b) { return less(b, a); }
Matrix greater_equal(const Matrix& a, const Matrix& b) { return less_equal(b, a); }
Matrix equal(const Matrix& x, f64 value) { return record<EqualScalar>({x}, {value}); }
Matrix is_nan(const Matrix& x) { return record<IsNan>({x}); }

Matrix logical_and(const Matrix& a, const Matrix& b) { return record<Logical<And>>({a, b}); }
Matrix logical_or(const Matrix& a, const Matrix& b) { return record<Logical<Or>>({a, b}); }
Matrix logical_xor(const Matrix& a, const Matrix& b) { return record<Logical<Xor>>({a, b}); }
Matrix logical_not(const Matrix& a) { return record<LogicalNot>({a}); }

Matrix where(const Matrix& cond, const Matrix& a, const Matrix& b) {
  return record<Where>({cond, a, b});
}

Matrix cast(const Matrix& x, DType dtype) {
  return x.dtype() == dtype ? x : record<Cast>({x}, {dtype});
}

}  // namespace oa::matrix
