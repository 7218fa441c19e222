#include "oa/ml/optim/sgd.h"

#include "oa/ml/optim/update_ops.h"

namespace oa::ml {

Sgd::Sgd(std::vector<ParameterGroup> groups, f64 rate, f64 momentum, f64 weight_decay)
    : OptimizerBase("SGD", std::move(groups), rate, weight_decay), momentum_(momentum) {
  need_rate(kind_, "momentum", momentum);
  if (momentum > 0) {
    moments_ = make_moments();
    hold_moments(&moments_, nullptr);
  }
  make_attributes();
}

void Sgd::make_attributes() {
  attrs_.clear();
  momenta_.clear();
  for (const Group& g : groups_) {
    // With momentum the decay is in the moment already.
    attrs_.push_back(graph::make_attrs<SgdUpdate>({g.rate_scale, momentum_ > 0 ? 0 : decay_of(g)}));
    momenta_.push_back(graph::make_attrs<SgdMomentum>({momentum_, decay_of(g)}));
  }
}

void Sgd::update(std::span<const u32> live, const Matrix& guard) {
  for (const u32 i : live) {
    const Matrix& p = parameters_[i].data();
    const u32 group = group_of_[i];
    Matrix step = gradient(i);
    if (momentum_ > 0) {
      step = record(graph::op_def<SgdMomentum>(), momenta_[group], {moments_[i], step, p, guard});
    }
    const Matrix next =
        record(graph::op_def<SgdUpdate>(), attrs_[group], {p, step, guard, rates_, step_});
    if (momentum_ > 0) moments_[i].assign(step);
    p.assign(next);
  }
}

OptimizerState Sgd::hyperparameters() const { return {.beta1 = static_cast<f32>(momentum_)}; }

void Sgd::check_hyperparameters(const OptimizerState& state) const {
  need_rate(kind_, "momentum in the state", static_cast<f64>(state.beta1));
  if ((state.beta1 > 0) != (momentum_ > 0)) {
    invalid(kind_, "the state does not fit, got momentum {}, expected {}", state.beta1,
            momentum_ > 0 ? "one above 0" : "0");
  }
}

void Sgd::set_hyperparameters(const OptimizerState& state) {
  momentum_ = restored(state.beta1, momentum_);
  make_attributes();
}

}  // namespace oa::ml
