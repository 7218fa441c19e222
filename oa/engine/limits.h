// What a device can do at most, measured with kernels of our own: what the times of a program are
// held against.
#pragma once

#include <vector>

#include "oa/engine/engine.h"

namespace oa {

struct MachineLimits {
  struct Bandwidth {
    u64 bytes = 0;  // read plus written: the size of what is worked on
    f64 per_second = 0;
  };
  f64 flops = 0;                // f32 multiply-adds a second, each two operations
  std::vector<Bandwidth> copy;  // ascending sizes; small ones stay in caches
  f64 dispatch_seconds = 0;     // a dispatch of one workgroup that waits for the one before

  // Bytes a second of a copy that reads and writes so many together, between the measured sizes.
  f64 bandwidth(u64 bytes) const;
};

// Takes some tenths of a second; the device should be idle. Waits for pending work first.
MachineLimits measure_limits(Engine& engine);

}  // namespace oa
