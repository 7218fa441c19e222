#include "oa/ml/optim/no_op.h"

#include "oa/ml/optim/optimizer_base.h"

namespace oa::ml {

NoOpOptimizer::NoOpOptimizer(f64 rate) : rate_(rate) {
  need_rate("NoOpOptimizer", "learning rate", rate);
}

void NoOpOptimizer::set_learning_rate(f64 rate) {
  need_rate("NoOpOptimizer", "learning rate", rate);
  rate_ = rate;
}

}  // namespace oa::ml
