// Ops of one float operand that are one scalar function, for the sources that define such ops.
#pragma once

#include "oa/matrix/elementwise.h"
#include "oa/matrix/record.h"
#include "oa/matrix/sample_sets.h"

namespace oa::matrix {

inline void need_float(const Infer& in, u32 i) {
  if (!is_float(in.dtype(i))) {
    in.reject("operand {} has the wrong dtype, got {}, expected a float", i, token(in.dtype(i)));
  }
}

template <class Attrs>
void reject_integers(Samples& s, std::string_view op, const Attrs& a) {
  s.reject({{{3}, DType::I32}}, a,
           fmt::format("{}: operand 0 has the wrong dtype, got i32, expected a float", op));
}

using FloatFunction = kernel::Value (*)(const kernel::Value&);
// A derivative that is cheaper from the result than from the operand.
using FromResult = Matrix (*)(const Matrix& y);

template <FloatFunction kFunction, const char* kName, u32 kCost, FromResult kFromResult = nullptr>
struct FloatOp {
  static constexpr OpInfo kInfo{.name = kName, .kind = OpKind::Elementwise, .cost = kCost};
  using Attrs = NoAttrs;
  static void infer(Infer& in, const Attrs&) {
    need_float(in, 0);
    in.out(in.dtype(0), in.shape(0));
  }
  static kernel::Value emit(Emit& e, const Attrs&) { return kFunction(e.input(0)); }
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs&)
    requires(kFromResult != nullptr)
  {
    return gradients({grad(g) * kFromResult(output(g))});
  }
  static void samples(Samples& s) {
    unary_samples(s, kFloats, Attrs{}, -5, 5);
    s.call({{{300}, DType::F32, 0, 40}}, Attrs{});
    s.call({{{300}, DType::F32, -40, 0}}, Attrs{});
    s.call({{{100}, DType::F32, -1e-3, 1e-3}}, Attrs{});
    reject_integers(s, kName, Attrs{});
  }
};

}  // namespace oa::matrix
