// Clipping by the joint norm, accumulation over micro-batches, moving averages of weights.
#include "oa/matrix/reduce.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/optim/adam.h"
#include "oa/ml/optim/clip.h"
#include "oa/ml/optim/moving_average.h"
#include "oa/ml/optim/sgd.h"
#include "optim_support.h"

namespace oa::test {
namespace {

class OptimClip : public OnDevice {
 protected:
  std::vector<Matrix> equal(size_t n, f32 x) {
    std::vector<Matrix> list;
    for (size_t i = 0; i < n; ++i) list.push_back(from<f32>({1}, {x}));
    return list;
  }
  f32 clip(const std::vector<Matrix>& gradients, f64 most) {
    return ml::clip_grad_norm(std::span<const Matrix>(gradients), most).item();
  }
};

TEST_P(OptimClip, OneNormOverEverything) {
  std::vector<Matrix> g;
  f64 squares = 0;
  std::vector<std::vector<f32>> before;
  for (size_t i = 0; i < kShapes.size(); ++i) {
    const Shape shape = interpreted() && i + 1 == kShapes.size() ? Shape{70} : kShapes[i];
    before.push_back(random_f32(static_cast<u32>(i), static_cast<size_t>(shape.elements())));
    g.push_back(from<f32>(shape, before.back()));
    for (f32 x : before.back()) squares += static_cast<f64>(x) * static_cast<f64>(x);
  }
  const f64 norm = std::sqrt(squares);
  EXPECT_NEAR(static_cast<f64>(clip(g, 2 * norm)) / norm, 1, 1e-6);
  for (size_t i = 0; i < g.size(); ++i) EXPECT_EQ(g[i].read_f32(), before[i]);  // below the limit
  EXPECT_NEAR(static_cast<f64>(clip(g, 0.5)) / norm, 1, 1e-6);
  for (size_t i = 0; i < g.size(); ++i) {
    const auto after = g[i].read_f32();
    for (size_t k = 0; k < after.size(); ++k) {
      EXPECT_NEAR(static_cast<f64>(after[k]), static_cast<f64>(before[i][k]) * 0.5 / norm, 1e-7);
    }
  }
  EXPECT_NEAR(clip(g, 0), 0.5f, 1e-6f);
  for (const Matrix& x : g) {
    for (f32 e : x.read_f32()) EXPECT_EQ(e, 0);
  }
  EXPECT_EQ(clip(g, 1), 0);
}

TEST_P(OptimClip, HugeAndTinyGradients) {
  const size_t n = interpreted() ? 25 : 100;
  const f32 share = interpreted() ? 0.2f : 0.1f;
  for (const f32 x : {1e20f, 1e37f, 3e37f, 2e-30f, 1.0f}) {
    const auto g = equal(n, x);
    const f64 most = x < 1 ? 1e-30 : 1;
    EXPECT_NEAR(clip(g, most) / (x / share), 1, 1e-6f) << x;
    for (const Matrix& m : g) EXPECT_NEAR(m.item() / (share * static_cast<f32>(most)), 1, 1e-6f);
  }
}

TEST_P(OptimClip, ANormThatIsNotFiniteChangesNothing) {
  constexpr f32 kInf = std::numeric_limits<f32>::infinity();
  for (const f32 bad : {kInf, -kInf, std::numeric_limits<f32>::quiet_NaN()}) {
    std::vector<Matrix> g = {from<f32>({3}, {5, 6, 7}), from<f32>({2}, {1, bad})};
    const f32 norm = clip(g, 1);
    EXPECT_FALSE(std::isfinite(norm));
    EXPECT_EQ(std::isnan(norm), std::isnan(bad));
    EXPECT_EQ(g[0].read_f32(), (std::vector<f32>{5, 6, 7}));
    EXPECT_EQ(g[1].read_f32()[0], 1);
  }
}

TEST_P(OptimClip, StepIsSkippedWhereTheNormIsNotFinite) {
  const Parameter p = Parameter::create("p", from<f32>({2}, {1, 2}));
  ml::Sgd optimizer({p}, 1);
  p.set_gradient(from<f32>({2}, {std::numeric_limits<f32>::infinity(), 0}));
  optimizer.step_if_finite(ml::clip_grad_norm(std::span(optimizer.parameters()), 1));
  EXPECT_EQ(p.data().read_f32(), (std::vector<f32>{1, 2}));
  p.set_gradient(from<f32>({2}, {30, 40}));
  optimizer.step_if_finite(ml::clip_grad_norm(std::span(optimizer.parameters()), 5));
  EXPECT_NEAR(p.data().read_f32()[0], -2, 1e-6f);
  EXPECT_NEAR(p.data().read_f32()[1], -2, 1e-6f);
}

OA_ON_DEVICES(OptimClip);

TEST(OptimClipMany, TwoHundredGradientsAreAFewDispatches) {
  Engine e = Engine::open({.device = "cpu"});
  std::vector<Matrix> g;
  for (i64 i = 0; i < 200; ++i) {
    g.push_back(Matrix::from_f32(e, {1 + i % 7, 2}, std::vector<f32>(2 * (1 + i % 7), 0.5f)));
  }
  f64 count = 0;
  for (const Matrix& m : g) count += static_cast<f64>(m.num_elements());
  const Matrix norm = ml::clip_grad_norm(std::span<const Matrix>(g), 1);
  EXPECT_NEAR(static_cast<f64>(norm.item()), std::sqrt(count * 0.25), 1e-5);
  EXPECT_LE(e.counters().dispatches, 10u);
  EXPECT_NEAR(static_cast<f64>(g[0].read_f32()[0]), 0.5 / std::sqrt(count * 0.25), 1e-7);
}

TEST(OptimClipRefusals, Texts) {
  Engine& e = *open_device("cpu").engine;
  Engine other = Engine::open({.device = "cpu"});
  const Matrix a = Matrix::from_f32(e, {2}, std::vector<f32>{1, 2});
  const auto text = [](const std::vector<Matrix>& g, f64 most) {
    return error_of([&] { ml::clip_grad_norm(std::span<const Matrix>(g), most); });
  };
  EXPECT_EQ(text({a}, -1),
            "clip_grad_norm: bad max_norm, got -1, expected a finite number of 0 or more");
  EXPECT_EQ(text({a}, std::nan("")),
            "clip_grad_norm: bad max_norm, got nan, expected a finite number of 0 or more");
  EXPECT_EQ(text({}, 1), "clip_grad_norm: no gradients, got an empty list, expected one or more");
  EXPECT_EQ(text({a, a}, 1),
            "clip_grad_norm: gradient 1 has the elements of an earlier one, expected every "
            "gradient once");
  EXPECT_EQ(text({a, a.reshape({1, 2})}, 1),
            "clip_grad_norm: gradient 1 has the elements of an earlier one, expected every "
            "gradient once");
  EXPECT_EQ(text({a, Matrix()}, 1), "clip_grad_norm: gradient 1 is empty, expected a value");
  EXPECT_EQ(text({a, a.to(DType::F64)}, 1),
            "clip_grad_norm: gradient 1 has the wrong dtype, got f64, expected f32");
  EXPECT_EQ(text({a, Matrix::from_f32(other, {1}, std::vector<f32>{1})}, 1),
            "clip_grad_norm: gradient 1 belongs to another engine, expected gradients of one "
            "engine");
  EXPECT_EQ(a.read_f32(), (std::vector<f32>{1, 2}));
}

TEST(OptimAccumulation, MicroBatchesCountAsTheirMean) {
  Engine& e = *open_device("cpu").engine;
  const Parameter p = Parameter::create("p", Matrix::from_f32(e, {2}, std::vector<f32>{1, 2}));
  ml::GradientAccumulation batches(4);
  std::vector<bool> done;
  for (f32 k = 1; k <= 4; ++k) {
    ml::GradientTape tape;
    const Matrix loss = matrix::sum(p.data() * static_cast<f64>(k));
    tape.backward(batches.scale(loss));
    done.push_back(batches.complete());
  }
  EXPECT_EQ(done, (std::vector<bool>{false, false, false, true}));
  EXPECT_EQ(p.gradient()->read_f32(), (std::vector<f32>{2.5, 2.5}));
  EXPECT_EQ(error_of([] { ml::GradientAccumulation(0); }),
            "GradientAccumulation: no micro-batches, got 0, expected 1 or more");
}

class OptimAverage : public OnDevice {};

TEST_P(OptimAverage, FollowsTheWeightsAndIsShownWithinAScope) {
  Model model = make_model(engine(), {{3, 5}, {7}, {}});
  ml::ExponentialMovingAverage average(model.parameters, 0.75);
  auto expected = model.values;
  for (u32 t = 1; t <= 3; ++t) {
    for (size_t i = 0; i < model.parameters.size(); ++i) {
      const auto w = gradient_values(i, t, expected[i].size());
      model.parameters[i].replace_data(from<f32>(model.parameters[i].data().shape(), w));
      for (size_t k = 0; k < w.size(); ++k) {
        expected[i][k] = 0.75 * expected[i][k] + 0.25 * static_cast<f64>(w[k]);
      }
    }
    average.update();
  }
  const auto weights = values_of(model.parameters);
  {
    const auto shown = average.scope();
    const auto seen = values_of(model.parameters);
    for (size_t i = 0; i < seen.size(); ++i) {
      for (size_t k = 0; k < seen[i].size(); ++k) EXPECT_NEAR(seen[i][k], expected[i][k], 1e-6);
    }
    EXPECT_EQ(error_of([&] { average.update(); }),
              "ExponentialMovingAverage: update() while the averages are shown");
    EXPECT_EQ(error_of([&] { const auto twice = average.scope(); }),
              "ExponentialMovingAverage: scope() while the averages are shown already");
  }
  EXPECT_EQ(values_of(model.parameters), weights);
  for (size_t k = 0; k < expected[1].size(); ++k) {
    EXPECT_NEAR(average.averages()[1].read_f32()[k], expected[1][k], 1e-6);
  }
}

OA_ON_DEVICES(OptimAverage);

TEST(OptimAverageRefusals, Texts) {
  Engine& e = *open_device("cpu").engine;
  const Model model = make_model(e, {{3}});
  EXPECT_EQ(error_of([&] { ml::ExponentialMovingAverage(model.parameters, 1.0); }),
            "ExponentialMovingAverage: bad decay, got 1, expected 0 or more and less than 1");
  EXPECT_EQ(error_of([&] { ml::ExponentialMovingAverage(std::vector<Parameter>{}, 0.5); }),
            "ExponentialMovingAverage: no parameters, got an empty list, expected one or more");
  ml::ExponentialMovingAverage average(model.parameters, 0.5);
  EXPECT_EQ(error_of([&] { average.restore({}); }),
            "ExponentialMovingAverage: bad number of averages, got 0, expected 1");
  EXPECT_EQ(
      error_of([&] { average.restore({Matrix::from_f32(e, {1}, std::vector<f32>{1})}); }),
      "ExponentialMovingAverage: average 0 does not fit, expected f32 [3] of the same engine");
  average.restore({Matrix::from_f32(e, {3}, std::vector<f32>{1, 2, 3})});
  EXPECT_EQ(average.averages()[0].read_f32(), (std::vector<f32>{1, 2, 3}));
}

}  // namespace
}  // namespace oa::test
