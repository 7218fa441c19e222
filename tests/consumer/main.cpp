// Uses the installed library across the shared-object border: calls, data, and an exception.
#include <oa/core/dtype.h>
#include <oa/core/error.h>
#include <oa/kernel/lang.h>

#include <cstdio>
#include <cstring>

int main() {
  using namespace oa::kernel;
  const Kernel kernel = trace("twice", Target{}, 16, [] {
    Buffer x = param_buffer(Scalar::F32);
    U32 i = group() * width() + lane();
    x[i] = F32(x[i]) * 2.0f;
  });
  bool caught = false;
  try {
    oa::invalid("consumer", "a message, got {}, expected {}", 1, 2);
  } catch (const oa::Error& error) {
    caught = std::strcmp(error.what(), "consumer: a message, got 1, expected 2") == 0;
  }
  const bool ok = caught && kernel.params == 1 && oa::f16_to_f32(oa::f32_to_f16(1.5f)) == 1.5f;
  std::puts(ok ? "consumer: ok" : "consumer: FAILED");
  return ok ? 0 : 1;
}
