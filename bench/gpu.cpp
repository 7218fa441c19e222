// What a graphics card reaches: products, a fused elementwise kernel, and tiny dependent
// dispatches. Run as OA_DEVICE=vulkan scripts/bench gpu.
#include <string>

#include "bench/harness.h"
#include "oa/core/dtype.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/matmul.h"
#include "oa/matrix/transcendental.h"

using namespace oa;

namespace {

double plan_seconds(Engine& engine, const ExecutionPlan& plan, double budget) {
  return bench::seconds_per_call(
      [&](int calls) {
        Event last;
        for (int i = 0; i < calls; ++i) last = engine.submit(plan);
        last.wait();
      },
      budget);
}

Matrix random_matrix(const Engine& engine, i64 size, DType dtype, u64 seed) {
  const auto values = bench::random_floats(static_cast<std::size_t>(size * size), seed);
  const Matrix m = Matrix::from_f32(engine, {size, size}, values);
  return dtype == DType::F32 ? m : m.to(dtype);
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);
  Engine engine = Engine::open();
  if (engine.device_info().kind == device::DeviceKind::Cpu) {
    bench::note("gpu: needs OA_DEVICE=vulkan and a graphics card, got " +
                engine.device_info().name);
    return 1;
  }
  if (options.round == 0) bench::note("oa: " + engine.device_info().name);

  // Products by the layout of their operands: n as they multiply, t stored transposed.
  constexpr i64 kSize = 4096;
  struct Product {
    DType dtype;
    Precision precision;
    const char* name;
  };
  for (const Product& p :
       {Product{DType::F32, Precision::F32, "f32"}, Product{DType::F32, Precision::F32x3, "f32x3"},
        Product{DType::F32, Precision::F32x6, "f32x6"}, Product{DType::F16, Precision::F32, "f16"},
        Product{DType::BF16, Precision::F32, "bf16"}}) {
    for (const std::string form : {"nn", "tn", "nt"}) {
      const std::string name = fmt::format("product 4096 {} {}", p.name, form);
      if (!options.wants(name)) continue;
      const Matrix a = random_matrix(engine, kSize, p.dtype, 1);
      const Matrix b = random_matrix(engine, kSize, p.dtype, 2);
      engine.wait();
      const ExecutionPlan plan = engine.capture([&] {
        return std::vector<Matrix>{form == "nn"   ? matrix::mat_mul(a, b, p.precision)
                                   : form == "tn" ? matrix::mat_mul_tn(a, b, p.precision)
                                                  : matrix::mat_mul_nt(a, b, p.precision)};
      });
      const double seconds = plan_seconds(engine, plan, options.seconds * 5);
      bench::report(name, "oa", 2.0 * kSize * kSize * kSize / seconds * 1e-12, "TFLOP/s");
    }
  }

  if (options.wants("elementwise 256M")) {
    constexpr i64 kCount = 256l << 20;
    const std::vector<f32> values = bench::random_floats(static_cast<std::size_t>(kCount), 1);
    const Matrix x = Matrix::from_f32(engine, {kCount}, values);
    const Matrix y = Matrix::from_f32(engine, {kCount}, values);
    const ExecutionPlan plan =
        engine.capture([&] { return std::vector<Matrix>{x * y + matrix::tanh(x)}; });
    const double seconds = plan_seconds(engine, plan, options.seconds * 5);
    bench::report("elementwise 256M", "oa", 12.0 * kCount / seconds * 1e-9, "GB/s");
  }

  if (options.wants("tiny dependent dispatch")) {
    Engine unfused = Engine::open({.fuse = false});
    const Matrix x = Matrix::from_f32(unfused, {1024}, bench::random_floats(1024, 1));
    const ExecutionPlan plan = unfused.capture([&] {
      Matrix y = x;
      for (int i = 0; i < 200; ++i) y = matrix::scale(y, 0.5);
      return std::vector<Matrix>{y};
    });
    const double seconds = plan_seconds(unfused, plan, options.seconds * 5);
    bench::report("tiny dependent dispatch", "oa", seconds / plan.dispatch_count() * 1e6, "us");
  }
}
