#include "oa/ml/training/phase_schedule.h"

#include "oa/core/error.h"

namespace oa::ml::training {
namespace {

constexpr std::string_view kOp = "PhaseSchedule";

}  // namespace

PhaseSchedule& PhaseSchedule::add_phase(std::string id, u64 epochs, u64 steps) {
  if (epochs == 0) invalid(kOp, "epochs of phase {}, got 0, expected 1 or more", id);
  if (steps < epochs) {
    invalid(kOp, "steps of phase {}, got {}, expected at least its {} epochs", id, steps, epochs);
  }
  phases_.push_back({std::move(id), epochs, steps});
  return *this;
}

PhaseSchedule& PhaseSchedule::set_on_phase_begin(Hook hook) {
  hook_ = std::move(hook);
  return *this;
}

const TrainingPhase* PhaseSchedule::current_phase() const {
  return current_ < phases_.size() ? &phases_[current_] : nullptr;
}

u64 PhaseSchedule::total_epochs() const {
  u64 sum = 0;
  for (const TrainingPhase& p : phases_) sum += p.epochs;
  return sum;
}

u64 PhaseSchedule::total_steps() const {
  u64 sum = 0;
  for (const TrainingPhase& p : phases_) sum += p.steps;
  return sum;
}

std::vector<u64> PhaseSchedule::epoch_steps() const {
  std::vector<u64> out;
  for (const TrainingPhase& p : phases_) {
    for (u64 i = 0; i < p.epochs; ++i) {
      out.push_back(p.steps / p.epochs + (i < p.steps % p.epochs ? 1 : 0));
    }
  }
  return out;
}

TrainingControl PhaseSchedule::on_train_begin(const TrainingCallbackContext& context) {
  const Schedule schedule(context.config());
  if (schedule.total_epochs() != total_epochs() || context.config().total_steps != total_steps()) {
    fail(ErrorKind::FailedPrecondition, kOp,
         "the training has {} epochs and {} steps, expected the phases' {} and {}",
         schedule.total_epochs(), context.config().total_steps, total_epochs(), total_steps());
  }
  u64 step = 0, epoch = 0;
  for (const TrainingPhase& p : phases_) {
    step += p.steps;
    epoch += p.epochs;
    const EpochPosition at = schedule.at(step);
    if (at.epoch != epoch || at.step_in_epoch != at.steps_in_epoch) {
      fail(ErrorKind::FailedPrecondition, kOp,
           "phase {} ends at step {}, which is not the end of epoch {}", p.id, step, epoch);
    }
  }
  return TrainingControl::Continue;
}

TrainingControl PhaseSchedule::on_epoch_begin(const TrainingCallbackContext& context) {
  u64 end = 0;
  size_t index = 0;
  while (index < phases_.size() && context.snapshot().epoch > (end += phases_[index].epochs)) {
    ++index;
  }
  if (index != current_ && index < phases_.size()) {
    current_ = index;
    if (hook_) hook_(index, phases_[index], PhaseOptimizer(context.optimizer()));
  }
  return TrainingControl::Continue;
}

}  // namespace oa::ml::training
