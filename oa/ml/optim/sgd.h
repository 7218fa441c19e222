// Stochastic gradient descent, with momentum and weight decay.
#pragma once

#include "oa/ml/optim/optimizer_base.h"

namespace oa::ml {

// g' = g + decay p;  momentum 0: p -= rate g';  else m = momentum m + g', p -= rate m (PyTorch's
// form: the decay takes part in the momentum and is scaled by the rate).
class Sgd final : public OptimizerBase {
 public:
  // All numbers finite and 0 or more; errors as OptimizerBase says.
  Sgd(std::vector<Parameter> parameters, f64 rate, f64 momentum = 0, f64 weight_decay = 0)
      : Sgd(one_group(std::move(parameters)), rate, momentum, weight_decay) {}
  Sgd(std::vector<ParameterGroup> groups, f64 rate, f64 momentum = 0, f64 weight_decay = 0);
  static Sgd create(std::vector<Parameter> parameters, f64 rate, f64 momentum, f64 weight_decay) {
    return Sgd(std::move(parameters), rate, momentum, weight_decay);
  }

  f64 momentum() const { return momentum_; }

 protected:
  void update(std::span<const u32> live, const Matrix& guard) override;
  OptimizerState hyperparameters() const override;
  void check_hyperparameters(const OptimizerState& state) const override;
  void set_hyperparameters(const OptimizerState& state) override;

 private:
  void make_attributes();
  f64 momentum_;
  std::vector<Matrix> moments_;                   // with momentum
  std::vector<graph::AttrsPtr> attrs_, momenta_;  // per group
};

}  // namespace oa::ml
