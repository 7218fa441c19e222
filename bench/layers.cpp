// Cross entropy, norms and activations: the forward pass, and the forward and backward pass as one
// captured plan. Milliseconds.
#include <functional>
#include <string>

#include "bench/harness.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/reduce.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/loss/cross_entropy.h"
#include "oa/ml/matrix/activation.h"
#include "oa/ml/matrix/norm.h"

using namespace oa;

namespace {

using Values = std::vector<Matrix>;

// The gradients of `inputs`, given that of the result.
Values both_ways(const std::function<Matrix()>& result, const Values& inputs, const Matrix& given) {
  ml::GradientTape tape;
  for (const Matrix& x : inputs) tape.watch(x);
  const Matrix y = result();
  const Matrix root = given.valid() ? matrix::sum(y * given) : y;
  tape.backward(root);
  Values out = {y};
  for (const Matrix& x : inputs) out.push_back(*tape.gradient(x));
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);
  const bool profile = std::getenv("OA_BENCH_PROFILE") != nullptr;
  Engine engine = Engine::open({.profile = profile});
  if (options.round == 0) bench::note("oa: " + engine.device_info().name);
  const auto measure = [&](const std::string& name, const std::function<Values()>& fn) {
    if (!options.wants(name)) return;
    const ExecutionPlan plan = engine.capture(fn);
    const double seconds = bench::seconds_per_call(
        [&](int calls) {
          Event last;
          for (int i = 0; i < calls; ++i) last = engine.submit(plan);
          last.wait();
        },
        options.seconds);
    bench::report(name, "oa", seconds * 1e3, "ms");
    if (!profile) return;
    for (const KernelProfile& k : engine.profile()) {
      std::fprintf(stderr, "%s: %s %llu x %.3f ms\n", name.c_str(), k.label.c_str(),
                   static_cast<unsigned long long>(k.count),
                   k.seconds * 1e3 / static_cast<double>(k.count));
    }
  };
  for (const Shape& shape : {Shape{1024, 256}, Shape{2048, 50257}}) {
    const std::string size = std::to_string(shape[0]) + "x" + std::to_string(shape[1]);
    const auto count = static_cast<std::size_t>(shape.elements());
    const Matrix x = Matrix::from_f32(engine, shape, bench::random_floats(count, 1));
    const Matrix given = Matrix::from_f32(engine, shape, bench::random_floats(count, 2));
    const auto columns = static_cast<std::size_t>(shape[1]);
    const Matrix weight = Matrix::from_f32(engine, {shape[1]}, bench::random_floats(columns, 3));
    const Matrix bias = Matrix::from_f32(engine, {shape[1]}, bench::random_floats(columns, 4));
    std::vector<i32> classes;
    for (i64 i = 0; i < shape[0]; ++i) {
      classes.push_back(static_cast<i32>(i * 7919 % shape[1]));
    }
    const Matrix targets = Matrix::from_slice<i32>(engine, {shape[0]}, classes);
    const auto cross_entropy = [&] { return ml::loss::cross_entropy(x, targets); };
    const auto layer_norm = [&] { return ml::matrix::layer_norm(x, weight, bias, 1e-5); };
    const auto rms_norm = [&] { return ml::matrix::rms_norm(x, weight, 1e-5); };
    const auto gelu = [&] { return ml::matrix::gelu(x); };
    measure("cross_entropy forward " + size, [&] { return Values{cross_entropy()}; });
    measure("cross_entropy both " + size, [&] { return both_ways(cross_entropy, {x}, {}); });
    measure("layer_norm forward " + size, [&] { return Values{layer_norm()}; });
    measure("layer_norm both " + size,
            [&] { return both_ways(layer_norm, {x, weight, bias}, given); });
    measure("rms_norm both " + size, [&] { return both_ways(rms_norm, {x, weight}, given); });
    measure("gelu both " + size, [&] { return both_ways(gelu, {x}, given); });
  }
}
