// The op behind clip_grad_norm: the norm of many values together.
#pragma once

#include "oa/graph/lower.h"
#include "oa/matrix/record.h"

namespace oa::ml {

// Any number of F32 values: their joint Euclidean norm (F32 []), and two factors (F32 [2]) whose
// product is `most` / norm where the norm is finite and greater than `most`, else both are 1. Sums
// run over elements scaled by a power of two, so that no square overflows or vanishes.
struct GradientNorm {
  static constexpr graph::OpInfo kInfo{.name = "gradient_norm", .kind = graph::OpKind::Kernel};
  static constexpr bool kDetached = true;
  struct Attrs {
    graph::Scalar most;
  };
  static void infer(graph::Infer& in, const Attrs&);
  static void lower(graph::Lower& l, const Attrs&);
  static void samples(graph::Samples& s);
};

}  // namespace oa::ml
