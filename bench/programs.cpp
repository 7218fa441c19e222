// One training step (forward, backward, AdamW) as a captured program: milliseconds of a replay, of
// the same step recorded anew each time, and of the capture itself; on the CPU also the share of
// the machine's FMA peak, on a card also a larger model in several precisions.
#include <fmt/format.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/harness.h"
#include "bench/support/fma_peak.h"
#include "bench/support/step_cases.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/loss/cross_entropy.h"
#include "oa/ml/optim/adam.h"
#include "oa/ml/training/training_program.h"

using namespace oa;

namespace {

void measure(Engine& engine, const bench::StepCase& c, const std::string& name,
             const bench::Options& options, double peak) {
  const auto model = c.make(engine);
  ml::AdamW optimizer(model->all_parameters(), 1e-3);
  const Matrix x = Matrix::from_slice<u32>(engine, {c.batch, c.context}, c.tokens());
  const Matrix y = Matrix::from_slice<u32>(engine, {c.batch * c.context}, c.targets());
  const auto record = [&] {
    ml::GradientTape tape;
    const Matrix loss = ml::loss::cross_entropy(model->forward(x), y);
    tape.backward(loss);
    return loss;
  };
  Matrix loss;
  const double recorded = bench::seconds_per_call(
      [&](int calls) {
        for (int i = 0; i < calls; ++i) {
          optimizer.zero_grad();
          loss = record();
          optimizer.step();
          engine.flush();
        }
        engine.wait();
      },
      options.seconds * 10);
  const double begin = bench::now();
  auto program = ml::TrainingProgram::capture(engine, optimizer, record);
  const double captured = bench::now() - begin;
  const double replayed = bench::seconds_per_call(
      [&](int calls) {
        for (int i = 0; i < calls; ++i) program.replay();
        program.wait();
      },
      options.seconds * 10);
  if (!(program.loss().item() < 6)) {
    throw std::runtime_error(name + ": the loss does not fall");
  }
  bench::report(name, "oa", replayed * 1e3, "ms");
  bench::report(name + ", recorded each time", "oa", recorded * 1e3, "ms");
  bench::report(name + ", capture", "oa", captured * 1e3, "ms");
  if (peak > 0) {
    bench::report(name + ", share of FMA peak", "oa", 100 * c.operations / replayed * 1e-9 / peak,
                  "%/s");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);
  Engine engine = Engine::open();
  const bool cpu = engine.device_info().kind == device::DeviceKind::Cpu;
  const char* threads = std::getenv("OA_THREADS");
  const double peak = cpu ? bench::fma_peak(threads ? std::atoi(threads) : 2) : 0;
  if (options.round == 0) {
    bench::note(engine.device_info().name);
    if (cpu) bench::note(fmt::format("FMA peak {:.0f} GFLOP/s", peak));
  }
  for (const bench::StepCase& c : bench::step_cases()) {
    if (options.wants(c.name)) measure(engine, c, c.name, options, peak);
  }
  if (cpu) return 0;
  const bench::StepCase large = bench::large_step_case();
  for (const Precision p : {Precision::F32, Precision::F32x3, Precision::F16, Precision::BF16}) {
    std::string name = large.name;
    if (p != Precision::F32) name += fmt::format(" {}", token(p));
    if (!options.wants(name)) continue;
    Engine precise = Engine::open({.precision = p});
    measure(precise, large, name, options, 0);
  }
}
