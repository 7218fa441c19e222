#include "oa/matrix/matmul.h"

#include "oa/matrix/record.h"

namespace oa::matrix {
namespace {

template <bool kTransposeA, bool kTransposeB>
struct Product {
  static constexpr OpInfo kInfo{.name = kTransposeA   ? "mat_mul_tn"
                                        : kTransposeB ? "mat_mul_nt"
                                                      : "mat_mul",
                                .kind = OpKind::Contraction};
  using Attrs = NoAttrs;
  static void infer(Infer& in, const Attrs&) {
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
    in.out(in.dtype(0), out);
  }
  static graph::ContractSpec contract(const Infer&, const Attrs&) {
    return {.transpose_a = kTransposeA, .transpose_b = kTransposeB};
  }
};

}  // namespace

Matrix mat_mul(const Matrix& a, const Matrix& b) { return record<Product<false, false>>({a, b}); }
Matrix mat_mul_nt(const Matrix& a, const Matrix& b) { return record<Product<false, true>>({a, b}); }
Matrix mat_mul_tn(const Matrix& a, const Matrix& b) { return record<Product<true, false>>({a, b}); }

}  // namespace oa::matrix
