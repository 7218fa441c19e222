// ItTrainingConfig: how long a training is and how its steps are counted.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "oa/core/types.h"

namespace oa::ml::training {

// Seconds from any fixed point, never going back.
using Clock = std::function<f64()>;
f64 steady_seconds();

struct ItTrainingConfig {
  u64 initial_step = 0;          // steps completed before, when a training goes on
  u64 total_steps = 0;           // 0: no end
  u64 steps_per_epoch = 0;       // 0: no epochs, unless epoch_steps has some
  std::vector<u64> epoch_steps;  // epochs of different lengths; their sum becomes total_steps
  u64 batch_size = 1;            // samples of one step; 0 counts as 1
  u64 sequence_length = 0;       // units of one sample; 0: a sample is one unit
  std::string sequence_unit = "token";
  f64 source_units_per_sample = 0;  // an estimate; record_source_units() is exact
  std::string source_unit = "byte";
  std::string timer_name = "training_step";
  bool enable_gpu_timing = false;
  Clock clock = steady_seconds;  // another one for tests
};

using TrainingLoopConfig = ItTrainingConfig;

// Where a step stands among the epochs; all numbers are one-based, and 0 where there are no epochs.
struct EpochPosition {
  u64 epoch = 0;
  u64 step_in_epoch = 0;
  u64 steps_in_epoch = 0;
};

// A checked ItTrainingConfig, with sums of what it says.
class Schedule {
 public:
  // InvalidArgument: initial_step beyond the end, source units negative or not finite, no clock.
  // ResourceExhausted: more steps than a u64 counts.
  explicit Schedule(ItTrainingConfig config);

  const ItTrainingConfig& config() const { return config_; }
  bool has_epochs() const { return config_.steps_per_epoch > 0 || !ends_.empty(); }
  u64 total_epochs() const;  // 0: no end, or no epochs
  EpochPosition at(u64 step) const;
  u64 units_per_step() const;
  u64 source_units_per_step() const;

 private:
  ItTrainingConfig config_;
  std::vector<u64> ends_;  // last step of every entry of epoch_steps
};

}  // namespace oa::ml::training
