// TrainingSnapshot: what is known of a training after a step.
#pragma once

#include <optional>

#include "oa/ml/training/gpu_timing.h"

namespace oa::ml::training {

// Steps and epochs are one-based and count from the training's own start, also when it goes on
// from a checkpoint. Sums, times and rates are of this run, except the mean losses, which a
// restored state continues. Seconds exclude what exclude_wall_time() named. Rates are 0 while
// nothing is known to divide by.
struct TrainingSnapshot {
  u64 step_count = 0;              // completed steps, or the open one in on_epoch_begin
  std::optional<u64> total_steps;  // none: no end
  u64 epoch = 0;                   // 0: no epochs
  u64 total_epochs = 0;            // 0: no end, or no epochs
  u64 step_in_epoch = 0;
  u64 steps_in_epoch = 0;
  bool is_epoch_boundary = false;
  bool is_last_step = false;

  std::optional<f64> last_loss;
  f64 training_mean_loss = 0;  // NaN before the first step, like the next
  f64 epoch_mean_loss = 0;

  std::optional<f64> last_gpu_time;  // seconds
  std::optional<GpuTimingStats> gpu_timing_stats;

  u64 total_samples = 0;
  u64 total_units = 0;
  u64 total_source_units = 0;
  f64 elapsed = 0;        // seconds
  f64 epoch_elapsed = 0;  // seconds

  f64 wall_ms_per_step = 0;
  f64 wall_samples_per_second = 0;
  f64 wall_units_per_second = 0;
  f64 wall_source_units_per_second = 0;
  f64 epoch_source_units_per_second = 0;
  f64 gpu_samples_per_second = 0;  // of timed steps, by device time
  f64 gpu_units_per_second = 0;
  f64 gpu_source_units_per_second = 0;
};

}  // namespace oa::ml::training
