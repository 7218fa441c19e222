// f32 products by oneDNN: a matmul primitive made once per case, transposed operands as strides.
#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "bench/gemm_cases.h"
#include "bench/harness.h"

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);
  using dnnl::memory;
  if (options.round == 0) {
    const dnnl_version_t* v = dnnl::version();
    bench::note("onednn: " + std::to_string(v->major) + "." + std::to_string(v->minor) + "." +
                std::to_string(v->patch) + ", instruction set " +
                std::to_string(static_cast<int>(dnnl::get_effective_cpu_isa())) + ", threads " +
                std::to_string(omp_get_max_threads()));
  }
  dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  for (const bench::GemmCase& g : bench::gemm_cases()) {
    if (!options.wants(g.name())) continue;
    auto a = bench::random_floats(std::size_t(g.m) * g.k, 1);
    auto b = bench::random_floats(std::size_t(g.k) * g.n, 2);
    std::vector<float> c(std::size_t(g.m) * g.n);
    const auto describe = [](int rows, int cols, bool transposed) {
      return memory::desc({rows, cols}, memory::data_type::f32,
                          transposed ? memory::dims{1, rows} : memory::dims{cols, 1});
    };
    const memory::desc a_desc = describe(g.m, g.k, g.a_transposed);
    const memory::desc b_desc = describe(g.k, g.n, g.b_transposed);
    const memory::desc c_desc = describe(g.m, g.n, false);
    const dnnl::matmul product(dnnl::matmul::primitive_desc(engine, a_desc, b_desc, c_desc));
    const std::unordered_map<int, memory> args = {
        {DNNL_ARG_SRC, memory(a_desc, engine, a.data())},
        {DNNL_ARG_WEIGHTS, memory(b_desc, engine, b.data())},
        {DNNL_ARG_DST, memory(c_desc, engine, c.data())}};
    const double seconds = bench::seconds_per_call(
        [&](int calls) {
          for (int i = 0; i < calls; ++i) product.execute(stream, args);
          stream.wait();
        },
        options.seconds);
    bench::report(g.name(), "onednn", g.flops() / seconds * 1e-9, "GFLOP/s");
  }
}
