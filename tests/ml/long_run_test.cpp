// Ten thousand steps with validation and a shorter last batch in every epoch: no memory that grows,
// nothing compiled after the first epoch, and the bits of another run.
#include <gtest/gtest.h>

#include "oa/matrix/reduce.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/loss/cross_entropy.h"
#include "oa/ml/nn/basic.h"
#include "oa/ml/nn/linear.h"
#include "oa/ml/optim/adam.h"
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

}  // namespace
}  // namespace oa::test
