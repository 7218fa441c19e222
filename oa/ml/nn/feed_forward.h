// Gated feed-forward layers.
#pragma once

#include <optional>

#include "oa/ml/nn/basic.h"
#include "oa/ml/nn/linear.h"

namespace oa::ml::nn {

// down(silu(gate x) up x) (Shazeer, 2020).
class Swiglu final : public Module {
 public:
  // Xavier weights with seed, seed + 1 and seed + 2; biases of zeros if asked for.
  static std::shared_ptr<Swiglu> with_seed(const Engine& engine, i64 input_features,
                                           i64 intermediate_size, bool bias, u64 seed);
  Matrix forward(const Matrix& input) override;  // [..., I] -> [..., I]
  i64 input_features() const { return gate_weight_.data().shape()[1]; }
  i64 intermediate_size() const { return gate_weight_.data().shape()[0]; }

 private:
  Swiglu(const Engine& engine, i64 input, i64 hidden, bool bias, u64 seed);
  Parameter gate_weight_, up_weight_, down_weight_;
  std::optional<Parameter> gate_bias_, up_bias_, down_bias_;
};

// x + down(swiglu(gate n, up n)) with n = norm(x), an RmsNorm. Children norm, gate, up, down.
class Ffn final : public Module {
 public:
  static std::shared_ptr<Ffn> with_seed(const Engine& engine, i64 width, i64 hidden, f64 epsilon,
                                        u64 seed);
  Matrix forward(const Matrix& input) override;

 private:
  Ffn(const Engine& engine, i64 width, i64 hidden, f64 epsilon, u64 seed);
  std::shared_ptr<RmsNorm> norm_;
  std::shared_ptr<Linear> gate_, up_, down_;
};

}  // namespace oa::ml::nn
