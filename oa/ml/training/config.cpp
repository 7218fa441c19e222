#include "oa/ml/training/config.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "oa/core/error.h"

namespace oa::ml::training {
namespace {

constexpr std::string_view kOp = "ItTraining";

u64 product(u64 a, u64 b, std::string_view what) {
  if (b != 0 && a > std::numeric_limits<u64>::max() / b) {
    fail(ErrorKind::ResourceExhausted, kOp, "{} of a step, got {} x {}, expected at most 2^64 - 1",
         what, a, b);
  }
  return a * b;
}

}  // namespace

f64 steady_seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<f64>(now).count();
}

Schedule::Schedule(ItTrainingConfig config) : config_(std::move(config)) {
  if (!config_.clock) invalid(kOp, "clock, got none, expected a function of seconds");
  if (!std::isfinite(config_.source_units_per_sample) || config_.source_units_per_sample < 0) {
    invalid(kOp, "source_units_per_sample, got {}, expected a finite number of 0 or more",
            config_.source_units_per_sample);
  }
  config_.batch_size = std::max<u64>(config_.batch_size, 1);
  if (!config_.epoch_steps.empty()) {
    u64 sum = 0;
    for (u64& steps : config_.epoch_steps) {
      steps = std::max<u64>(steps, 1);
      if (steps > std::numeric_limits<u64>::max() - sum) {
        fail(ErrorKind::ResourceExhausted, kOp, "epoch_steps, got a sum above 2^64 - 1");
      }
      sum += steps;
      ends_.push_back(sum);
    }
    config_.total_steps = sum;
    config_.steps_per_epoch = 0;
  }
  if (config_.total_steps != 0 && config_.initial_step > config_.total_steps) {
    invalid(kOp, "initial_step, got {}, expected at most total_steps {}", config_.initial_step,
            config_.total_steps);
  }
  product(config_.batch_size, std::max<u64>(config_.sequence_length, 1), "units");
  const f64 source = static_cast<f64>(config_.batch_size) * config_.source_units_per_sample;
  if (source >= 0x1p63) {
    fail(ErrorKind::ResourceExhausted, kOp, "source units of a step, got {}, expected below 2^63",
         source);
  }
}

u64 Schedule::total_epochs() const {
  if (!ends_.empty()) return ends_.size();
  if (config_.steps_per_epoch == 0 || config_.total_steps == 0) return 0;
  return (config_.total_steps - 1) / config_.steps_per_epoch + 1;
}

EpochPosition Schedule::at(u64 step) const {
  if (!has_epochs() || step == 0) return {};
  if (ends_.empty()) {
    const u64 before = (step - 1) / config_.steps_per_epoch;
    u64 length = config_.steps_per_epoch;
    if (config_.total_steps != 0) {
      length = std::min(length, config_.total_steps - before * config_.steps_per_epoch);
    }
    return {before + 1, step - before * config_.steps_per_epoch, length};
  }
  const auto end = std::ranges::lower_bound(ends_, step);
  const u64 first = end == ends_.begin() ? 0 : end[-1];
  return {static_cast<u64>(end - ends_.begin()) + 1, step - first, *end - first};
}

u64 Schedule::units_per_step() const {
  return config_.batch_size * std::max<u64>(config_.sequence_length, 1);
}

u64 Schedule::source_units_per_step() const {
  return static_cast<u64>(
      std::llround(static_cast<f64>(config_.batch_size) * config_.source_units_per_sample));
}

}  // namespace oa::ml::training
