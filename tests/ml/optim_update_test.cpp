// Optimizers against their formulas in double precision, on every device.
#include "oa/ml/optim/adam.h"
#include "oa/ml/optim/muon.h"
#include "oa/ml/optim/no_op.h"
#include "oa/ml/optim/sgd.h"
#include "optim_support.h"

namespace oa::test {
namespace {

class OptimUpdate : public OnDevice {
 protected:
  u32 steps() const { return interpreted() ? 3 : 20; }
  // Interpreted devices take long.
  std::vector<Shape> shapes() const {
    std::vector<Shape> s = kShapes;
    if (interpreted()) s.back() = {33};
    return s;
  }
};

HostUpdate sgd(f64 rate, f64 momentum, f64 decay) {
  return [=](f64& p, f64& m, f64&, f64 g, u32) {
    g += decay * p;
    m = momentum > 0 ? momentum * m + g : g;
    p -= rate * m;
  };
}

HostUpdate adam(f64 rate, f64 b1, f64 b2, f64 epsilon, f64 decay) {
  return [=](f64& p, f64& m, f64& v, f64 g, u32 t) {
    p -= rate * decay * p;
    m = b1 * m + (1 - b1) * g;
    v = b2 * v + (1 - b2) * g * g;
    p -= rate * (m / (1 - std::pow(b1, t))) / (std::sqrt(v / (1 - std::pow(b2, t))) + epsilon);
  };
}

TEST_P(OptimUpdate, Sgd) {
  Model model = make_model(engine(), shapes());
  ml::Sgd optimizer = ml::Sgd::create(model.parameters, 0.1, 0, 0);
  EXPECT_LT(error_after(engine(), optimizer, model, steps(), sgd(0.1, 0, 0)), 1e-6);
}

TEST_P(OptimUpdate, SgdWithDecay) {
  Model model = make_model(engine(), shapes());
  ml::Sgd optimizer(model.parameters, 0.1, 0, 0.2);
  EXPECT_LT(error_after(engine(), optimizer, model, steps(), sgd(0.1, 0, 0.2)), 1e-6);
}

// The decay is scaled by the rate and takes part in the momentum, as in PyTorch.
TEST_P(OptimUpdate, SgdWithMomentumAndDecay) {
  Model model = make_model(engine(), shapes());
  ml::Sgd optimizer(model.parameters, 0.05, 0.9, 0.3);
  EXPECT_LT(error_after(engine(), optimizer, model, steps(), sgd(0.05, 0.9, 0.3)), 2e-6);
}

TEST_P(OptimUpdate, Adam) {
  Model model = make_model(engine(), shapes());
  ml::Adam optimizer = ml::Adam::create(model.parameters, 0.01);
  EXPECT_LT(error_after(engine(), optimizer, model, steps(), adam(0.01, 0.9, 0.999, 1e-8, 0), true),
            1e-6);
}

TEST_P(OptimUpdate, AdamW) {
  Model model = make_model(engine(), shapes());
  ml::AdamW optimizer = ml::AdamW::create(model.parameters, 0.01);
  EXPECT_LT(
      error_after(engine(), optimizer, model, steps(), adam(0.01, 0.9, 0.999, 1e-8, 0.01), true),
      1e-6);
}

TEST_P(OptimUpdate, AdamWWithItsOwnNumbers) {
  Model model = make_model(engine(), shapes());
  ml::AdamW optimizer =
      ml::AdamW::with_hyperparameters(model.parameters, 0.02, 0.0, 0.95, 1e-3, 0.5);
  EXPECT_LT(error_after(engine(), optimizer, model, steps(), adam(0.02, 0, 0.95, 1e-3, 0.5)), 1e-6);
}

// First steps of single numbers (PyTorch's reference values).
TEST_P(OptimUpdate, AdamWDecaysFirst) {
  const Parameter p = Parameter::create("p", from<f32>({}, {1}));
  ml::AdamW optimizer({p}, 1e-3, 0.01);
  p.set_gradient(from<f32>({}, {0.1f}));
  optimizer.step();
  EXPECT_NEAR(static_cast<f64>(p.data().item()), 0.99899, 3e-8);  // not 0.998990010
  const Parameter q = Parameter::create("q", from<f32>({}, {1}));
  ml::AdamW large({q}, 0.1, 1);
  q.set_gradient(from<f32>({}, {0.1f}));
  large.step();
  EXPECT_NEAR(static_cast<f64>(q.data().item()), 0.8, 1e-7);  // 0.81 if decayed after the update
}

TEST_P(OptimUpdate, EpsilonStandsOutsideOfTheCorrectedRoot) {
  const Parameter p = Parameter::create("p", from<f32>({}, {1}));
  ml::AdamW optimizer({p}, 1e-3, 0);
  p.set_gradient(from<f32>({}, {1e-8f}));
  optimizer.step();
  EXPECT_NEAR(static_cast<f64>(p.data().item()), 0.9995, 1e-7);
}

TEST_P(OptimUpdate, GroupsHaveTheirOwnRateAndDecay) {
  Model model = make_model(engine(), {{3, 5}, {7}, {9, 2}});
  ml::AdamW optimizer(
      std::vector<ml::ParameterGroup>{
          {{model.parameters[0]}, 1, {}},
          {{model.parameters[1]}, 0.5, 0.0},
          {{model.parameters[2]}, 0, 0.3},
      },
      0.01, 0.2);
  const auto before = values_of(model.parameters);
  set_gradients(engine(), model.parameters, 1);
  optimizer.step();
  const auto after = values_of(model.parameters);
  const HostUpdate updates[] = {adam(0.01, 0.9, 0.999, 1e-8, 0.2), adam(0.005, 0.9, 0.999, 1e-8, 0),
                                adam(0, 0.9, 0.999, 1e-8, 0.3)};
  for (size_t i = 0; i < 3; ++i) {
    const auto g = gradient_values(i, 1, before[i].size());
    for (size_t k = 0; k < g.size(); ++k) {
      f64 p = before[i][k], m = 0, v = 0;
      updates[i](p, m, v, static_cast<f64>(g[k]), 1);
      EXPECT_NEAR(static_cast<f64>(after[i][k]), p, 1e-6);
    }
  }
  EXPECT_EQ(after[2], before[2]);
}

TEST_P(OptimUpdate, ParametersWithoutGradientStayAsTheyAre) {
  Model model = make_model(engine(), {{3, 5}, {7}, {9, 2}});
  ml::AdamW optimizer(model.parameters, 0.01, 0.5);
  const auto before = values_of(model.parameters);
  set_gradients(engine(), model.parameters, 1);
  model.parameters[1].clear_gradient();
  model.parameters[2].set_requires_grad(false);
  const u64 version = model.parameters[1].version(), moved = model.parameters[0].version();
  optimizer.step();
  const auto after = values_of(model.parameters);
  EXPECT_NE(after[0], before[0]);
  EXPECT_EQ(after[1], before[1]);
  EXPECT_EQ(after[2], before[2]);
  EXPECT_EQ(model.parameters[1].version(), version);
  EXPECT_EQ(model.parameters[0].version(), moved + 1);
  EXPECT_EQ(optimizer.step_count(), 1u);
  optimizer.zero_grad();
  EXPECT_FALSE(model.parameters[0].gradient());
  optimizer.step();  // nothing to do, but a step
  EXPECT_EQ(optimizer.step_count(), 2u);
  EXPECT_EQ(optimizer.checkpoint_state().step, 2);
  EXPECT_EQ(values_of(model.parameters), after);
}

// A gradient that is read after the update, and one that is computed from the parameter itself.
TEST_P(OptimUpdate, WhatWasRecordedBeforeSeesTheOldElements) {
  const Parameter p = Parameter::create("p", from<f32>({3}, {1, 2, 3}));
  ml::Sgd optimizer({p}, 0.5);
  const Matrix before = p.data() * 10.0;
  p.set_gradient(p.data() * 2.0);
  optimizer.step();
  const Matrix after = p.data() * 10.0;
  EXPECT_EQ(before.read_f32(), (std::vector<f32>{10, 20, 30}));
  EXPECT_EQ(p.gradient()->read_f32(), (std::vector<f32>{2, 4, 6}));
  EXPECT_EQ(after.read_f32(), (std::vector<f32>{0, 0, 0}));
}

TEST_P(OptimUpdate, TheRateChangesInTheOrderOfRecordedWork) {
  const Parameter p = Parameter::create("p", from<f32>({1}, {0}));
  ml::Sgd optimizer({p}, 1);
  p.set_gradient(from<f32>({1}, {1}));
  optimizer.step();
  optimizer.set_learning_rate(10);
  optimizer.step();
  optimizer.set_learning_rate(100);
  optimizer.step();
  optimizer.set_learning_rate(1000);
  EXPECT_EQ(p.data().read_f32()[0], -111);
  EXPECT_EQ(optimizer.learning_rate(), 1000);
  optimizer.step();
  EXPECT_EQ(p.data().read_f32()[0], -1111);
}

TEST_P(OptimUpdate, AStepThatDoesNotCountChangesNothing) {
  Model model = make_model(engine(), {{3, 5}, {7}});
  ml::AdamW optimizer(model.parameters, 0.01, 0.5);
  set_gradients(engine(), model.parameters, 1);
  optimizer.step();
  const auto before = values_of(model.parameters);
  const ml::OptimizerState state = optimizer.checkpoint_state();
  set_gradients(engine(), model.parameters, 2);
  for (const f32 bad : {std::numeric_limits<f32>::infinity(), -std::numeric_limits<f32>::infinity(),
                        std::numeric_limits<f32>::quiet_NaN()}) {
    optimizer.step_if_finite(from<f32>({}, {bad}));
    EXPECT_EQ(values_of(model.parameters), before);
    const ml::OptimizerState same = optimizer.checkpoint_state();
    EXPECT_EQ(same.first_moment, state.first_moment);
    EXPECT_EQ(same.second_moment, state.second_moment);
    EXPECT_EQ(same.step, 1);
  }
  optimizer.step_if_finite(from<f32>({}, {3}));
  EXPECT_NE(values_of(model.parameters), before);
  EXPECT_EQ(optimizer.checkpoint_state().step, 2);
}

TEST_P(OptimUpdate, NoOp) {
  ml::NoOpOptimizer none;
  EXPECT_EQ(none.learning_rate(), 0);
  none.step();
  none.zero_grad();
  EXPECT_EQ(none.step_count(), 0u);
  EXPECT_TRUE(none.belongs_to(engine()));
  none.set_learning_rate(0.5);
  EXPECT_EQ(none.learning_rate(), 0.5);
  EXPECT_EQ(error_of([&] { none.set_learning_rate(-1); }),
            "NoOpOptimizer: bad learning rate, got -1, expected a finite number of 0 or more");
}

OA_ON_DEVICES(OptimUpdate);

// --- Muon ---

using Dense = std::vector<std::vector<f64>>;

Dense product(const Dense& a, const Dense& b) {
  Dense c(a.size(), std::vector<f64>(b[0].size()));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t k = 0; k < b.size(); ++k) {
      for (size_t j = 0; j < b[0].size(); ++j) c[i][j] += a[i][k] * b[k][j];
    }
  }
  return c;
}
Dense transposed(const Dense& a) {
  Dense t(a[0].size(), std::vector<f64>(a.size()));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[0].size(); ++j) t[j][i] = a[i][j];
  }
  return t;
}

