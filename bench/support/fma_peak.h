// The machine's own limit: FMAs of full vectors that wait for nothing.
#pragma once

namespace bench {

// GFLOP/s of `threads` threads together, F32.
double fma_peak(int threads);

}  // namespace bench
