#include "oa/ml/training/metric.h"

namespace oa::ml::training {

void LossMetric::reset() {
  count_ = 0;
  sum_ = 0;
  last_ = std::numeric_limits<f64>::quiet_NaN();
}

void LossMetric::update_step(f64 loss, const TrainingSnapshot& /*snapshot*/) {
  count_ += 1;
  sum_ += loss;
  last_ = loss;
}

f64 LossMetric::mean() const {
  return count_ == 0 ? std::numeric_limits<f64>::quiet_NaN() : sum_ / static_cast<f64>(count_);
}

}  // namespace oa::ml::training
