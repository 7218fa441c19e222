// LearningRateScheduler: gives the optimizer the learning rate of every step.
#pragma once

#include <memory>

#include "oa/ml/optim/schedule.h"
#include "oa/ml/training/callback.h"

namespace oa::ml::training {

// Before the first step the rate is rate(initial_step), after step s rate(s): the rate of the step
// that follows. Register it after callbacks that report the rate of a step.
class LearningRateScheduler final : public TrainingCallback {
 public:
  explicit LearningRateScheduler(std::shared_ptr<const LrScheduler> schedule);
  const LrScheduler& schedule() const { return *schedule_; }

  TrainingControl on_train_begin(const TrainingCallbackContext& context) override;
  TrainingControl on_step_end(const TrainingCallbackContext& context) override;

 private:
  std::shared_ptr<const LrScheduler> schedule_;
};

}  // namespace oa::ml::training
