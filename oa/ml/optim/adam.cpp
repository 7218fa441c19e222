#include "oa/ml/optim/adam.h"

#include <cmath>

#include "oa/ml/optim/update_ops.h"

namespace oa::ml {
namespace {

std::vector<ParameterGroup> without_decay(std::vector<ParameterGroup> groups) {
  for (const ParameterGroup& g : groups) {
    if (g.weight_decay && *g.weight_decay != 0) {
      invalid("Adam", "a group has weight decay, got {}, expected none (AdamW has it)",
              *g.weight_decay);
    }
  }
  return groups;
}

}  // namespace

Adam::Adam(std::vector<ParameterGroup> groups, f64 rate, const AdamOptions& options)
    : AdamFamily("Adam", without_decay(std::move(groups)), rate, options, 0) {}

AdamFamily::AdamFamily(std::string_view kind, std::vector<ParameterGroup> groups, f64 rate,
                       const AdamOptions& options, f64 weight_decay)
    : OptimizerBase(kind, std::move(groups), rate, weight_decay), options_(options) {
  need_fraction(kind, "beta1", options.beta1);
  need_fraction(kind, "beta2", options.beta2);
  need_positive(kind, "epsilon", options.epsilon);
  first_ = make_moments();
  second_ = make_moments();
  hold_moments(&first_, &second_);
  make_attributes();
}

void AdamFamily::make_attributes() {
  const f64 b1 = options_.beta1, b2 = options_.beta2;
  coefficients_ = graph::make_attrs<AdamCoefficients>({std::log(b1), std::log(b2)});
  first_attrs_ = graph::make_attrs<MomentUpdate>({b1, 1 - b1});
  second_attrs_ = graph::make_attrs<SquareMomentUpdate>({b2, 1 - b2});
  attrs_.clear();
  for (const Group& g : groups_) {
    attrs_.push_back(graph::make_attrs<AdamUpdate>({g.rate_scale, decay_of(g), options_.epsilon}));
  }
}

void AdamFamily::update(std::span<const u32> live, const Matrix& guard) {
  const Matrix coefficients =
      record(graph::op_def<AdamCoefficients>(), coefficients_, {rates_, step_});
  for (const u32 i : live) {
    const Matrix& p = parameters_[i].data();
    const Matrix g = gradient(i);
    const Matrix m = record(graph::op_def<MomentUpdate>(), first_attrs_, {first_[i], g, guard});
    const Matrix v =
        record(graph::op_def<SquareMomentUpdate>(), second_attrs_, {second_[i], g, guard});
    const Matrix next =
        record(graph::op_def<AdamUpdate>(), attrs_[group_of_[i]], {p, m, v, coefficients, guard});
    first_[i].assign(m);
    second_[i].assign(v);
    p.assign(next);
  }
}

OptimizerState AdamFamily::hyperparameters() const {
  return {.beta1 = static_cast<f32>(options_.beta1),
          .beta2 = static_cast<f32>(options_.beta2),
          .epsilon = static_cast<f32>(options_.epsilon)};
}

void AdamFamily::check_hyperparameters(const OptimizerState& state) const {
  need_fraction(kind_, "beta1 in the state", static_cast<f64>(state.beta1));
  need_fraction(kind_, "beta2 in the state", static_cast<f64>(state.beta2));
  need_positive(kind_, "epsilon in the state", static_cast<f64>(state.epsilon));
}

void AdamFamily::set_hyperparameters(const OptimizerState& state) {
  options_ = {restored(state.beta1, options_.beta1), restored(state.beta2, options_.beta2),
              restored(state.epsilon, options_.epsilon)};
  make_attributes();
}

}  // namespace oa::ml
