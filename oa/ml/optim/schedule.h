// Learning rates as functions of the step.
//
// rate(step) is the rate of step number `step`, counted from 0: set rate(0) before the first step.
// Schedules go on for ever: past their end they keep their last value. Rates are finite and 0 or
// more; what a constructor cannot use is InvalidArgument.
#pragma once

#include <memory>
#include <vector>

#include "oa/core/types.h"

namespace oa::ml {

class LrScheduler {
 public:
  virtual ~LrScheduler() = default;
  virtual f64 rate(u64 step) const = 0;
  // False where rates depend on more than the step: on what happens meanwhile.
  virtual bool is_known_ahead() const { return true; }
};
using LrSchedulerRef = std::shared_ptr<const LrScheduler>;

class ConstantScheduler final : public LrScheduler {
 public:
  explicit ConstantScheduler(f64 rate);
  f64 rate(u64 step) const override;

 private:
  f64 rate_;
};

// Times `gamma` after every `period` steps (1 or more).
class StepScheduler final : public LrScheduler {
 public:
  StepScheduler(f64 rate, u64 period, f64 gamma = 0.1);
  f64 rate(u64 step) const override;

 private:
  f64 rate_, gamma_;
  u64 period_;
};

// Half a cosine from max down to min, which step `total` and all later ones have.
class CosineScheduler final : public LrScheduler {
 public:
  CosineScheduler(f64 max, f64 min, u64 total);
  f64 rate(u64 step) const override;

 private:
  f64 max_, min_;
  u64 total_;
};

// target (step + 1) / steps in the first `steps` steps, then target, or `after` with its own steps
// from 0.
class WarmupScheduler final : public LrScheduler {
 public:
  WarmupScheduler(f64 target, u64 steps, LrSchedulerRef after = nullptr);
  static WarmupScheduler with_after(f64 target, u64 steps, LrSchedulerRef after);
  f64 rate(u64 step) const override;
  bool is_known_ahead() const override { return !after_ || after_->is_known_ahead(); }

 private:
  f64 target_;
  u64 steps_;
  LrSchedulerRef after_;
};

// Warm-up over `warmup` steps to max, then a cosine to min, which step `total` has.
class LinearWarmupCosine final : public LrScheduler {
 public:
  LinearWarmupCosine(u64 warmup, u64 total, f64 max, f64 min = 0);
  f64 rate(u64 step) const override;

 private:
  WarmupScheduler inner_;
};

// Half a cosine from max / div up to max over the first part `up` of `total` steps, another one
// down to max / div / final_div.
class OneCycleScheduler final : public LrScheduler {
 public:
  OneCycleScheduler(f64 max, u64 total, f64 up = 0.3, f64 div = 25, f64 final_div = 1e4);
  f64 rate(u64 step) const override;

 private:
  f64 max_, initial_, final_, up_;
  u64 total_;
};

enum class CyclicMode {
  Triangular,   // every cycle the same
  Triangular2,  // the amplitude halves from cycle to cycle
  ExpRange,     // the amplitude is multiplied by gamma^step
};

// A triangle: `up` steps (1 or more) from base to max, as many back.
class CyclicScheduler final : public LrScheduler {
 public:
  CyclicScheduler(f64 base, f64 max, u64 up, CyclicMode mode = CyclicMode::Triangular,
                  f64 gamma = 1);
  static CyclicScheduler triangular(f64 base, f64 max, u64 up) { return {base, max, up}; }
  f64 rate(u64 step) const override;

 private:
  f64 base_, max_, gamma_;
  u64 up_;
  CyclicMode mode_;
};

// Half a cosine from max to min over `period` steps, again and again; each period is the last one
// times `multiplier` (1 or more).
class CosineWarmRestarts final : public LrScheduler {
 public:
  CosineWarmRestarts(f64 max, u64 period, u64 multiplier = 1, f64 min = 0);
  static CosineWarmRestarts fixed(f64 max, u64 period, f64 min = 0) {
    return {max, period, 1, min};
  }
  f64 rate(u64 step) const override;

 private:
  f64 max_, min_;
  u64 period_, multiplier_;
};

// Warm-up, stable, decay: rate (step + 1) / warmup, then rate, then down in equal steps so that the
// last of `decay` steps has min. Any of the three may be 0 steps long.
class WsdScheduler final : public LrScheduler {
 public:
  WsdScheduler(f64 rate, u64 warmup, u64 stable, u64 decay, f64 min = 0);
  f64 rate(u64 step) const override;

 private:
  f64 rate_, min_;
  u64 warmup_, stable_, decay_;
};

// One schedule after the other: number i begins at milestones[i - 1] with its own steps from 0.
// Milestones grow strictly and are one fewer than the schedules.
class SequentialScheduler final : public LrScheduler {
 public:
  SequentialScheduler(std::vector<LrSchedulerRef> schedules, std::vector<u64> milestones);
  f64 rate(u64 step) const override;
  bool is_known_ahead() const override;

 private:
  std::vector<LrSchedulerRef> schedules_;
  std::vector<u64> milestones_;
};

enum class PlateauMode { Min, Max };

// Multiplies the rate by `factor` when a metric has not improved for more than `patience` reports.
// The one schedule with a memory, which a checkpoint may keep.
class ReduceOnPlateau final : public LrScheduler {
 public:
  struct State {
    f64 rate = 0;
    f64 best = 0;  // infinite before the first report
    u64 bad = 0;   // reports since the last improvement
    bool operator==(const State&) const = default;
  };

  // factor in [0, 1), min_delta and min_rate finite and 0 or more. An improvement is one by more
  // than min_delta.
  explicit ReduceOnPlateau(f64 rate, f64 factor = 0.1, u64 patience = 10, f64 min_delta = 1e-4,
                           f64 min_rate = 0, PlateauMode mode = PlateauMode::Min);
  // Reports a metric (NaN is no improvement) and returns the rate from now on.
  f64 step(f64 metric);
  f64 rate(u64) const override { return state_.rate; }
  bool is_known_ahead() const override { return false; }

  const State& state() const { return state_; }
  void restore(const State& state);  // rate finite and 0 or more; else InvalidArgument

 private:
  State state_;
  f64 factor_, min_delta_, min_rate_;
  u64 patience_;
  PlateauMode mode_;
};

}  // namespace oa::ml
