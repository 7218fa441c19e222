#include "oa/ml/training/gpu_timing.h"

#include <algorithm>
#include <cmath>

namespace oa::ml::training {

f64 percentile(const std::vector<f64>& sorted, f64 q) {
  const f64 at = q * static_cast<f64>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(std::floor(at));
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const f64 part = at - static_cast<f64>(below);
  return sorted[below] + part * (sorted[above] - sorted[below]);
}

void GpuTimes::add(f64 seconds) {
  const f64 ms = seconds * 1e3;
  if (window_.size() == kWindow) {
    sorted_.erase(std::ranges::lower_bound(sorted_, window_.front()));
    window_.pop_front();
  }
  window_.push_back(ms);
  sorted_.insert(std::ranges::upper_bound(sorted_, ms), ms);
  stats_.min_ms = stats_.count == 0 ? ms : std::min(stats_.min_ms, ms);
  stats_.max_ms = stats_.count == 0 ? ms : std::max(stats_.max_ms, ms);
  stats_.count += 1;
  total_ms_ += ms;
  stats_.mean_ms = total_ms_ / static_cast<f64>(stats_.count);
  stats_.last_ms = ms;
  stats_.median_ms = percentile(sorted_, 0.5);
  stats_.p95_ms = percentile(sorted_, 0.95);
}

}  // namespace oa::ml::training
