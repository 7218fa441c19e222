// Ten thousand steps with validation and a shorter last batch in every epoch: no memory that grows,
// nothing compiled after the first epoch, and the bits of another run.
#include <gtest/gtest.h>

#include "oa/matrix/reduce.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/loss/cross_entropy.h"
#include "oa/ml/nn/basic.h"
#include "oa/ml/nn/linear.h"
#include "oa/ml/nn/recurrent.h"
#include "oa/ml/nn/transformer.h"
#include "oa/ml/optim/adam.h"
#include "oa/ml/optim/sgd.h"
#include "tests/matrix/devices.h"

namespace oa::test {
namespace {

struct Snapshot {
  u64 values, device, arena, programs;
};

std::vector<f32> train(Engine& e, int steps, std::vector<Snapshot>* snapshots) {
  ml::nn::Sequential model;
  model.add(ml::nn::Linear::with_seed(e, 6, 8, 1)).add(std::make_shared<ml::nn::Gelu>());
  model.add(ml::nn::Dropout::with_seed(e, 0.1, 2)).add(ml::nn::Linear::with_seed(e, 8, 3, 3));
  ml::AdamW optimizer(model.all_parameters(), 1e-3);
  constexpr int kEpoch = 50;
  for (int step = 0; step < steps; ++step) {
    const i64 batch = step % kEpoch == kEpoch - 1 ? 3 : 8;
    const auto count = static_cast<size_t>(batch);
    const Matrix x = Matrix::from_f32(e, {batch, 6}, random_f32(static_cast<u32>(step), count * 6));
    const Matrix y =
        Matrix::from_slice<i32>(e, {batch}, random_i32(static_cast<u32>(step), count, 0, 2));
    optimizer.set_learning_rate(1e-3 / (1 + step));
    optimizer.zero_grad();
    {
      ml::GradientTape tape;
      const Matrix loss = ml::loss::cross_entropy(model.forward(x), y);
      tape.backward(loss);
      optimizer.step();
      (void)loss.item();
    }
    if (step % kEpoch == kEpoch - 1) {
      const ml::NoGrad quiet;
      const auto eval = model.scoped_eval();
      (void)ml::loss::cross_entropy(model.forward(x), y).item();
      optimizer.zero_grad();
      const MemoryUse use = e.memory();
      if (snapshots) {
        snapshots->push_back({use.values_bytes, use.device.allocated_bytes, use.arena_bytes,
                              e.counters().programs_compiled});
      }
    }
  }
  std::vector<f32> all;
  for (const auto& p : model.all_parameters()) {
    const auto values = p.data().read_f32();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

TEST(LongRun, MemoryIsFlatAndNothingCompiles) {
  Engine e = Engine::open({.device = "cpu"});
  std::vector<Snapshot> s;
  train(e, 10'000, &s);
  for (size_t i = 2; i < s.size(); ++i) {
    ASSERT_EQ(s[i].values, s[1].values) << i;
    ASSERT_EQ(s[i].device, s[1].device) << i;
    ASSERT_EQ(s[i].arena, s[1].arena) << i;
    ASSERT_EQ(s[i].programs, s[1].programs) << i;
  }
}

TEST(LongRun, EveryRunHasTheSameBits) {
  std::vector<f32> first;
  for (u32 threads : {1, 2, 1, 2, 2}) {
    EngineOptions options{.device = "cpu"};
    options.device_options.threads = threads;
    Engine e = Engine::open(options);
    const auto values = train(e, 120, nullptr);
    if (first.empty()) first = values;
    EXPECT_EQ(values, first) << threads;
  }
}

// Tokens repeat, so many rows add to one row of the embedding's gradient.
std::vector<f32> train_language_model(Engine& e, u32 steps) {
  const auto model = ml::nn::Transformer::with_seed(e, 11, 8, 16, 16, 2, 1, 1e-5, 3);
  const auto cell = ml::nn::Gru::with_seed(e, 11, 7, 1, true, 4);
  std::vector<ml::Parameter> parameters = model->all_parameters();
  for (const ml::Parameter& p : cell->all_parameters()) parameters.push_back(p);
  ml::AdamW optimizer(parameters, 1e-2);
  for (u32 step = 0; step < steps; ++step) {
    const Matrix x = Matrix::from_slice<i32>(e, {5, 8}, random_i32(step, 40, 0, 10));
    const Matrix y = Matrix::from_slice<i32>(e, {40}, random_i32(100 + step, 40, 0, 6));
    optimizer.zero_grad();
    ml::GradientTape tape;
    const Matrix logits = cell->forward(model->forward(x).reshape({5, 8, 11})).reshape({40, 7});
    tape.backward(ml::loss::cross_entropy(logits, y));
    optimizer.step();
    e.flush();
  }
  std::vector<f32> all;
  for (const ml::Parameter& p : parameters) {
    const auto values = p.data().read_f32();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

// Steps that nobody waits for are one program, whose equal updates run side by side.
TEST(LongRun, StepsInOneProgramAreThoseInMany) {
  for (const bool adam : {true, false}) {
    std::vector<std::vector<f32>> results;
    for (const bool wait : {true, false}) {
      Engine e = Engine::open({.device = "cpu"});
      ml::nn::Sequential model;
      model.add(ml::nn::Embedding::with_seed(e, 11, 16, 3)).add(ml::nn::LayerNorm::create(e, 16));
      model.add(ml::nn::Linear::with_seed(e, 16, 16, 4))
          .add(ml::nn::Linear::with_seed(e, 16, 11, 5));
      std::unique_ptr<ml::Optimizer> optimizer;
      if (adam) {
        optimizer = std::make_unique<ml::AdamW>(model.all_parameters(), 1e-2);
      } else {
        optimizer = std::make_unique<ml::Sgd>(model.all_parameters(), 1e-2, 0.9, 0.01);
      }
      for (u32 step = 0; step < 5; ++step) {
        const Matrix x = Matrix::from_slice<i32>(e, {40}, random_i32(step, 40, 0, 10));
        const Matrix y = Matrix::from_slice<i32>(e, {40}, random_i32(100 + step, 40, 0, 10));
        optimizer->zero_grad();
        ml::GradientTape tape;
        tape.backward(ml::loss::cross_entropy(model.forward(x), y));
        optimizer->step();
        if (wait) e.wait();
      }
      results.emplace_back();
      for (const ml::Parameter& p : model.all_parameters()) {
        for (const f32 v : p.data().read_f32()) results.back().push_back(v);
      }
    }
    for (size_t i = 0; i < results[0].size(); ++i) {
      ASSERT_NEAR(results[0][i], results[1][i], 1e-4f) << adam << " " << i;
    }
  }
}

TEST(LongRun, LanguageModelsHaveTheSameBitsInEveryRun) {
  const auto same = [](const std::string& device, const std::vector<u32>& threads, u32 steps) {
    std::vector<f32> first;
    for (u32 t : threads) {
      EngineOptions options{.device = device};
      options.device_options.threads = t;
      Engine e = Engine::open(options);
      const auto values = train_language_model(e, steps);
      if (first.empty()) first = values;
      EXPECT_EQ(values, first) << device << " " << t;
    }
  };
  same("cpu", {1, 2, 1, 2, 2}, 20);
  if (open_device("lavapipe").engine) same(device_under_test("lavapipe"), {0, 0}, 3);
}

}  // namespace
}  // namespace oa::test