// One Muon step of a matrix (ns > 0) or vector.
void muon(std::vector<f64>& p, std::vector<f64>& m, const std::vector<f32>& g, const Shape& shape,
          f64 rate, f64 beta, f64 decay, f64 epsilon, u32 ns) {
  std::vector<f64> u(p.size());
  for (size_t k = 0; k < p.size(); ++k) {
    m[k] = beta * m[k] + (1 - beta) * static_cast<f64>(g[k]);
    u[k] = (1 - beta) * static_cast<f64>(g[k]) + beta * m[k];
  }
  f64 gain = 1;
  if (shape.rank() == 2 && ns > 0) {
    const auto rows = static_cast<size_t>(shape[0]), columns = static_cast<size_t>(shape[1]);
    Dense x(rows, std::vector<f64>(columns));
    f64 squares = epsilon;
    for (f64 e : u) squares += e * e;
    for (size_t k = 0; k < u.size(); ++k) x[k / columns][k % columns] = u[k] / std::sqrt(squares);
    if (rows > columns) x = transposed(x);
    for (u32 i = 0; i < ns; ++i) {
      const Dense a = product(x, transposed(x)), aa = product(a, a);
      Dense b = a;
      for (size_t r = 0; r < b.size(); ++r) {
        for (size_t c = 0; c < b.size(); ++c) b[r][c] = -4.7750 * a[r][c] + 2.0315 * aa[r][c];
      }
      const Dense bx = product(b, x);
      for (size_t r = 0; r < x.size(); ++r) {
        for (size_t c = 0; c < x[0].size(); ++c) x[r][c] = 3.4445 * x[r][c] + bx[r][c];
      }
    }
    if (rows > columns) x = transposed(x);
    for (size_t k = 0; k < u.size(); ++k) u[k] = x[k / columns][k % columns];
    gain = 0.2 * std::sqrt(static_cast<f64>(std::max(rows, columns)));
  }
  for (size_t k = 0; k < p.size(); ++k) p[k] = (1 - rate * decay) * p[k] - rate * gain * u[k];
}

