#include "oa/ml/optim/update_ops.h"

#include <bit>

#include "oa/kernel/math.h"
#include "oa/ml/optim/gradient_norm.h"

namespace oa::ml {
namespace {

using graph::Emit;
using graph::Infer;
using graph::Samples;
using kernel::F32;
using kernel::U32;
using kernel::Value;

// Operands 0 .. full-1 are F32 of one shape, the next F32 of the shapes given; `rest` are others.
void need_operands(Infer& in, u32 full, std::initializer_list<Shape> others, u32 rest = 0) {
  const auto count = full + static_cast<u32>(others.size());
  OA_CHECK(in.count() == count + rest);
  for (u32 i = 0; i < count; ++i) {
    const Shape& expected = i < full ? in.shape(0) : others.begin()[i - full];
    if (in.dtype(i) != DType::F32 || in.shape(i) != expected) {
      in.reject("operand {} does not fit, got {} {}, expected f32 {}", i, token(in.dtype(i)),
                in.shape(i), expected);
    }
  }
  in.out(DType::F32, in.shape(0));
}

F32 x(Emit& e, u32 i) { return F32(e.input(i)); }
F32 scalar(Emit& e, u32 k) { return F32(e.scalar(k)); }

// Element `at` of an operand with one axis.
F32 fixed(Emit& e, u32 i, i64 at = 0) { return F32(e.input_at(i, {{e.constant(at)}})); }

// This step's learning rate.
F32 rate_of(Emit& e, u32 rates, u32 step) {
  const auto n = static_cast<u32>(e.shape(rates)[0]);
  const U32 turn(e.input_at(step, {{e.constant(1)}}));
  const Value at = turn & (n - 1);
  return F32(e.input_indexed(rates, {&at, 1}, {}));
}

kernel::Bool counts(Emit& e, u32 guard) {
  const F32 g = fixed(e, guard);
  return g - g == 0.0f;
}

// The new value in a step that counts, else operand 0.
F32 guarded(Emit& e, u32 guard, const F32& updated) {
  return kernel::select(counts(e, guard), updated, x(e, 0));
}

// What of operand 0 the decay leaves.
F32 decayed(Emit& e, const F32& rate, const F32& decay) {
  return kernel::fma(-(rate * decay), x(e, 0), x(e, 0));
}

const Shape kOne{1};

void need_step(Infer& in, u32 i) {
  if (in.dtype(i) != DType::U32 || in.shape(i) != Shape{2}) {
    in.reject("bad count of steps, got {} {}, expected u32 [2]", token(in.dtype(i)), in.shape(i));
  }
}

// Operands `rates` and the one after it.
void need_rates(Infer& in, u32 rates) {
  const Shape& s = in.shape(rates);
  if (in.dtype(rates) != DType::F32 || s.rank() != 1 || s[0] < 1 ||
      !std::has_single_bit(static_cast<u64>(s[0]))) {
    in.reject("bad rates, got {} {}, expected f32 [n], n a power of two", token(in.dtype(rates)),
              s);
  }
  need_step(in, rates + 1);
}

}  // namespace

void AdvanceStep::infer(Infer& in, const Attrs&) {
  need_step(in, 0);
  if (in.dtype(1) != DType::F32 || in.shape(1) != kOne) {
    in.reject("bad guard, got {} {}, expected f32 [1]", token(in.dtype(1)), in.shape(1));
  }
  in.out(DType::U32, {2});
}
Value AdvanceStep::emit(Emit& e, const Attrs&) {
  const U32 step(e.input(0));
  const Value at = e.coord(0);
  const kernel::Bool turn(at == kernel::constant_int(at.scalar(), 1));
  const kernel::Bool moves = turn | (counts(e, 1) & (step != 0xffffffffu));
  return kernel::select(moves, step + 1u, step);
}
void AdvanceStep::samples(Samples& s) {
  s.call({{{2}, DType::U32, 0, 9}, {{1}}}, Attrs{});
  s.reject({{{1}, DType::U32}, {{1}}}, Attrs{},
           "optimizer_step: bad count of steps, got u32 [1], expected u32 [2]");
}

void AdamCoefficients::infer(Infer& in, const Attrs&) {
  need_rates(in, 0);
  in.out(DType::F32, {3});
}
Value AdamCoefficients::emit(Emit& e, const Attrs&) {
  const U32 done(e.input_at(1, {{e.constant(0)}}));
  const F32 t = kernel::cast<F32>(done) + 1.0f;
  const F32 rate = rate_of(e, 0, 1);
  // 1 - beta^t without cancellation.
  const F32 first = -kernel::expm1(t * scalar(e, 0)), second = -kernel::expm1(t * scalar(e, 1));
  const Value at = e.coord(0);
  const auto is = [&](i64 i) { return kernel::Bool(at == kernel::constant_int(at.scalar(), i)); };
  return kernel::select(is(0), rate / first,
                        kernel::select(is(1), 1.0f / kernel::sqrt(second), rate));
}
void AdamCoefficients::samples(Samples& s) {
  s.call({{{4}}, {{2}, DType::U32, 0, 9}}, Attrs{-0.1, -0.001});
  s.reject({{{4}}, {{1}}}, Attrs{-0.1, -0.001},
           "adam_coefficients: bad count of steps, got f32 [1], expected u32 [2]");
  s.reject({{{3}}, {{2}, DType::U32}}, Attrs{-0.1, -0.001},
           "adam_coefficients: bad rates, got f32 [3], expected f32 [n], n a power of two");
}

void MomentUpdate::infer(Infer& in, const Attrs&) { need_operands(in, 2, {kOne}); }
Value MomentUpdate::emit(Emit& e, const Attrs&) {
  return guarded(e, 2, kernel::fma(scalar(e, 0), x(e, 0), scalar(e, 1) * x(e, 1)));
}
void MomentUpdate::samples(Samples& s) {
  s.call({{{5, 7}}, {{5, 7}}, {{1}}}, Attrs{0.9, 0.1});
  s.reject({{{5, 7}}, {{7, 5}}, {{1}}}, Attrs{0.9, 0.1},
           "moment: operand 1 does not fit, got f32 [7, 5], expected f32 [5, 7]");
}

void SquareMomentUpdate::infer(Infer& in, const Attrs&) { need_operands(in, 2, {kOne}); }
Value SquareMomentUpdate::emit(Emit& e, const Attrs&) {
  const F32 g = x(e, 1);
  return guarded(e, 2, kernel::fma(scalar(e, 0), x(e, 0), (scalar(e, 1) * g) * g));
}
void SquareMomentUpdate::samples(Samples& s) {
  s.call({{{41}}, {{41}}, {{1}}}, Attrs{0.9, 0.1});
  s.reject({{{5}, DType::F64}, {{5}}, {{1}}}, Attrs{0.9, 0.1},
           "square_moment: operand 0 does not fit, got f64 [5], expected f32 [5]");
}

void AdamUpdate::infer(Infer& in, const Attrs&) { need_operands(in, 3, {{3}, kOne}); }
Value AdamUpdate::emit(Emit& e, const Attrs&) {
  const F32 scale = scalar(e, 0);
  const F32 kept = decayed(e, fixed(e, 3, 2) * scale, scalar(e, 1));
  const F32 root = kernel::fma(kernel::sqrt(x(e, 2)), fixed(e, 3, 1), scalar(e, 2));
  return guarded(e, 4, kernel::fma(-(fixed(e, 3, 0) * scale), x(e, 1) / root, kept));
}
void AdamUpdate::samples(Samples& s) {
  s.call({{{5, 7}}, {{5, 7}}, {{5, 7}, DType::F32, 0, 1}, {{3}}, {{1}}}, Attrs{1, 0.01, 1e-8});
  s.reject({{{5}}, {{5}}, {{5}}, {{4}}, {{1}}}, Attrs{1, 0.01, 1e-8},
           "adam: operand 3 does not fit, got f32 [4], expected f32 [3]");
}

void SgdUpdate::infer(Infer& in, const Attrs&) {
  need_operands(in, 2, {kOne}, 2);
  need_rates(in, 3);
}
Value SgdUpdate::emit(Emit& e, const Attrs&) {
  const F32 g = kernel::fma(scalar(e, 1), x(e, 0), x(e, 1));
  return guarded(e, 2, kernel::fma(-(rate_of(e, 3, 4) * scalar(e, 0)), g, x(e, 0)));
}
void SgdUpdate::samples(Samples& s) {
  s.call({{{5, 7}}, {{5, 7}}, {{1}}, {{4}}, {{2}, DType::U32, 0, 9}}, Attrs{1, 0.01});
  s.reject({{{5}}, {{5}}, {{}}, {{1}}, {{2}, DType::U32}}, Attrs{1, 0.01},
           "sgd: operand 2 does not fit, got f32 [], expected f32 [1]");
}

void SgdMomentum::infer(Infer& in, const Attrs&) { need_operands(in, 3, {kOne}); }
Value SgdMomentum::emit(Emit& e, const Attrs&) {
  const F32 g = kernel::fma(scalar(e, 1), x(e, 2), x(e, 1));
  return guarded(e, 3, kernel::fma(scalar(e, 0), x(e, 0), g));
}
void SgdMomentum::samples(Samples& s) {
  s.call({{{5, 7}}, {{5, 7}}, {{5, 7}}, {{1}}}, Attrs{0.9, 0.01});
  s.reject({{{5}}, {{5}}, {{6}}, {{1}}}, Attrs{0.9, 0.01},
           "sgd_momentum: operand 2 does not fit, got f32 [6], expected f32 [5]");
}

void MuonVectorUpdate::infer(Infer& in, const Attrs&) {
  need_operands(in, 3, {kOne}, 2);
  need_rates(in, 4);
}
Value MuonVectorUpdate::emit(Emit& e, const Attrs&) {
  const F32 rate = rate_of(e, 4, 5) * scalar(e, 0);
  const F32 u = kernel::fma(scalar(e, 2), x(e, 1), scalar(e, 3) * x(e, 2));
  return guarded(e, 3, kernel::fma(-rate, u, decayed(e, rate, scalar(e, 1))));
}
void MuonVectorUpdate::samples(Samples& s) {
  s.call({{{41}}, {{41}}, {{41}}, {{1}}, {{4}}, {{2}, DType::U32, 0, 9}},
         Attrs{1, 0.1, 0.95, 0.05});
  s.reject({{{5}}, {{5}}, {{6}}, {{1}}, {{1}}, {{2}, DType::U32}}, Attrs{1, 0.1, 0.95, 0.05},
           "muon_vector: operand 2 does not fit, got f32 [6], expected f32 [5]");
}

void MuonMatrixUpdate::infer(Infer& in, const Attrs&) {
  if (in.dtype(1) != DType::F32 || in.shape(1).rank() != 1) {
    in.reject("operand 1 does not fit, got {} {}, expected f32 [n]", token(in.dtype(1)),
              in.shape(1));
  }
  need_operands(in, 1, {in.shape(1), kOne}, 2);
  need_rates(in, 3);
}
Value MuonMatrixUpdate::emit(Emit& e, const Attrs&) {
  const F32 rate = rate_of(e, 3, 4) * scalar(e, 0);
  const Value at = e.flat_index();
  const Value from = at + kernel::cast(e.scalar(3, kernel::Scalar::U32), at.scalar());
  const F32 u(e.input_indexed(1, {&from, 1}, {}));
  return guarded(e, 2, kernel::fma(-(rate * scalar(e, 2)), u, decayed(e, rate, scalar(e, 1))));
}
void MuonMatrixUpdate::samples(Samples& s) {
  s.call({{{5, 7}}, {{80}}, {{1}}, {{4}}, {{2}, DType::U32, 0, 9}}, Attrs{1, 0.1, 0.5, 41});
  s.reject({{{5, 7}}, {{8, 10}}, {{1}}, {{1}}, {{2}, DType::U32}}, Attrs{1, 0.1, 0.5, 41},
           "muon_matrix: operand 1 does not fit, got f32 [8, 10], expected f32 [n]");
}

void ScaleGradient::infer(Infer& in, const Attrs&) { need_operands(in, 1, {{2}}); }
Value ScaleGradient::emit(Emit& e, const Attrs&) {
  const F32 a = fixed(e, 1, 0), b = fixed(e, 1, 1);
  const F32 g = x(e, 0);
  return kernel::select((a == 1.0f) & (b == 1.0f), g, (g * a) * b);
}
void ScaleGradient::samples(Samples& s) {
  s.call({{{5, 7}}, {{2}}}, Attrs{});
  s.reject({{{5, 7}}, {{1}}}, Attrs{},
           "scale_gradient: operand 1 does not fit, got f32 [1], expected f32 [2]");
}

void AverageUpdate::infer(Infer& in, const Attrs&) { need_operands(in, 2, {}); }
Value AverageUpdate::emit(Emit& e, const Attrs&) {
  return kernel::fma(scalar(e, 0), x(e, 0), scalar(e, 1) * x(e, 1));
}
void AverageUpdate::samples(Samples& s) {
  s.call({{{5, 7}}, {{5, 7}}}, Attrs{0.999, 0.001});
  s.reject({{{5}}, {{6}}}, Attrs{0.999, 0.001},
           "moving_average: operand 1 does not fit, got f32 [6], expected f32 [5]");
}

matrix::OpList optim_ops() {
  return graph::op_list<AdvanceStep, AdamCoefficients, MomentUpdate, SquareMomentUpdate, AdamUpdate,
                        SgdUpdate, SgdMomentum, MuonVectorUpdate, MuonMatrixUpdate, ScaleGradient,
                        AverageUpdate, GradientNorm>();
}

}  // namespace oa::ml
