// The floating-point mode of a thread. Kernels run with denormals flushed to zero, because a
// denormal operand costs a hundred cycles; everything else about the mode is the default.
#pragma once

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "oa/core/types.h"

namespace oa::device {

// Sets a mode for a scope and restores the former one, sticky exception flags included.
class FpMode {
 public:
  enum class Kind { Kernel, Default };

#if defined(__SSE2__)
  explicit FpMode(Kind kind) : saved_(_mm_getcsr()) {
    constexpr u32 all_masked = 0x1f80, flush_to_zero = 0x8000, denormals_are_zero = 0x0040;
    _mm_setcsr(kind == Kind::Kernel ? all_masked | flush_to_zero | denormals_are_zero : all_masked);
  }
  ~FpMode() { _mm_setcsr(saved_); }
  FpMode(const FpMode&) = delete;
  FpMode& operator=(const FpMode&) = delete;

 private:
  u32 saved_;
#else
  explicit FpMode(Kind) {}
#endif
};

}  // namespace oa::device
