#include "oa/ml/optim/moving_average.h"

#include "oa/engine/engine_core.h"
#include "oa/matrix/elementwise.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/optim/optimizer_base.h"
#include "oa/ml/optim/update_ops.h"
#include "oa/ml/parameter_state.h"

namespace oa::ml {
namespace {

constexpr std::string_view kOp = "ExponentialMovingAverage";

// A copy with memory of its own.
std::vector<Matrix> copies_of(const std::vector<Parameter>& parameters) {
  const NoGrad off;
  std::vector<Matrix> list;
  list.reserve(parameters.size());
  for (const Parameter& p : parameters) list.push_back(matrix::copy(p.data()));
  if (!list.empty()) static_cast<EngineCore&>(list[0].tensor()->recorder()).flush();
  return list;
}

}  // namespace

ExponentialMovingAverage::ExponentialMovingAverage(const Module& module, f64 decay)
    : ExponentialMovingAverage(module.all_parameters(), decay) {}

ExponentialMovingAverage::ExponentialMovingAverage(std::vector<Parameter> parameters, f64 decay)
    : parameters_(std::move(parameters)), decay_(decay) {
  need_fraction(kOp, "decay", decay);
  if (parameters_.empty()) invalid(kOp, "no parameters, got an empty list, expected one or more");
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = parameters_[i];
    if (!p.valid()) invalid(kOp, "parameter {} is empty, expected one with elements", i);
    if (p.data().dtype() != DType::F32) {
      invalid(kOp, "parameter \"{}\" has the wrong dtype, got {}, expected f32", p.name(),
              token(p.data().dtype()));
    }
  }
  averages_ = copies_of(parameters_);
}

void ExponentialMovingAverage::update() {
  if (shown_) fail(ErrorKind::FailedPrecondition, kOp, "update() while the averages are shown");
  const NoGrad off;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    averages_[i].assign(
        matrix::record<AverageUpdate>({averages_[i], parameters_[i].data()}, {decay_, 1 - decay_}));
  }
}

ExponentialMovingAverage::Scope::Scope(ExponentialMovingAverage& average) : average_(average) {
  if (average.shown_) {
    fail(ErrorKind::FailedPrecondition, kOp, "scope() while the averages are shown already");
  }
  weights_ = copies_of(average.parameters_);
  for (size_t i = 0; i < weights_.size(); ++i) {
    average.parameters_[i].replace_data(average.averages_[i]);
  }
  for (const Parameter& p : average.parameters_) ++TapeAccess::shown_averages(p);
  average.shown_ = true;
}

ExponentialMovingAverage::Scope::~Scope() {
  average_.shown_ = false;
  for (const Parameter& p : average_.parameters_) --TapeAccess::shown_averages(p);
  try {
    for (size_t i = 0; i < weights_.size(); ++i) {
      average_.parameters_[i].replace_data(weights_[i]);
    }
  } catch (const Error&) {
    // Only a closed engine refuses, and then nobody sees the weights any more.
  }
}

void ExponentialMovingAverage::restore(const std::vector<Matrix>& averages) {
  if (averages.size() != averages_.size()) {
    invalid(kOp, "bad number of averages, got {}, expected {}", averages.size(), averages_.size());
  }
  for (size_t i = 0; i < averages.size(); ++i) {
    const Matrix& own = averages_[i];
    const Matrix& x = averages[i];
    if (!x.valid() || x.shape() != own.shape() || x.dtype() != DType::F32 ||
        &x.tensor()->recorder() != &own.tensor()->recorder()) {
      invalid(kOp, "average {} does not fit, expected f32 {} of the same engine", i, own.shape());
    }
  }
  const NoGrad off;
  for (size_t i = 0; i < averages.size(); ++i) averages_[i].assign(averages[i]);
}

}  // namespace oa::ml
