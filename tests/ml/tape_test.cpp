// The tape's contract: what is noted, what is refused, what adds up, and that a second run inside
// recompute() gives the bits of the first.
#include <gtest/gtest.h>

#include <cmath>

#include "oa/engine/engine_core.h"
#include "oa/matrix/index.h"
#include "oa/matrix/matmul.h"
#include "oa/matrix/movement.h"
#include "oa/matrix/random.h"
#include "oa/matrix/reduce.h"
#include "oa/matrix/transcendental.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/matrix/ml_ops.h"
#include "oa/ml/parameter.h"
#include "tests/matrix/devices.h"

namespace oa::test {
namespace {

using ml::detach;
using ml::GradientTape;
using ml::NoGrad;
using ml::Parameter;

class TapeTest : public OnDevice {
 protected:
  Parameter parameter(const Shape& shape, const std::vector<f32>& values) {
    return Parameter::create("p", from<f32>(shape, values));
  }
  static std::vector<f32> gradient(const Parameter& p) { return p.gradient()->read_f32(); }
};

TEST_P(TapeTest, GradientsOfALinearMap) {
  const Parameter w = parameter({2, 3}, {1, 2, 3, 4, 5, 6}), b = parameter({2}, {0.5, -0.5});
  const Matrix x = from<f32>({2, 3}, {1, 0, -1, 2, 1, 0});
  GradientTape tape;
  tape.backward(matrix::sum(matrix::mat_mul_nt(x, w.data()) + b.data()));
  EXPECT_EQ(gradient(w), (std::vector<f32>{3, 1, -1, 3, 1, -1}));
  EXPECT_EQ(gradient(b), (std::vector<f32>{2, 2}));
}

TEST_P(TapeTest, GradientsAddUpUntilTheyAreCleared) {
  const Parameter w = parameter({2}, {3, 4});
  for (int i = 0; i < 2; ++i) {
    GradientTape tape;
    tape.backward(matrix::sum(w.data() * w.data()));
  }
  EXPECT_EQ(gradient(w), (std::vector<f32>{12, 16}));
  w.clear_gradient();
  EXPECT_FALSE(w.gradient());
  GradientTape tape;
  tape.backward(matrix::sum(w.data() * 2));
  EXPECT_EQ(gradient(w), (std::vector<f32>{2, 2}));
}

TEST_P(TapeTest, ReadingBeforeTheWayBackChangesNothing) {
  const Parameter w = parameter({3}, {0.1f, 0.2f, 0.3f});
  std::vector<f32> results[2];
  for (int early = 0; early < 2; ++early) {
    GradientTape tape;
    const Matrix y = matrix::tanh(w.data() * w.data()), loss = matrix::sum(y * y);
    if (early) (void)loss.read_f32();
    tape.backward(loss);
    results[early] = gradient(w);
    w.clear_gradient();
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(results[0][i], results[1][i], 1e-6);
}

TEST_P(TapeTest, ViewsAndBroadcasts) {
  const Parameter z = parameter({}, {1});
  GradientTape tape;
  const Matrix zeros = matrix::zeros(engine(), {1000});
  // A view of a ready value, a broadcast operand, and one that is used twice.
  const Matrix loss = matrix::sum(matrix::exp(z.data().reshape({1})) - 0.0) +
                      matrix::sum(matrix::exp(z.data()) - zeros);
  tape.backward(loss);
  EXPECT_NEAR(loss.item(), 1001 * std::exp(1.0), 2e-2);
  EXPECT_NEAR(gradient(z)[0], 1001 * std::exp(1.0), 2e-2);
}

TEST_P(TapeTest, TiesShareTheGradient) {
  const Parameter x = parameter({2}, {1, 1});
  {
    GradientTape tape;
    tape.backward(matrix::max(x.data()));
  }
  EXPECT_EQ(gradient(x), (std::vector<f32>{0.5f, 0.5f}));
  x.clear_gradient();
  GradientTape tape;
  tape.backward(matrix::sum(matrix::maximum(x.data(), x.data())));
  EXPECT_EQ(gradient(x), (std::vector<f32>{1, 1}));
}

TEST_P(TapeTest, WhatIsMaskedOutStaysOut) {
  const Parameter x = parameter({4}, {-1, 0, 4, 9});
  GradientTape tape;
  const Matrix zero = matrix::full_like(x.data(), 0);
  tape.backward(
      matrix::sum(matrix::where(matrix::greater(x.data(), zero), matrix::sqrt(x.data()), zero)));
  const auto g = gradient(x);
  EXPECT_EQ(g[0], 0);
  EXPECT_EQ(g[1], 0);
  EXPECT_FLOAT_EQ(g[2], 0.25f);
  EXPECT_FLOAT_EQ(g[3], 1 / 6.0f);
}

TEST_P(TapeTest, RepeatedIndicesAddUpInOrder) {
  const Parameter table = parameter({3, 2}, {1, 2, 3, 4, 5, 6});
  const Matrix at = from<i32>({4}, {2, 0, 2, 2});
  GradientTape tape;
  tape.backward(matrix::sum(matrix::gather(table.data(), at)));
  EXPECT_EQ(gradient(table), (std::vector<f32>{1, 1, 0, 0, 3, 3}));
}

TEST_P(TapeTest, DropoutAtEveryShare) {
  const Parameter x = parameter({16}, random_f32(1, 16));
  for (const f64 p : {0.0, 0.5, 1.0}) {
    x.clear_gradient();
    GradientTape tape;
    const Matrix y = matrix::dropout(x.data(), p, 6);
    tape.backward(matrix::sum(y));
    const auto kept = y.read_f32(), slope = gradient(x);
    for (size_t i = 0; i < 16; ++i) {
      EXPECT_EQ(slope[i], kept[i] == 0 ? 0 : static_cast<f32>(1 / (1 - p))) << p << " " << i;
      EXPECT_TRUE(p < 1 || kept[i] == 0);
      EXPECT_TRUE(p > 0 || kept[i] != 0);
    }
  }
}

TEST_P(TapeTest, IndicesOutOfRangeChangeNoOtherRow) {
  if (interpreted()) GTEST_SKIP() << "checks indices always";
  for (const bool checked : {true, false}) {
    Engine e = Engine::open(
        {.device = device_under_test(GetParam()), .check_indices = checked, .guard_bands = true});
    const Parameter table =
        Parameter::create("table", Matrix::from_f32(e, {3, 12}, random_f32(1, 36)));
    const std::vector<i32> at = {1, 999, -1};
    GradientTape tape;
    tape.backward(matrix::sum(matrix::gather(table.data(), Matrix::from_slice<i32>(e, {3}, at))));
    if (checked) {
      EXPECT_EQ(error_of([&] { table.gradient()->read_f32(); }),
                "scatter_add_rows: index out of range at row 1, got 999, expected 0 to 2");
    }
    const auto g = gradient(table);
    for (size_t i = 0; i < 36; ++i) EXPECT_EQ(g[i], i / 12 == 1 ? 1 : 0) << checked << " " << i;
    e.check_guards();
  }
}

TEST_P(TapeTest, DetachAndNoGradCutTheWayBack) {
  const Parameter w = parameter({1}, {3});
  GradientTape tape;
  Matrix quiet;
  {
    const NoGrad none;
    quiet = w.data() * 5;
  }
  tape.backward(matrix::sum(w.data() * detach(w.data() * 2) * quiet * detach(w.data())));
  EXPECT_EQ(gradient(w), (std::vector<f32>{6 * 15 * 3}));
  EXPECT_EQ(detach(w.data()).read_f32(), (std::vector<f32>{3}));
}

TEST_P(TapeTest, WithoutRequiresGradAParameterIsConstant) {
  const Parameter w = parameter({1}, {3}), v = parameter({1}, {4});
  v.set_requires_grad(false);
  GradientTape tape;
  tape.backward(matrix::sum(w.data() * v.data()));
  EXPECT_EQ(gradient(w), (std::vector<f32>{4}));
  EXPECT_FALSE(v.gradient());
}

TEST_P(TapeTest, RefusesWhatItCannotDo) {
  const Parameter w = parameter({2}, {1, 2});
  GradientTape tape;
  const Matrix loss = matrix::sum(w.data() * w.data());
  EXPECT_EQ(error_of([&] { tape.backward(w.data() * 2); }),
            "backward: bad root, got f32 [2], expected one f32 element");
  EXPECT_EQ(error_of([&] { tape.backward(matrix::zeros(engine(), {})); }),
            "backward: the root was not recorded by this tape, or depends on no parameter");
  {
    GradientTape inner;
    EXPECT_EQ(error_of([&] { tape.backward(loss); }),
              "backward: another tape is active on this thread");
  }
  EXPECT_FALSE(w.gradient());
  tape.backward(loss);
  EXPECT_EQ(gradient(w), (std::vector<f32>{2, 4}));
  EXPECT_EQ(error_of([&] { tape.backward(loss); }),
            "backward: the tape was used, expected a new one");
}

TEST_P(TapeTest, RefusesValuesThatWereReplaced) {
  const Parameter w = parameter({2}, {1, 2});
  const Matrix factor = from<f32>({2}, {3, 4});
  const f32 other[] = {5, 6};
  {
    GradientTape tape;
    const Matrix loss = matrix::sum(w.data() * w.data());
    w.replace_data(w.data() * 2);
    EXPECT_EQ(error_of([&] { tape.backward(loss); }),
              "backward: p was changed since the forward pass, expected it unchanged");
  }
  GradientTape tape;
  const Matrix loss = matrix::sum(w.data() * factor);
  factor.write<f32>(other);
  EXPECT_EQ(error_of([&] { tape.backward(loss); }),
            "backward: operand 1 of mul was replaced since the forward pass, expected it "
            "unchanged");
  EXPECT_FALSE(w.gradient());
  // Rules read results too, also through a view that keeps no gradient.
  {
    const Parameter q = parameter({2}, {1, 2});
    GradientTape again;
    const Matrix y = matrix::exp(q.data());
    ml::detach(y).assign(matrix::full_like(y, 5));
    const Matrix total = matrix::sum(y);
    EXPECT_EQ(
        error_of([&] { again.backward(total); }),
        "backward: result 0 of exp was replaced since the forward pass, expected it unchanged");
  }
}

TEST_P(TapeTest, ATapeThatIsNotOnTopMayClose) {
  const Parameter w = parameter({1}, {2});
  auto outer = std::make_unique<GradientTape>();
  GradientTape inner;
  outer.reset();
  const Matrix loss = matrix::sum(w.data() * 3);
  inner.backward(loss);
  EXPECT_EQ(gradient(w), (std::vector<f32>{3}));
}

TEST_P(TapeTest, SecondRunsGiveTheBitsOfTheFirst) {
  const Matrix x = from<f32>({7, 5}, random_f32(1, 35));
  const u32 zeros[2] = {};
  std::vector<f32> results[2][2];
  for (int again = 0; again < 2; ++again) {
    const Parameter w = parameter({5, 5}, random_f32(2, 25));
    const Matrix calls = Matrix::from_slice<u32>(engine(), {2}, zeros);
    const auto layer = [&](const std::vector<Matrix>& in) {
      const Matrix h = matrix::tanh(matrix::mat_mul(in[0], w.data()));
      return std::vector<Matrix>{
          matrix::dropout(h, 0.4, matrix::RandomSource(9, ml::draw_step(calls)))};
    };
    for (int step = 0; step < 2; ++step) {
      GradientTape tape;
      tape.watch(x);
      Matrix y = again ? ml::recompute(layer, {x})[0] : layer({x})[0];
      y = again ? ml::recompute(layer, {y})[0] : layer({y})[0];
      tape.backward(matrix::sum(y * y));
      results[again][0] = gradient(w);
      results[again][1] = tape.gradient(x)->read_f32();
    }
    EXPECT_EQ(calls.read<u32>(), (std::vector<u32>{4, 0}));
  }
  EXPECT_EQ(results[0][1], results[1][1]);
  for (size_t i = 0; i < results[0][0].size(); ++i) {
    EXPECT_NEAR(results[0][0][i], results[1][0][i], 1e-5);
  }
}

TEST_P(TapeTest, GradientsOfTheCallersOwn) {
  const Parameter w = parameter({2}, {1, 2});
  GradientTape tape;
  const auto y = ml::with_gradient(
      {w.data()}, [](const std::vector<Matrix>& in) { return std::vector<Matrix>{in[0] * 10}; },
      [](const std::vector<Matrix>& g) { return std::vector<Matrix>{g[0] * -1}; });
  tape.backward(matrix::sum(y[0] * y[0]));
  EXPECT_EQ(gradient(w), (std::vector<f32>{-20, -40}));
}

OA_ON_DEVICES(TapeTest);

// An op whose gradient nobody has written ends no way back silently: it is refused when it is
// recorded. The kernels of gradients are of that kind.
TEST(TapeRefusals, OpsWithoutAGradient) {
  Engine& e = *open_device("cpu").engine;
  int refused = 0;
  for (const graph::OpDef* op : ml::matrix::ml_ops()) {
    if (op->info.kind != graph::OpKind::Kernel || op->gradient || op->detached) continue;
    graph::Samples stated;
    op->samples(stated);
    for (const graph::Sample& s : stated.list()) {
      if (!s.rejection.empty()) continue;
      GradientTape tape;
      std::vector<graph::TensorRef> in;
      bool watched = false;
      for (size_t i = 0; i < s.operands.size(); ++i) {
        in.push_back(matrix::zeros(e, s.operands[i].shape, s.operands[i].dtype).tensor());
        if (!is_float(s.operands[i].dtype) || (op->detached_inputs >> i & 1) != 0) continue;
        tape.watch(Matrix(in.back()));
        watched = true;
      }
      e.flush();
      if (!watched) break;
      EXPECT_EQ(error_of([&] { e.core().graph().record(*op, s.attrs, in); }),
                fmt::format("{}: the op has no gradient but an operand depends on a parameter, "
                            "expected detach() around the operand",
                            op->name()));
      EXPECT_TRUE(e.core().graph().empty());
      ++refused;
      break;
    }
  }
  EXPECT_GE(refused, 3);
}

TEST(Parameters, RefuseWhatDoesNotFit) {
  Engine& e = *open_device("cpu").engine;
  const f32 two[] = {1, 2};
  const Matrix data = Matrix::from_f32(e, {2}, two);
  EXPECT_EQ(error_of([&] { Parameter::create("w", matrix::cast(data, DType::I32)); }),
            "Parameter: wrong dtype, got i32, expected f32");
  const Parameter p = Parameter::create("w", data);
  EXPECT_EQ(error_of([&] { Parameter::create("w", data); }),
            "Parameter: the value is a parameter already, expected one of its own");
  EXPECT_EQ(error_of([&] { p.replace_data(matrix::zeros(e, {3})); }),
            "replace_data: value does not fit, got f32 [3], expected f32 [2]");
}

}  // namespace
}  // namespace oa::test
