// The ops that optimizers are made of. All work on one element at a time and stay apart from what
// made the gradients (OpInfo::apart), so that equal updates of many parameters, whatever their
// shapes, run side by side as one dispatch that replaces parameters and moments in place.
//
// `guard` (F32 [1]) is finite in a step that counts; where it is not, every op returns its first
// operand. `rates` (F32 [n], n a power of two) has the learning rates of n steps, and `step`
// (U32 [2]: completed steps, turns) says by its turn modulo n which one is this step's. Numbers
// that stay are scalars of the program.
#pragma once

#include "oa/matrix/all_ops.h"
#include "oa/matrix/record.h"

namespace oa::ml {

using graph::Scalar;

// step and guard: one more completed step, up to the largest U32, unless the guard stops it; one
// more turn in any case.
struct AdvanceStep {
  static constexpr graph::OpInfo kInfo{.name = "optimizer_step"};
  static constexpr bool kDetached = true;
  using Attrs = graph::NoAttrs;
  static void infer(graph::Infer& in, const Attrs&);
  static kernel::Value emit(graph::Emit& e, const Attrs&);
  static void samples(graph::Samples& s);
};

// rates, step: {rate / (1 - beta1^t), 1 / sqrt(1 - beta2^t), rate} with t one step later.
struct AdamCoefficients {
  static constexpr graph::OpInfo kInfo{
      .name = "adam_coefficients", .indexed_inputs = 1, .cost = 60};
  static constexpr bool kDetached = true;
  struct Attrs {
    Scalar log_beta1, log_beta2;
  };
  static void infer(graph::Infer& in, const Attrs&);
  static kernel::Value emit(graph::Emit& e, const Attrs&);
  static void samples(graph::Samples& s);
};

// m, g, guard: keep m + add g.
struct MomentUpdate {
  static constexpr graph::OpInfo kInfo{.name = "moment", .cost = 2, .apart = true};
  static constexpr bool kDetached = true;
  struct Attrs {
    Scalar keep, add;
  };
  static void infer(graph::Infer& in, const Attrs&);
  static kernel::Value emit(graph::Emit& e, const Attrs&);
  static void samples(graph::Samples& s);
};

// v, g, guard: keep v + add g^2.
struct SquareMomentUpdate {
  static constexpr graph::OpInfo kInfo{.name = "square_moment", .cost = 3, .apart = true};
  static constexpr bool kDetached = true;
  struct Attrs {
    Scalar keep, add;
  };
  static void infer(graph::Infer& in, const Attrs&);
  static kernel::Value emit(graph::Emit& e, const Attrs&);
  static void samples(graph::Samples& s);
};

// p, m, v, coefficients, guard: with the coefficients' {a, b, rate}, each rate times `scale`,
// p (1 - rate decay) - a m / (b sqrt(v) + epsilon).
struct AdamUpdate {
  static constexpr graph::OpInfo kInfo{.name = "adam", .cost = 20, .apart = true};
  static constexpr bool kDetached = true;
  struct Attrs {
    Scalar scale, decay, epsilon;
  };
  static void infer(graph::Infer& in, const Attrs&);
  static kernel::Value emit(graph::Emit& e, const Attrs&);
  static void samples(graph::Samples& s);
};

// p, g, guard, rates, step: p - rate scale (g + decay p).
struct SgdUpdate {
  static constexpr graph::OpInfo kInfo{
      .name = "sgd", .indexed_inputs = 8, .cost = 3, .apart = true};
  static constexpr bool kDetached = true;
  struct Attrs {
    Scalar scale, decay;
  };
  static void infer(graph::Infer& in, const Attrs&);
  static kernel::Value emit(graph::Emit& e, const Attrs&);
  static void samples(graph::Samples& s);
};

// m, g, p, guard: momentum m + g + decay p.
struct SgdMomentum {
  static constexpr graph::OpInfo kInfo{.name = "sgd_momentum", .cost = 3, .apart = true};
  static constexpr bool kDetached = true;
  struct Attrs {
    Scalar momentum, decay;
  };
  static void infer(graph::Infer& in, const Attrs&);
  static kernel::Value emit(graph::Emit& e, const Attrs&);
  static void samples(graph::Samples& s);
};

// p, m, g, guard, rates, step: p (1 - rate scale decay) - rate scale (keep m + add g).
struct MuonVectorUpdate {
  static constexpr graph::OpInfo kInfo{
      .name = "muon_vector", .indexed_inputs = 16, .cost = 5, .apart = true};
  static constexpr bool kDetached = true;
  struct Attrs {
    Scalar scale, decay, keep, add;
  };
  static void infer(graph::Infer& in, const Attrs&);
  static kernel::Value emit(graph::Emit& e, const Attrs&);
  static void samples(graph::Samples& s);
};

// p, x (F32 [n]), guard, rates, step: p (1 - rate scale decay) - rate scale gain x[first ..], the
// elements of x in p's order.
struct MuonMatrixUpdate {
  static constexpr graph::OpInfo kInfo{
      .name = "muon_matrix", .indexed_inputs = 2 | 8, .cost = 4, .apart = true};
  static constexpr bool kDetached = true;
  struct Attrs {
    Scalar scale, decay, gain, first;
  };
  static void infer(graph::Infer& in, const Attrs&);
  static kernel::Value emit(graph::Emit& e, const Attrs&);
  static void samples(graph::Samples& s);
};

// g, factors (F32 [2]): g a b, and the very bits of g where both are 1.
struct ScaleGradient {
  static constexpr graph::OpInfo kInfo{.name = "scale_gradient", .cost = 2, .apart = true};
  static constexpr bool kDetached = true;
  using Attrs = graph::NoAttrs;
  static void infer(graph::Infer& in, const Attrs&);
  static kernel::Value emit(graph::Emit& e, const Attrs&);
  static void samples(graph::Samples& s);
};

// average, p: keep average + (1 - keep) p.
struct AverageUpdate {
  static constexpr graph::OpInfo kInfo{.name = "moving_average", .cost = 2, .apart = true};
  static constexpr bool kDetached = true;
  struct Attrs {
    Scalar keep, add;
  };
  static void infer(graph::Infer& in, const Attrs&);
  static kernel::Value emit(graph::Emit& e, const Attrs&);
  static void samples(graph::Samples& s);
};

// Every op of this folder.
matrix::OpList optim_ops();

}  // namespace oa::ml
