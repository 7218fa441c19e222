// Dynamic loss scaling: what it does to gradients, when it grows and shrinks, that a step with an
// overflow changes nothing, and training in 16-bit products.
#include "oa/ml/optim/loss_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "oa/matrix/matmul.h"
#include "oa/matrix/reduce.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/optim/adam.h"
#include "oa/ml/optim/clip.h"
#include "tests/matrix/devices.h"

namespace oa::test {
namespace {

using ml::LossScale;
using ml::Parameter;

class LossScaleTest : public OnDevice {
 protected:
  Matrix number(f32 x) { return from<f32>({}, {x}); }
};
OA_ON_DEVICES(LossScaleTest);

TEST_P(LossScaleTest, GrowsAfterGoodStepsAndShrinksAfterBadOnes) {
  LossScale scale(engine(), {.initial = 8, .growth = 4, .backoff = 0.5, .interval = 3});
  const auto after = [&](f32 norm) {
    scale.update(number(norm));
    return scale.state();
  };
  EXPECT_EQ(after(1), (LossScale::State{8, 1}));
  EXPECT_EQ(after(0), (LossScale::State{8, 2}));
  EXPECT_EQ(after(2), (LossScale::State{32, 0}));
  EXPECT_EQ(after(2), (LossScale::State{32, 1}));
  EXPECT_EQ(after(std::numeric_limits<f32>::infinity()), (LossScale::State{16, 0}));
  EXPECT_EQ(after(std::nanf("")), (LossScale::State{8, 0}));
  scale.restore({0x1p127f, 2});
  EXPECT_EQ(after(1), (LossScale::State{0x1p127f, 0}));  // more than f32 has
  scale.restore({0x1p-126f, 2});
  EXPECT_EQ(after(std::nanf("")), (LossScale::State{0x1p-126f, 0}));
}

TEST_P(LossScaleTest, GradientsAreThoseWithoutIt) {
  const Parameter p = Parameter::create("p", from<f32>({3}, {1, -2, 0.5f}));
  const auto gradient = [&](LossScale* scale) {
    p.clear_gradient();
    ml::GradientTape tape;
    const Matrix loss = matrix::sum(p.data() * p.data());
    tape.backward(scale ? scale->scaled(loss.reshape({})) : loss);
    if (scale) scale->unscale(std::span(&p, 1));
    return p.gradient()->read_f32();
  };
  const auto plain = gradient(nullptr);
  LossScale scale(engine());
  EXPECT_EQ(gradient(&scale), plain);  // a power of two takes no bits
}

TEST_P(LossScaleTest, AStepThatOverflowsChangesNothing) {
  const Parameter p = Parameter::create("p", from<f32>({2}, {1, 2}));
  ml::AdamW optimizer({p}, 0.1);
  LossScale scale(engine(), {.initial = 0x1p100, .interval = 10});
  const auto step = [&] {
    optimizer.zero_grad();
    ml::GradientTape tape;
    tape.backward(scale.scaled(matrix::sum(p.data() * 0x1p40f).reshape({})));
    scale.unscale(std::span(&p, 1));
    const Matrix norm = ml::clip_grad_norm(std::span(&p, 1), 1);
    optimizer.step_if_finite(norm);
    scale.update(norm);
  };
  step();  // 2^140 is no number
  EXPECT_EQ(p.data().read_f32(), (std::vector<f32>{1, 2}));
  EXPECT_EQ(scale.state(), (LossScale::State{0x1p99f, 0}));
  scale.restore({2, 0});
  step();
  EXPECT_LT(p.data().read_f32()[0], 1);
  EXPECT_EQ(scale.state(), (LossScale::State{2, 1}));
}

TEST_P(LossScaleTest, WrongArguments) {
  EXPECT_EQ(error_of([&] { LossScale(engine(), {.initial = 0}); }),
            "LossScale: bad initial scale, got 0, expected a positive finite number");
  EXPECT_EQ(error_of([&] { LossScale(engine(), {.growth = 1}); }),
            "LossScale: bad growth, got 1, expected a finite number greater than 1");
  EXPECT_EQ(error_of([&] { LossScale(engine(), {.backoff = 1}); }),
            "LossScale: bad backoff, got 1, expected a number between 0 and 1");
  EXPECT_EQ(error_of([&] { LossScale(engine(), {.interval = 0}); }),
            "LossScale: bad interval, got 0, expected 1 or more");
  LossScale scale(engine());
  EXPECT_EQ(error_of([&] { scale.scaled(from<f32>({2}, {1, 2})); }),
            "LossScale: bad loss, got f32 [2], expected f32 with one element");
  EXPECT_EQ(error_of([&] { scale.update(Matrix()); }),
            "LossScale: bad norm, got nothing, expected f32 with one element");
  EXPECT_EQ(error_of([&] { scale.restore({-1, 0}); }),
            "LossScale: bad state, got scale -1 and 0 steps, expected a positive number and 0 or "
            "more");
}

}  // namespace
}  // namespace oa::test
