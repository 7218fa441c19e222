// Uses the installed library across the shared-object border: calls, data, and an exception.
#include <oa/core/error.h>
#include <oa/engine/engine.h>
#include <oa/matrix/elementwise.h>
#include <oa/matrix/matmul.h>

#include <cstdio>
#include <cstring>

int main() {
  oa::EngineOptions options;
  options.device = "cpu";
  oa::Engine engine = oa::Engine::open(options);
  const oa::Matrix x = oa::Matrix::from_f32(engine, {2, 3}, std::vector<float>{1, 2, 3, 4, 5, 6});
  const oa::Matrix y = oa::matrix::mat_mul_nt(x, x) + 1.0;  // [2, 2]
  bool caught = false;
  try {
    x.mat_mul(x);
  } catch (const oa::Error& error) {
    caught = error.kind() == oa::ErrorKind::InvalidArgument &&
             std::strncmp(error.what(), "mat_mul: ", 9) == 0;
  }
  const bool ok = caught && y.read_f32() == std::vector<float>{15, 33, 33, 78};
  std::puts(ok ? "consumer: ok" : "consumer: FAILED");
  return ok ? 0 : 1;
}
