#include "oa/ml/training/metric.h"

#include "oa/ml/training/state_text.h"

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

std::string LossMetric::save_state() const {
  return nlohmann::json{{"count", count_}, {"sum", to_state(sum_)}, {"last", to_state(last_)}}
      .dump();
}

void LossMetric::load_state(std::string_view text) {
  const StateReader state("LossMetric", text);
  const u64 count = state.natural("count");
  const f64 sum = state.number("sum"), last = state.number("last");
  count_ = count;
  sum_ = sum;
  last_ = last;
}

f64 LossMetric::mean() const {
  return count_ == 0 ? std::numeric_limits<f64>::quiet_NaN() : sum_ / static_cast<f64>(count_);
}

}  // namespace oa::ml::training
