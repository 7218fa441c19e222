#include "oa/matrix/matmul.h"

#include "oa/matrix/all_ops.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/record.h"
#include "oa/matrix/reduce.h"
#include "oa/matrix/sample_sets.h"

namespace oa::matrix {
namespace {

template <bool kTransposeA, bool kTransposeB>
struct Product {
  static constexpr OpInfo kInfo{.name = kTransposeA   ? "mat_mul_tn"
                                        : kTransposeB ? "mat_mul_nt"
                                                      : "mat_mul",
                                .kind = OpKind::Contraction};
  struct Attrs {
    Precision precision = Precision::F32;
    bool wide = false;  // 16-bit operands give F32
  };
  static void infer(Infer& in, const Attrs& attrs) {
    const Shape &a = in.shape(0), &b = in.shape(1);
    if (in.dtype(0) != in.dtype(1)) {
      in.reject("operand dtypes differ, got {} and {}, expected equal ones", token(in.dtype(0)),
                token(in.dtype(1)));
    }
    if (in.dtype(0) == DType::Bool || in.dtype(0) == DType::U8) {
      in.reject("operands have the wrong dtype, got {}, expected floats, i32 or u32",
                token(in.dtype(0)));
    }
    if (a.rank() < 2 || b.rank() < 2) {
      in.reject("operands have too few axes, got {} and {}, expected rank 2 or more", a, b);
    }
    const i64 m = a[a.rank() - (kTransposeA ? 1 : 2)], ka = a[a.rank() - (kTransposeA ? 2 : 1)];
    const i64 n = b[b.rank() - (kTransposeB ? 2 : 1)], kb = b[b.rank() - (kTransposeB ? 1 : 2)];
    if (ka != kb) {
      in.reject("inner extents differ, got {} and {} in {} and {}, expected equal ones", ka, kb, a,
                b);
    }
    const Shape batch_a(Dims(std::span<const i64>(a.data(), a.rank() - 2)));
    const Shape batch_b(Dims(std::span<const i64>(b.data(), b.rank() - 2)));
    Shape out = broadcast_shapes(in.op(), batch_a, batch_b);
    out.push_back(m);
    out.push_back(n);
    check_shape(in.op(), out, size_bytes(in.dtype(0)));
    in.out(attrs.wide ? DType::F32 : in.dtype(0), out);
  }
  static graph::ContractSpec contract(const Infer&, const Attrs& a) {
    return {.transpose_a = kTransposeA, .transpose_b = kTransposeB, .precision = a.precision};
  }
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs& attrs) {
    const Matrix a = input(g, 0), b = input(g, 1), c = grad(g);
    const Precision p = attrs.precision;
    Matrix da, db;
    if (g.wanted[0]) {
      da = kTransposeA ? mat_mul_nt(b, c, p) : kTransposeB ? mat_mul(c, b, p) : mat_mul_nt(c, b, p);
      da = sum_to(da, a.shape());
    }
    if (g.wanted[1] && b.rank() == 2 && a.rank() > 2 && !kTransposeA) {
      // One matrix for the whole batch: the batch is part of the inner axis.
      const Matrix rows = a.reshape({-1, a.shape().back()});
      const Matrix grads = c.reshape({-1, c.shape().back()});
      db = kTransposeB ? mat_mul_tn(grads, rows, p) : mat_mul_tn(rows, grads, p);
    } else if (g.wanted[1]) {
      db = kTransposeA ? mat_mul(a, c, p) : kTransposeB ? mat_mul_tn(c, a, p) : mat_mul_tn(a, c, p);
      db = sum_to(db, b.shape());
    }
    return gradients({da, db});
  }
  static Shape swapped(Shape s, bool swap) {
    if (swap) std::swap(s[s.rank() - 1], s[s.rank() - 2]);
    return s;
  }
  static void samples(Samples& s) {
    for (DType t : {DType::F16, DType::BF16}) {
      s.call({{swapped({32, 48}, kTransposeA), t}, {swapped({48, 32}, kTransposeB), t}},
             Attrs{Precision::F32, true});
    }
    const auto product = [&](Shape a, Shape b, DType t = DType::F32) {
      s.call({{swapped(std::move(a), kTransposeA), t, -3, 3},
              {swapped(std::move(b), kTransposeB), t, -3, 3}},
             Attrs{});
    };
    for (DType t : {DType::F32, DType::F16, DType::BF16, DType::F64, DType::I32, DType::U32}) {
      product({7, 13}, {13, 19}, t);
    }
    product({1, 1}, {1, 1});
    product({1, 37}, {37, 1});
    product({33, 1}, {1, 40});
    product({17, 64}, {64, 33});
    product({64, 32}, {32, 64});
    product({3, 0}, {0, 4});
    product({0, 3}, {3, 4});
    product({3, 5, 7}, {3, 7, 9});
    product({2, 1, 5, 3}, {4, 3, 2});
    product({5, 3}, {2, 3, 4});
    product({2, 1, 1, 2, 1, 3, 5}, {2, 1, 5, 4});
    product({0, 5, 3}, {3, 4});
    const std::string op(kInfo.name);
    s.reject({{{2, 3}}, {{2, 3}, DType::F16}}, Attrs{},
             op + ": operand dtypes differ, got f32 and f16, expected equal ones");
    s.reject({{{2, 2}, DType::U8}, {{2, 2}, DType::U8}}, Attrs{},
             op + ": operands have the wrong dtype, got u8, expected floats, i32 or u32");
    s.reject({{{3}}, {{3, 3}}}, Attrs{},
             op + ": operands have too few axes, got [3] and [3, 3], expected rank 2 or more");
    s.reject({{{2, 4, 4}}, {{3, 4, 4}}}, Attrs{},
             op + ": shapes do not broadcast, got [2] and [3], expected equal extents or 1");
  }
};

// The product of F32 operands that are rounded first. The casts are ops of their own, so they fuse
// into what makes the operands, which is then stored in 16 bits only.
template <bool kTransposeA, bool kTransposeB>
struct RoundedProduct {
  using Plain = Product<kTransposeA, kTransposeB>;
  static constexpr OpInfo kInfo{.name = Plain::kInfo.name, .kind = OpKind::Composite};
  struct Attrs {
    Precision precision;
  };
  static void infer(Infer& in, const Attrs&) { Plain::infer(in, {}); }
  static std::vector<TensorRef> define(std::span<const TensorRef> in, const Attrs& a) {
    if (in[0]->spec().dtype != DType::F32) return record_all<Plain>(in, {Precision::F32, false});
    const DType narrow = a.precision == Precision::F16 ? DType::F16 : DType::BF16;
    const Matrix left = cast(Matrix(in[0]), narrow), right = cast(Matrix(in[1]), narrow);
    const TensorRef operands[2] = {left.tensor(), right.tensor()};
    return record_all<Plain>(operands, {Precision::F32, true});
  }
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs& a) {
    return Plain::gradient(g, {a.precision, false});
  }
  static void samples(Samples& s) {
    const auto product = [&](Shape a, Shape b, Precision p) {
      s.call({{Plain::swapped(std::move(a), kTransposeA)},
              {Plain::swapped(std::move(b), kTransposeB)}},
             Attrs{p});
    };
    for (Precision p : {Precision::F16, Precision::BF16}) {
      product({7, 13}, {13, 19}, p);
      product({32, 64}, {64, 48}, p);
      product({2, 5, 3}, {3, 4}, p);
    }
    const std::string op(kInfo.name);
    s.reject({{{2, 3}}, {{2, 3}, DType::F16}}, Attrs{Precision::F16},
             op + ": operand dtypes differ, got f32 and f16, expected equal ones");
  }
};

