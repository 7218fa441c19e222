// An optimizer that changes nothing, for loops whose body changes the parameters itself.
#pragma once

#include "oa/ml/optim/optimizer.h"

namespace oa::ml {

// Belongs to every engine; its count of steps stays 0.
class NoOpOptimizer final : public Optimizer {
 public:
  explicit NoOpOptimizer(f64 rate = 0);
  static NoOpOptimizer create(f64 rate) { return NoOpOptimizer(rate); }

  void zero_grad() override {}
  void step() override {}
  void step_if_finite(const Matrix&) override {}
  f64 learning_rate() const override { return rate_; }
  void set_learning_rate(f64 rate) override;
  u64 step_count() const override { return 0; }
  void count_replays(u64) override {}
  bool belongs_to(const Engine&) const override { return true; }

 private:
  f64 rate_;
};

}  // namespace oa::ml
