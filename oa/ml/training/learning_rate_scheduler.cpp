#include "oa/ml/training/learning_rate_scheduler.h"

#include "oa/core/error.h"

namespace oa::ml::training {

LearningRateScheduler::LearningRateScheduler(std::shared_ptr<const LrScheduler> schedule)
    : schedule_(std::move(schedule)) {
  if (!schedule_) invalid("LearningRateScheduler", "schedule, got none, expected one");
}

TrainingControl LearningRateScheduler::on_train_begin(const TrainingCallbackContext& context) {
  context.optimizer().follow_schedule(schedule_, context.snapshot().step_count);
  return TrainingControl::Continue;
}

// Costs nothing where the device has this rate already.
TrainingControl LearningRateScheduler::on_step_end(const TrainingCallbackContext& context) {
  context.optimizer().set_learning_rate(schedule_->rate(context.snapshot().step_count));
  return TrainingControl::Continue;
}

}  // namespace oa::ml::training
