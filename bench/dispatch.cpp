// What the engine adds to the kernels: cost per dispatch of a program, of recording, of a flush.
#include <string>

#include "bench/harness.h"
#include "oa/matrix/elementwise.h"

using namespace oa;

namespace {

constexpr int kChain = 60;

// Seconds of one run of a captured program of kChain dependent kernels of `count` elements.
double chain_seconds(Engine& engine, i64 count, double budget) {
  const auto values = bench::random_floats(static_cast<std::size_t>(count), 1);
  const Matrix x = Matrix::from_f32(engine, {count}, values);
  const ExecutionPlan plan = engine.capture([&] {
    Matrix y = x;
    for (int i = 0; i < kChain; ++i) y = matrix::scale(y, 0.5);
    return std::vector<Matrix>{y};
  });
  if (plan.dispatch_count() != kChain) {
    bench::note("expected one dispatch per op, got " + std::to_string(plan.dispatch_count()));
    std::exit(1);
  }
  return bench::seconds_per_call(
      [&](int calls) {
        Event last;
        for (int i = 0; i < calls; ++i) last = engine.submit(plan);
        last.wait();
      },
      budget);
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);

  // Unfused, so that the chain stays a chain. A kernel's own time grows with its elements and the
  // overhead does not: the time at no elements, extrapolated from two sizes, is the overhead.
  Engine unfused = Engine::open({.fuse = false});
  const double full = chain_seconds(unfused, 32 << 10, options.seconds * 4);
  const double half = chain_seconds(unfused, 16 << 10, options.seconds * 4);
  bench::report("60 dependent kernels of 32K", "oa", full * 1e6, "us");
  bench::report("overhead per kernel", "oa", std::max(2 * half - full, 1e-9) / kChain * 1e6, "us");
  bench::report("60 dependent kernels of 1", "oa", chain_seconds(unfused, 1, options.seconds) * 1e6,
                "us");

  Engine engine = Engine::open();
  const Matrix one = Matrix::from_f32(engine, {16}, bench::random_floats(16, 1));
  std::vector<double> recording, flushing;
  const double begin = bench::now();
  while (recording.size() < 100 || bench::now() - begin < options.seconds) {
    const double start = bench::now();
    Matrix y = one;
    for (int i = 0; i < 100; ++i) y = matrix::scale(y, 0.5);
    const double recorded = bench::now();
    engine.flush();
    const double flushed = bench::now();
    engine.wait();
    recording.push_back((recorded - start) / 100);
    flushing.push_back(flushed - recorded);
  }
  bench::report("recording an op", "oa", bench::median(recording) * 1e6, "us");
  bench::report("flush of 100 known ops", "oa", bench::median(flushing) * 1e6, "us");
}
