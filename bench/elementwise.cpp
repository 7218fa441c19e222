// y = a*b + tanh(a) as one fused kernel, past the caches and inside them.
#include "oa/matrix/elementwise.h"

#include "bench/harness.h"
#include "oa/matrix/transcendental.h"

using namespace oa;

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);
  Engine engine = Engine::open();
  const struct {
    const char* name;
    i64 count;
  } cases[] = {{"16M", 16l << 20}, {"32K", 32l << 10}};
  for (const auto& [name, count] : cases) {
    if (!options.wants(name)) continue;
    const auto a_values = bench::random_floats(static_cast<std::size_t>(count), 1);
    const auto b_values = bench::random_floats(static_cast<std::size_t>(count), 2);
    const Matrix a = Matrix::from_f32(engine, {count}, a_values);
    const Matrix b = Matrix::from_f32(engine, {count}, b_values);
    const ExecutionPlan plan =
        engine.capture([&] { return std::vector<Matrix>{a * b + matrix::tanh(a)}; });
    const double seconds = bench::seconds_per_call(
        [&](int calls) {
          Event last;
          for (int i = 0; i < calls; ++i) last = engine.submit(plan);
          last.wait();
        },
        options.seconds);
    bench::report(name, "oa", 12.0 * static_cast<double>(count) / seconds * 1e-9, "GB/s");
  }
}
