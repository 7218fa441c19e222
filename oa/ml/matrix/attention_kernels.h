// The kernels of attention without stored probabilities, as ops.
//
// Operands are [B, H, S, D], or [B, S, H, D] with heads_inner. The forward op gives the result and
// lse [B, H, Sq], the logarithm of each row's sum of exponentials, from which the backward op makes
// the probabilities again (Dao et al., 2022).
#pragma once

#include "oa/matrix/record.h"

namespace oa::ml::matrix {

struct Attention {
  static constexpr graph::OpInfo kInfo{.name = "attention", .kind = graph::OpKind::Kernel};
  static constexpr u32 kDetachedInputs = 1u << 3;  // the mask
  struct Attrs {
    bool heads_inner;
    bool causal;
    graph::Scalar scale;
    // Of products of F32 on matrix units: F16 and BF16 round their operands, others do not.
    Precision precision = Precision::F32;
  };
  // q, k, v, and an additive mask that broadcasts to [B, H, Sq, Sk], if any.
  static void infer(graph::Infer& in, const Attrs& a);
  static void lower(graph::Lower& l, const Attrs& a);
  static std::vector<graph::TensorRef> gradient(const graph::Gradient& g, const Attrs& a);
  static void samples(graph::Samples& s);
};

struct AttentionBackward {
  static constexpr graph::OpInfo kInfo{.name = "attention_backward", .kind = graph::OpKind::Kernel};
  using Attrs = Attention::Attrs;
  // q, k, v, gradient of the result, lse, delta [B, H, Sq] (the row sums of gradient times
  // result), and the mask, if any. Gives the gradients of q, k and v.
  static void infer(graph::Infer& in, const Attrs& a);
  static void lower(graph::Lower& l, const Attrs& a);
  static void samples(graph::Samples& s);
};

}  // namespace oa::ml::matrix
