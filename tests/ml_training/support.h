// A small classifier with dropout, the optimizers to train it with, and a step for each step
// number.
#pragma once

#include <bit>
#include <functional>

#include "oa/matrix/elementwise.h"
#include "oa/matrix/random.h"
#include "oa/matrix/reduce.h"
#include "oa/matrix/transcendental.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/loss/cross_entropy.h"
#include "oa/ml/nn/basic.h"
#include "oa/ml/nn/linear.h"
#include "oa/ml/optim/adam.h"
#include "oa/ml/optim/clip.h"
#include "oa/ml/optim/moving_average.h"
#include "oa/ml/optim/muon.h"
#include "oa/ml/optim/no_op.h"
#include "oa/ml/optim/sgd.h"
#include "oa/ml/training/training_program.h"
#include "tests/matrix/devices.h"

namespace oa::test {

using Bits = std::vector<u32>;
using Parameters = std::vector<ml::Parameter>;
using MakeOptimizer = std::function<std::unique_ptr<ml::Optimizer>(const Parameters&)>;

class Net final : public ml::Module {
 public:
  explicit Net(const Engine& e, f64 p = 0.3)
      : first_(registry().register_module("first", ml::nn::Linear::with_seed(e, 6, 9, 1))),
        dropout_(registry().register_module("dropout", ml::nn::Dropout::with_seed(e, p, 3))),
        last_(registry().register_module("last", ml::nn::Linear::with_seed(e, 9, 5, 2))) {}
  Matrix forward(const Matrix& x) override {
    return last_->forward(dropout_->forward(oa::matrix::tanh(first_->forward(x))));
  }

 private:
  std::shared_ptr<ml::nn::Linear> first_;
  std::shared_ptr<ml::nn::Dropout> dropout_;
  std::shared_ptr<ml::nn::Linear> last_;
};

struct OptimizerKind {
  const char* name;
  MakeOptimizer make;
};

inline const std::vector<OptimizerKind>& optimizer_kinds() {
  static const std::vector<OptimizerKind> list = {
      {"Sgd", [](const auto& p) { return std::make_unique<ml::Sgd>(p, 0.1, 0, 0.1); }},
      {"Momentum", [](const auto& p) { return std::make_unique<ml::Sgd>(p, 0.1, 0.9, 0.1); }},
      {"Adam", [](const auto& p) { return std::make_unique<ml::Adam>(p, 0.1); }},
      {"AdamW", [](const auto& p) { return std::make_unique<ml::AdamW>(p, 0.1, 0.3); }},
      {"Muon", [](const auto& p) { return std::make_unique<ml::Muon>(p, 0.1); }},
      {"NoOp", [](const auto&) { return std::make_unique<ml::NoOpOptimizer>(0.1); }},
  };
  return list;
}

inline std::vector<f32> inputs_of(u32 step, size_t n = 24) { return random_f32(step + 1, n); }
inline std::vector<u32> targets_of(u32 step, size_t n = 4) {
  std::vector<u32> t(n);
  for (size_t i = 0; i < n; ++i) t[i] = static_cast<u32>((step * 7 + i * 3) % 5);
  return t;
}

inline void add_bits(Bits& bits, const Matrix& m) {
  for (const f32 x : m.read_f32()) bits.push_back(std::bit_cast<u32>(x));
}

}  // namespace oa::test
