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
  // The same of matrix units, operands in 16 bits and sums in f32; 0 where there are none.
  f64 f16_flops = 0, bf16_flops = 0;

  // Operations a second of what multiplies elements of that type; F32: without matrix units.
  f64 flops_of(kernel::Scalar units) const {
    const f64 of = units == kernel::Scalar::F16    ? f16_flops
                   : units == kernel::Scalar::BF16 ? bf16_flops
                                                   : flops;
    return of > 0 ? of : flops;
  }

  // Bytes a second of a copy that reads and writes so many together, between the measured sizes.
  f64 bandwidth(u64 bytes) const;
};

// Takes some tenths of a second; the device should be idle. Waits for pending work first.
MachineLimits measure_limits(Engine& engine);

}  // namespace oa
