// f32 products of all transpose forms, each a captured plan of one product.
#include <fmt/format.h>

#include <cstdlib>

#include "bench/gemm_cases.h"
#include "bench/harness.h"
#include "bench/support/fma_peak.h"
#include "oa/matrix/matmul.h"

using namespace oa;

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);
  Engine engine = Engine::open();
  const char* threads = std::getenv("OA_THREADS");
  const double peak = bench::fma_peak(threads ? std::atoi(threads) : 2);
  if (options.round == 0) {
    bench::note(fmt::format("oa: {}, FMA peak {:.0f} GFLOP/s", engine.device_info().name, peak));
  }
  for (const bench::GemmCase& g : bench::gemm_cases()) {
    if (!options.wants(g.name())) continue;
    const auto a_values = bench::random_floats(std::size_t(g.m) * g.k, 1);
    const auto b_values = bench::random_floats(std::size_t(g.k) * g.n, 2);
    const Shape a_shape = g.a_transposed ? Shape{g.k, g.m} : Shape{g.m, g.k};
    const Shape b_shape = g.b_transposed ? Shape{g.n, g.k} : Shape{g.k, g.n};
    const Matrix a = Matrix::from_f32(engine, a_shape, a_values);
    const Matrix b = Matrix::from_f32(engine, b_shape, b_values);
    const auto product = g.a_transposed   ? matrix::mat_mul_tn
                         : g.b_transposed ? matrix::mat_mul_nt
                                          : matrix::mat_mul;
    const ExecutionPlan plan =
        engine.capture([&] { return std::vector<Matrix>{product(a, b, Precision::F32)}; });
    const double seconds = bench::seconds_per_call(
        [&](int calls) {
          Event last;
          for (int i = 0; i < calls; ++i) last = engine.submit(plan);
          last.wait();
        },
        options.seconds);
    bench::report(g.name(), "oa", g.flops() / seconds * 1e-9, "GFLOP/s");
  }
}
