// Seconds that the device spent on the steps, as numbers for a report.
#pragma once

#include <deque>
#include <vector>

#include "oa/core/types.h"

namespace oa::ml::training {

struct GpuTimingStats {
  u64 count = 0;
  f64 mean_ms = 0, min_ms = 0, max_ms = 0, last_ms = 0;  // of all steps
  f64 median_ms = 0, p95_ms = 0;                         // of the last 4096 steps
};

// The value at `q` (0 to 1) of `sorted`, which is not empty: linear between the two neighbours of
// the position q * (n - 1).
f64 percentile(const std::vector<f64>& sorted, f64 q);

class GpuTimes {
 public:
  void add(f64 seconds);
  const GpuTimingStats& stats() const { return stats_; }
  f64 total_seconds() const { return total_ms_ / 1e3; }

 private:
  static constexpr size_t kWindow = 4096;  // keeps memory flat
  std::deque<f64> window_;                 // in the order of arrival
  std::vector<f64> sorted_;                // the same values
  f64 total_ms_ = 0;
  GpuTimingStats stats_;
};

}  // namespace oa::ml::training
