#include "oa/ml/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "oa/core/error.h"

namespace oa::ml {
namespace {

f64 need_rate(std::string_view op, std::string_view what, f64 x) {
  if (!(x >= 0) || !std::isfinite(x)) {
    invalid(op, "bad {}, got {}, expected a finite number of 0 or more", what, x);
  }
  return x;
}

u64 need_steps(std::string_view op, std::string_view what, u64 n) {
  if (n == 0) invalid(op, "bad {}, got 0, expected 1 or more", what);
  return n;
}

f64 need_divisor(std::string_view op, std::string_view what, f64 x) {
  if (!(x > 0) || !std::isfinite(x)) {
    invalid(op, "bad {}, got {}, expected a positive number", what, x);
  }
  return x;
}

// From `from` (part 0) to `to` (part 1) along half a cosine.
f64 half_cosine(f64 from, f64 to, f64 part) {
  return to + 0.5 * (from - to) * (1 + std::cos(std::numbers::pi * part));
}

f64 ratio(u64 a, u64 b) { return static_cast<f64>(a) / static_cast<f64>(b); }

}  // namespace

ConstantScheduler::ConstantScheduler(f64 rate)
    : rate_(need_rate("ConstantScheduler", "rate", rate)) {}
f64 ConstantScheduler::rate(u64) const { return rate_; }

StepScheduler::StepScheduler(f64 rate, u64 period, f64 gamma)
    : rate_(need_rate("StepScheduler", "rate", rate)),
      gamma_(need_rate("StepScheduler", "gamma", gamma)),
      period_(need_steps("StepScheduler", "period", period)) {}
f64 StepScheduler::rate(u64 step) const {
  return rate_ * std::pow(gamma_, static_cast<f64>(step / period_));
}

CosineScheduler::CosineScheduler(f64 max, f64 min, u64 total)
    : max_(need_rate("CosineScheduler", "max", max)),
      min_(need_rate("CosineScheduler", "min", min)),
      total_(total) {}
f64 CosineScheduler::rate(u64 step) const {
  return step >= total_ ? min_ : half_cosine(max_, min_, ratio(step, total_));
}

WarmupScheduler::WarmupScheduler(f64 target, u64 steps, LrSchedulerRef after)
    : target_(need_rate("WarmupScheduler", "target", target)),
      steps_(steps),
      after_(std::move(after)) {}
WarmupScheduler WarmupScheduler::with_after(f64 target, u64 steps, LrSchedulerRef after) {
  if (!after) invalid("WarmupScheduler", "the schedule after the warm-up is empty, expected one");
  return {target, steps, std::move(after)};
}
f64 WarmupScheduler::rate(u64 step) const {
  if (step < steps_) return target_ * ratio(step + 1, steps_);
  return after_ ? after_->rate(step - steps_) : target_;
}

LinearWarmupCosine::LinearWarmupCosine(u64 warmup, u64 total, f64 max, f64 min)
    : inner_(max, warmup,
             std::make_shared<CosineScheduler>(max, min, total > warmup ? total - warmup : 0)) {
  if (total < warmup) {
    invalid("LinearWarmupCosine", "bad total, got {}, expected the {} steps of warm-up or more",
            total, warmup);
  }
}
f64 LinearWarmupCosine::rate(u64 step) const { return inner_.rate(step); }

OneCycleScheduler::OneCycleScheduler(f64 max, u64 total, f64 up, f64 div, f64 final_div)
    : max_(need_rate("OneCycleScheduler", "max", max)),
      initial_(max / need_divisor("OneCycleScheduler", "div", div)),
      final_(initial_ / need_divisor("OneCycleScheduler", "final_div", final_div)),
      up_(up * static_cast<f64>(total)),
      total_(total) {
  if (!(up >= 0 && up <= 1)) {
    invalid("OneCycleScheduler", "bad part of rising steps, got {}, expected 0 to 1", up);
  }
}
f64 OneCycleScheduler::rate(u64 step) const {
  if (step >= total_) return final_;
  const auto s = static_cast<f64>(step);
  if (s < up_) return half_cosine(initial_, max_, s / up_);
  return half_cosine(max_, final_, (s - up_) / (static_cast<f64>(total_) - up_));
}

CyclicScheduler::CyclicScheduler(f64 base, f64 max, u64 up, CyclicMode mode, f64 gamma)
    : base_(need_rate("CyclicScheduler", "base", base)),
      max_(need_rate("CyclicScheduler", "max", max)),
      gamma_(need_rate("CyclicScheduler", "gamma", gamma)),
      up_(need_steps("CyclicScheduler", "up", up)),
      mode_(mode) {
  if (max < base) {
    invalid("CyclicScheduler", "bad max, got {}, expected the base {} or more", max, base);
  }
}
f64 CyclicScheduler::rate(u64 step) const {
  const u64 half = step / up_, cycle = half / 2;
  const f64 part = ratio(step % up_, up_);
  const f64 height = half % 2 == 0 ? part : 1 - part;
  f64 amplitude = 1;
  if (mode_ == CyclicMode::Triangular2) amplitude = std::exp2(-static_cast<f64>(cycle));
  if (mode_ == CyclicMode::ExpRange) amplitude = std::pow(gamma_, static_cast<f64>(step));
  return base_ + (max_ - base_) * height * amplitude;
}

CosineWarmRestarts::CosineWarmRestarts(f64 max, u64 period, u64 multiplier, f64 min)
    : max_(need_rate("CosineWarmRestarts", "max", max)),
      min_(need_rate("CosineWarmRestarts", "min", min)),
      period_(need_steps("CosineWarmRestarts", "period", period)),
      multiplier_(need_steps("CosineWarmRestarts", "multiplier", multiplier)) {}
f64 CosineWarmRestarts::rate(u64 step) const {
  u64 period = period_, at = step;
  if (multiplier_ == 1) {
    at %= period;
  } else {
    while (at >= period) {
      at -= period;
      // A period too long for the type is longer than any step.
      period = period > std::numeric_limits<u64>::max() / multiplier_
                   ? std::numeric_limits<u64>::max()
                   : period * multiplier_;
    }
  }
  return half_cosine(max_, min_, ratio(at, period));
}

WsdScheduler::WsdScheduler(f64 rate, u64 warmup, u64 stable, u64 decay, f64 min)
    : rate_(need_rate("WsdScheduler", "rate", rate)),
      min_(need_rate("WsdScheduler", "min", min)),
      warmup_(warmup),
      stable_(stable),
      decay_(decay) {}
f64 WsdScheduler::rate(u64 step) const {
  if (step < warmup_) return rate_ * ratio(step + 1, warmup_);
  step -= warmup_;
  if (step < stable_) return rate_;
  step -= stable_;
  if (decay_ == 0) return rate_;
  return step >= decay_ ? min_ : min_ + (rate_ - min_) * ratio(decay_ - step - 1, decay_);
}

SequentialScheduler::SequentialScheduler(std::vector<LrSchedulerRef> schedules,
                                         std::vector<u64> milestones)
    : schedules_(std::move(schedules)), milestones_(std::move(milestones)) {
  constexpr std::string_view kOp = "SequentialScheduler";
  if (schedules_.empty()) invalid(kOp, "no schedules, got an empty list, expected one or more");
  for (size_t i = 0; i < schedules_.size(); ++i) {
    if (!schedules_[i]) invalid(kOp, "schedule {} is empty, expected one", i);
  }
  if (milestones_.size() + 1 != schedules_.size()) {
    invalid(kOp, "bad number of milestones, got {}, expected {}", milestones_.size(),
            schedules_.size() - 1);
  }
  for (size_t i = 1; i < milestones_.size(); ++i) {
    if (milestones_[i] <= milestones_[i - 1]) {
      invalid(kOp, "milestones do not grow, got {} after {}, expected a greater one",
              milestones_[i], milestones_[i - 1]);
    }
  }
}
bool SequentialScheduler::is_known_ahead() const {
  return std::all_of(schedules_.begin(), schedules_.end(),
                     [](const LrSchedulerRef& s) { return s->is_known_ahead(); });
}
f64 SequentialScheduler::rate(u64 step) const {
  const auto after = std::upper_bound(milestones_.begin(), milestones_.end(), step);
  const auto index = static_cast<size_t>(after - milestones_.begin());
  return schedules_[index]->rate(index == 0 ? step : step - milestones_[index - 1]);
}

ReduceOnPlateau::ReduceOnPlateau(f64 rate, f64 factor, u64 patience, f64 min_delta, f64 min_rate,
                                 PlateauMode mode)
    : factor_(factor),
      min_delta_(need_rate("ReduceOnPlateau", "min_delta", min_delta)),
      min_rate_(need_rate("ReduceOnPlateau", "min_rate", min_rate)),
      patience_(patience),
      mode_(mode) {
  if (!(factor >= 0 && factor < 1)) {
    invalid("ReduceOnPlateau", "bad factor, got {}, expected 0 or more and less than 1", factor);
  }
  constexpr f64 kInfinity = std::numeric_limits<f64>::infinity();
  state_ = {need_rate("ReduceOnPlateau", "rate", rate),
            mode == PlateauMode::Min ? kInfinity : -kInfinity, 0};
}
f64 ReduceOnPlateau::step(f64 metric) {
  const bool better = mode_ == PlateauMode::Min ? metric < state_.best - min_delta_
                                                : metric > state_.best + min_delta_;
  if (better) {
    state_.best = metric;
    state_.bad = 0;
  } else if (++state_.bad > patience_) {
    state_.bad = 0;
    // A rate that began below the least one stays.
    state_.rate = std::min(state_.rate, std::max(state_.rate * factor_, min_rate_));
  }
  return state_.rate;
}
void ReduceOnPlateau::restore(const State& state) {
  need_rate("ReduceOnPlateau", "rate in the state", state.rate);
  state_ = state;
}

}  // namespace oa::ml