class OptimMuon : public OnDevice {
 protected:
  f64 error(u32 ns, u32 steps, const std::vector<Shape>& shapes) {
    Model model = make_model(engine(), shapes);
    ml::Muon optimizer =
        ml::Muon::with_hyperparameters(model.parameters, 0.02, 0.95, 0.1, 1e-7, ns);
    std::vector<std::vector<f64>> moments;
    for (const auto& v : model.values) moments.emplace_back(v.size());
    for (u32 t = 1; t <= steps; ++t) {
      set_gradients(engine(), model.parameters, t);
      optimizer.step();
      for (size_t i = 0; i < shapes.size(); ++i) {
        if (shapes[i].elements() == 0) continue;
        muon(model.values[i], moments[i], gradient_values(i, t, model.values[i].size()), shapes[i],
             0.02, 0.95, 0.1, 1e-7, ns);
      }
    }
    f64 worst = 0;
    for (size_t i = 0; i < shapes.size(); ++i) {
      const auto p = model.parameters[i].data().read_f32();
      for (size_t k = 0; k < p.size(); ++k) {
        const f64 e = std::abs(static_cast<f64>(p[k]) - model.values[i][k]);
        worst = std::isnan(e) ? e : std::max(worst, e);
      }
    }
    return worst;
  }
};

