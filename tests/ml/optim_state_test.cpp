// Saving and restoring optimizers, captured steps, the split for Muon, and what constructors
// refuse.
#include <functional>

#include "oa/matrix/create.h"
#include "oa/matrix/matmul.h"
#include "oa/matrix/reduce.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/optim/adam.h"
#include "oa/ml/optim/clip.h"
#include "oa/ml/optim/muon.h"
#include "oa/ml/optim/schedule.h"
#include "oa/ml/optim/sgd.h"
#include "optim_support.h"

namespace oa::test {
namespace {

using Make = std::function<std::unique_ptr<ml::CheckpointOptimizer>(const std::vector<Parameter>&)>;

struct Kind {
  const char* name;
  Make make;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> list = {
      {"Sgd", [](const auto& p) { return std::make_unique<ml::Sgd>(p, 0.1, 0, 0.1); }},
      {"Momentum", [](const auto& p) { return std::make_unique<ml::Sgd>(p, 0.1, 0.9, 0.1); }},
      {"Adam", [](const auto& p) { return std::make_unique<ml::Adam>(p, 0.1); }},
      {"AdamW", [](const auto& p) { return std::make_unique<ml::AdamW>(p, 0.1, 0.3); }},
      {"Muon", [](const auto& p) { return std::make_unique<ml::Muon>(p, 0.1); }},
  };
  return list;
}

const std::vector<Shape> kSmall = {{3, 5}, {7}, {5, 3}, {}};

class OptimState : public testing::TestWithParam<size_t> {
 protected:
  const Kind& kind() const { return kinds()[GetParam()]; }
  Engine& engine() { return *open_device("cpu").engine; }
  void run(ml::Optimizer& o, const std::vector<Parameter>& p, u32 begin, u32 end) {
    for (u32 t = begin; t < end; ++t) {
      o.set_learning_rate(0.1 / (1 + t));
      set_gradients(engine(), p, t + 1);
      o.step();
    }
  }
};

TEST_P(OptimState, RestoredOptimizersGoOnBitForBit) {
  const Model straight = make_model(engine(), kSmall);
  const auto a = kind().make(straight.parameters);
  run(*a, straight.parameters, 0, 10);

  const Model first = make_model(engine(), kSmall);
  const auto b = kind().make(first.parameters);
  run(*b, first.parameters, 0, 5);
  const ml::OptimizerState state = b->checkpoint_state();
  EXPECT_EQ(state.step, 5);

  Model second = make_model(engine(), kSmall);
  const auto c = kind().make(second.parameters);
  set_gradients(engine(), second.parameters, 77);
  c->step();  // something else was there before
  for (size_t i = 0; i < second.parameters.size(); ++i) {
    second.parameters[i].replace_data(first.parameters[i].data());
  }
  c->restore_checkpoint_state(state);
  EXPECT_EQ(c->step_count(), 5u);
  EXPECT_EQ(static_cast<f32>(c->learning_rate()), static_cast<f32>(b->learning_rate()));
  run(*c, second.parameters, 5, 10);
  EXPECT_EQ(values_of(second.parameters), values_of(straight.parameters));
  const ml::OptimizerState x = a->checkpoint_state(), y = c->checkpoint_state();
  EXPECT_EQ(x.first_moment, y.first_moment);
  EXPECT_EQ(x.second_moment, y.second_moment);
  EXPECT_EQ(y.step, 10);
}

// One step recorded once and submitted many times, with a rate that changes between.
TEST_P(OptimState, CapturedStepsEqualEagerOnesBitForBit) {
  constexpr u32 kSteps = 25;
  const ml::CosineScheduler schedule(0.1, 0.001, kSteps);
  std::vector<std::vector<std::vector<f32>>> ends;
  for (const bool captured : {false, true}) {
    const Model model = make_model(engine(), kSmall);
    const auto o = kind().make(model.parameters);
    const auto step = [&]() -> std::vector<Matrix> {
      o->zero_grad();
      ml::GradientTape tape;
      Matrix loss = matrix::full(engine(), {}, 0);
      for (const Parameter& p : model.parameters) {
        loss = loss + matrix::sum(p.data() * p.data() * p.data());
      }
      tape.backward(loss);
      o->step_if_finite(ml::clip_grad_norm(std::span<const Parameter>(model.parameters), 1));
      return {loss};
    };
    ExecutionPlan plan;
    if (captured) {
      plan = engine().capture(step);
      EXPECT_EQ(o->step_count(), 0u);
    }
    for (u32 t = 0; t < kSteps; ++t) {
      o->set_learning_rate(schedule.rate(t));
      if (captured) {
        engine().submit(plan);
        o->count_replays(1);
      } else {
        step();
        engine().flush();
      }
    }
    EXPECT_EQ(o->step_count(), kSteps);
    EXPECT_EQ(o->checkpoint_state().step, kSteps);
    ends.push_back(values_of(model.parameters));
  }
  EXPECT_EQ(ends[0], ends[1]);
}

INSTANTIATE_TEST_SUITE_P(Kinds, OptimState, testing::Range(size_t{0}, kinds().size()),
                         [](const auto& i) { return kinds()[i.param].name; });

TEST(OptimStateRefusals, StatesThatDoNotFitChangeNothing) {
  Engine& e = *open_device("cpu").engine;
  const Model model = make_model(e, {{3}});
  ml::AdamW o(model.parameters, 0.1);
  set_gradients(e, model.parameters, 1);
  o.step();
  const ml::OptimizerState good = o.checkpoint_state();
  const auto text = [&](auto change) {
    ml::OptimizerState s = good;
    s.step = 40;
    change(s);
    const std::string t = error_of([&] { o.restore_checkpoint_state(s); });
    EXPECT_EQ(o.step_count(), 1u);
    EXPECT_EQ(o.checkpoint_state().first_moment, good.first_moment);
    return t;
  };
  EXPECT_EQ(text([](auto& s) { s.kind = "SGD"; }),
            "AdamW: the state is of another optimizer, got SGD, expected AdamW");
  EXPECT_EQ(text([](auto& s) { s.first_moment.pop_back(); }),
            "AdamW: moments of the state do not fit, got 2 numbers, expected 3");
  EXPECT_EQ(text([](auto& s) { s.step = -1; }),
            "AdamW: bad step in the state, got -1, expected 0 to 4294967295");
  EXPECT_EQ(text([](auto& s) { s.beta1 = 1; }),
            "AdamW: bad beta1 in the state, got 1, expected 0 or more and less than 1");
  EXPECT_EQ(text([](auto& s) { s.learning_rate = -1; }),
            "AdamW: bad learning rate in the state, got -1, expected a finite number of 0 or more");
  ml::OptimizerState fresh = good;  // no moments: they start at 0
  fresh.step = 0;
  fresh.first_moment.clear();
  fresh.second_moment.clear();
  o.restore_checkpoint_state(fresh);
  EXPECT_EQ(o.checkpoint_state().first_moment, std::vector<f32>(3));
  ml::Sgd sgd(model.parameters, 0.1);
  ml::OptimizerState s = sgd.checkpoint_state();
  s.beta1 = 0.5;
  EXPECT_EQ(error_of([&] { sgd.restore_checkpoint_state(s); }),
            "SGD: the state does not fit, got momentum 0.5, expected 0");
}

TEST(OptimRefusals, Constructors) {
  Engine& e = *open_device("cpu").engine;
  Engine other = Engine::open({.device = "cpu"});
  const Parameter p = Parameter::create("p", Matrix::from_f32(e, {1}, std::vector<f32>{1}));
  const Parameter q = Parameter::create("q", Matrix::from_f32(other, {1}, std::vector<f32>{1}));
  const Parameter d = Parameter::create("d", Matrix::from_slice<f64>(e, {1}, std::vector<f64>{1}));
  const auto text = [](auto&& f) { return error_of(f); };
  using List = std::vector<Parameter>;
  EXPECT_EQ(text([&] { ml::AdamW(List{}, 0.1); }),
            "AdamW: no parameters, got an empty list, expected one or more");
  EXPECT_EQ(text([&] { ml::Sgd(List{p, p}, 0.1); }),
            "SGD: parameter \"p\" is listed twice, expected every parameter once");
  EXPECT_EQ(text([&] { ml::Adam(List{p, q}, 0.1); }),
            "Adam: parameter \"q\" belongs to another engine, expected parameters of one engine");
  EXPECT_EQ(text([&] { ml::Muon(List{p, d}, 0.1); }),
            "Muon: parameter \"d\" has the wrong dtype, got f64, expected f32");
  EXPECT_EQ(text([&] { ml::Adam(List{Parameter()}, 0.1); }),
            "Adam: parameter 0 is empty, expected one with elements");
  for (const f64 bad : {-1.0, std::nan(""), 1e300}) {
    EXPECT_EQ(text([&] { ml::AdamW(List{p}, bad); }),
              fmt::format("AdamW: bad learning rate, got {}, expected a finite number of 0 or more",
                          bad));
  }
  EXPECT_EQ(text([&] { ml::AdamW(List{p}, 0.1, -0.5); }),
            "AdamW: bad weight decay, got -0.5, expected a finite number of 0 or more");
  EXPECT_EQ(text([&] { ml::Sgd(List{p}, 0.1, -0.5); }),
            "SGD: bad momentum, got -0.5, expected a finite number of 0 or more");
  EXPECT_EQ(text([&] { ml::Adam::with_hyperparameters(List{p}, 0.1, 1, 0.9, 1e-8); }),
            "Adam: bad beta1, got 1, expected 0 or more and less than 1");
  EXPECT_EQ(text([&] { ml::Adam::with_hyperparameters(List{p}, 0.1, 0.9, -0.1, 1e-8); }),
            "Adam: bad beta2, got -0.1, expected 0 or more and less than 1");
  EXPECT_EQ(text([&] { ml::Adam::with_hyperparameters(List{p}, 0.1, 0.9, 0.9, 0); }),
            "Adam: bad epsilon, got 0, expected a positive number");
  EXPECT_EQ(text([&] { ml::Muon::with_hyperparameters(List{p}, 0.1, 1, 0, 1e-7, 5); }),
            "Muon: bad beta, got 1, expected 0 or more and less than 1");
  using Groups = std::vector<ml::ParameterGroup>;
  EXPECT_EQ(text([&] { ml::AdamW(Groups{{{p}, -1, {}}}, 0.1); }),
            "AdamW: bad rate scale, got -1, expected a finite number of 0 or more");
  EXPECT_EQ(text([&] { ml::AdamW(Groups{{{p}, 1, -1.0}}, 0.1); }),
            "AdamW: bad weight decay, got -1, expected a finite number of 0 or more");
  EXPECT_EQ(text([&] { ml::Adam(Groups{{{p}, 1, 0.1}}, 0.1); }),
            "Adam: a group has weight decay, got 0.1, expected none (AdamW has it)");
  ml::AdamW o(List{p}, 0.1);
  EXPECT_TRUE(o.belongs_to(e));
  EXPECT_FALSE(o.belongs_to(other));
  EXPECT_EQ(text([&] { o.set_learning_rate(-1); }),
            "AdamW: bad learning rate, got -1, expected a finite number of 0 or more");
  EXPECT_EQ(text([&] {
              e.capture([&]() -> std::vector<Matrix> {
                o.set_learning_rate(1);
                return {};
              });
            }),
            "AdamW: set_learning_rate during a capture would repeat at each replay, expected it "
            "between submissions");
  EXPECT_EQ(o.learning_rate(), 0.1);
  EXPECT_EQ(text([&] { o.step_if_finite(p.data().to(DType::F64)); }),
            "AdamW: bad value for step_if_finite, got f64 [1], expected f32 with one element");
  EXPECT_EQ(text([&] { o.step_if_finite(q.data()); }),
            "AdamW: the value for step_if_finite belongs to another engine, expected the "
            "parameters'");
  EXPECT_EQ(o.step_count(), 0u);
}

class Tree final : public ml::Module {
 public:
  Matrix forward(const Matrix& x) override { return x; }
  Parameter add(const Engine& e, const std::string& name, const Shape& shape) {
    return registry().register_parameter(
        name, Parameter::create(
                  name, Matrix::from_f32(e, shape,
                                         std::vector<f32>(static_cast<size_t>(shape.elements())))));
  }
};

TEST(OptimMuonSplit, TakesTrainableMatricesOutsideOfEmbeddingsAndHeads) {
  Engine& e = *open_device("cpu").engine;
  Tree root;
  const Parameter weight = root.add(e, "weight", {2, 3});
  root.add(e, "vector", {3});
  root.add(e, "cube", {2, 2, 2});
  root.add(e, "bias", {2, 2});
  const Parameter heads = root.add(e, "heads", {2, 2});  // not a segment of the list
  root.add(e, "frozen", {2, 2}).set_requires_grad(false);
  const auto child = root.registry().register_module("lm_head", std::make_shared<Tree>());
  child->add(e, "weight", {2, 2});
  const auto block = root.registry().register_module("block", std::make_shared<Tree>());
  const Parameter inner = block->add(e, "weight", {3, 2});
  const ml::MuonSplit split = ml::muon_split(root);
  EXPECT_EQ(split.matrices, (std::vector<Parameter>{weight, heads, inner}));
  ASSERT_EQ(split.others.size(), 4u);
  EXPECT_EQ(split.others[0].name(), "vector");
  EXPECT_EQ(split.others[2].name(), "bias");
  EXPECT_EQ(split.others[3].name(), "weight");
}

}  // namespace
}  // namespace oa::test
