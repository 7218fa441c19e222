// Row softmax, layer statistics (mean and variance) and row sums. GB/s of what must be moved.
#include <string>

#include "bench/harness.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/reduce.h"

using namespace oa;

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);
  Engine engine = Engine::open();
  const Shape shapes[] = {{4096, 1024}, {65536, 64}, {64, 50257}};
  for (const Shape& shape : shapes) {
    const double count = static_cast<double>(shape.elements());
    const auto values = bench::random_floats(static_cast<std::size_t>(shape.elements()), 1);
    const Matrix x = Matrix::from_f32(engine, shape, values);
    const auto measure = [&](const std::string& kind, double bytes_each, auto&& fn) {
      const std::string name =
          kind + " " + std::to_string(shape[0]) + "x" + std::to_string(shape[1]);
      if (!options.wants(name)) return;
      const ExecutionPlan plan = engine.capture(fn);
      const double seconds = bench::seconds_per_call(
          [&](int calls) {
            Event last;
            for (int i = 0; i < calls; ++i) last = engine.submit(plan);
            last.wait();
          },
          options.seconds);
      bench::report(name, "oa", bytes_each * count / seconds * 1e-9, "GB/s");
    };
    using Results = std::vector<Matrix>;
    measure("softmax", 8, [&] { return Results{matrix::softmax(x)}; });
    measure("statistics", 4, [&] { return Results{matrix::mean(x, -1), matrix::variance(x, -1)}; });
    measure("sum", 4, [&] { return Results{matrix::sum(x, -1)}; });
  }
}