TEST_P(OptimMuon, LyingStandingAndSquareMatricesAndVectors) {
  const std::vector<Shape> shapes = {{3, 5}, {7},    {5, 3},    {3, 5}, {4, 4}, {},
                                     {0, 3}, {1, 6}, {2, 3, 4}, {3, 5}, {5, 3}};
  EXPECT_LT(error(5, std::string_view(GetParam()) == "cpu" ? 20 : 3, shapes), 2e-4);
}

TEST_P(OptimMuon, WithoutStepsEveryParameterTakesTheVectorForm) {
  EXPECT_LT(error(0, 5, {{3, 5}, {7}, {}}), 1e-6);
}

TEST_P(OptimMuon, IsNotGradientDescent) {
  const Parameter p = Parameter::create("p", from<f32>({2, 2}, {0, 0, 0, 0}));
  ml::Muon optimizer({p}, 1);
  p.set_gradient(from<f32>({2, 2}, {100, 0, 0, 1}));
  optimizer.step();
  const auto v = p.data().read_f32();
  // Both directions move alike although one gradient is a hundred times the other.
  EXPECT_GT(v[3] / v[0], 0.5f);
  EXPECT_LT(v[3] / v[0], 2.0f);
}

OA_ON_DEVICES(OptimMuon);

TEST(OptimMuonBatch, MoreMatricesOfAShapeThanOneBatchHolds) {
  Engine& e = *open_device("cpu").engine;
  Model model = make_model(e, std::vector<Shape>(19, Shape{3, 4}));
  ml::Muon together(model.parameters, 0.1);
  Model same = make_model(e, std::vector<Shape>(19, Shape{3, 4}));
  set_gradients(e, model.parameters, 1);
  set_gradients(e, same.parameters, 1);
  together.step();
  for (const Parameter& p : same.parameters) {
    ml::Muon alone({p}, 0.1);
    alone.step();
  }
  const auto a = values_of(model.parameters), b = values_of(same.parameters);
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t k = 0; k < a[i].size(); ++k) EXPECT_NEAR(a[i][k], b[i][k], 1e-5f) << i;
  }
}

}  // namespace
}  // namespace oa::test