template <bool kTransposeA, bool kTransposeB>
Matrix product(const Matrix& a, const Matrix& b, Precision precision) {
  if (rounds(precision))
    return record<RoundedProduct<kTransposeA, kTransposeB>>({a, b}, {precision});
  return record<Product<kTransposeA, kTransposeB>>({a, b}, {precision, false});
}

}  // namespace

// Part of the structure of programs, so only where it means something.
Precision precision_of(const Matrix& a, Precision precision) {
  if (!a.tensor() || a.dtype() != DType::F32) return Precision::F32;
  const graph::Recorder& r = a.tensor()->recorder();
  return r.usable(precision == Precision::Engine ? r.precision() : precision);
}

OpList matmul_ops() {
  return graph::op_list<Product<false, false>, Product<false, true>, Product<true, false>,
                        RoundedProduct<false, false>, RoundedProduct<false, true>,
                        RoundedProduct<true, false>>();
}

Matrix mat_mul(const Matrix& a, const Matrix& b, Precision precision) {
  return product<false, false>(a, b, precision_of(a, precision));
}
Matrix mat_mul_nt(const Matrix& a, const Matrix& b, Precision precision) {
  return product<false, true>(a, b, precision_of(a, precision));
}
Matrix mat_mul_tn(const Matrix& a, const Matrix& b, Precision precision) {
  return product<true, false>(a, b, precision_of(a, precision));
}

}  // namespace oa::matrix
