// f32 products by OpenBLAS, as it comes on PyPI (its names carry the prefix scipy_).
#include <cblas.h>

#include "bench/gemm_cases.h"
#include "bench/harness.h"

extern "C" {
char* scipy_openblas_get_config();
char* scipy_openblas_get_corename();
int scipy_openblas_get_num_threads();
}

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);
  if (options.round == 0) {
    bench::note(std::string("openblas: ") + scipy_openblas_get_config() + ", kernels of " +
                scipy_openblas_get_corename() + ", threads " +
                std::to_string(scipy_openblas_get_num_threads()));
  }
  for (const bench::GemmCase& g : bench::gemm_cases()) {
    if (!options.wants(g.name())) continue;
    const auto a = bench::random_floats(std::size_t(g.m) * g.k, 1);
    const auto b = bench::random_floats(std::size_t(g.k) * g.n, 2);
    std::vector<float> c(std::size_t(g.m) * g.n);
    const double seconds = bench::seconds_per_call(
        [&](int calls) {
          for (int i = 0; i < calls; ++i) {
            scipy_cblas_sgemm(CblasRowMajor, g.a_transposed ? CblasTrans : CblasNoTrans,
                              g.b_transposed ? CblasTrans : CblasNoTrans, g.m, g.n, g.k, 1.0f,
                              a.data(), g.a_transposed ? g.m : g.k, b.data(),
                              g.b_transposed ? g.k : g.n, 0.0f, c.data(), g.n);
          }
        },
        options.seconds);
    bench::report(g.name(), "openblas", g.flops() / seconds * 1e-9, "GFLOP/s");
  }
}
