// Adam and AdamW.
#pragma once

#include "oa/ml/optim/optimizer_base.h"

namespace oa::ml {

struct AdamOptions {
  f64 beta1 = 0.9;  // 0 <= beta < 1
  f64 beta2 = 0.999;
  f64 epsilon = 1e-8;  // above 0
};

// m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2, and with t the number of the step:
//   p = p (1 - rate decay) - rate (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)
class AdamFamily : public OptimizerBase {
 public:
  f64 beta1() const { return options_.beta1; }
  f64 beta2() const { return options_.beta2; }
  f64 epsilon() const { return options_.epsilon; }

 protected:
  AdamFamily(std::string_view kind, std::vector<ParameterGroup> groups, f64 rate,
             const AdamOptions& options, f64 weight_decay);
  void update(std::span<const u32> live, const Matrix& guard) override;
  OptimizerState hyperparameters() const override;
  void check_hyperparameters(const OptimizerState& state) const override;
  void set_hyperparameters(const OptimizerState& state) override;

 private:
  void make_attributes();
  AdamOptions options_;
  std::vector<Matrix> first_, second_;
  graph::AttrsPtr coefficients_, first_attrs_, second_attrs_;
  std::vector<graph::AttrsPtr> attrs_;  // per group
};

// Without decay. A group's weight decay is an error (InvalidArgument).
class Adam final : public AdamFamily {
 public:
  Adam(std::vector<Parameter> parameters, f64 rate, const AdamOptions& options = {})
      : Adam(one_group(std::move(parameters)), rate, options) {}
  Adam(std::vector<ParameterGroup> groups, f64 rate, const AdamOptions& options = {});
  static Adam create(std::vector<Parameter> parameters, f64 rate) {
    return Adam(std::move(parameters), rate);
  }
  static Adam with_hyperparameters(std::vector<Parameter> parameters, f64 rate, f64 beta1,
                                   f64 beta2, f64 epsilon) {
    return Adam(std::move(parameters), rate, {beta1, beta2, epsilon});
  }
};

// Decay first, on the parameter itself, scaled by the rate.
class AdamW final : public AdamFamily {
 public:
  AdamW(std::vector<Parameter> parameters, f64 rate, f64 weight_decay = 0.01,
        const AdamOptions& options = {})
      : AdamW(one_group(std::move(parameters)), rate, weight_decay, options) {}
  AdamW(std::vector<ParameterGroup> groups, f64 rate, f64 weight_decay = 0.01,
        const AdamOptions& options = {})
      : AdamFamily("AdamW", std::move(groups), rate, options, weight_decay) {}
  static AdamW create(std::vector<Parameter> parameters, f64 rate) {
    return AdamW(std::move(parameters), rate);
  }
  static AdamW with_hyperparameters(std::vector<Parameter> parameters, f64 rate, f64 beta1,
                                    f64 beta2, f64 epsilon, f64 weight_decay) {
    return AdamW(std::move(parameters), rate, weight_decay, {beta1, beta2, epsilon});
  }
};

}  // namespace oa::ml
