// One training step: forward, backward, AdamW. Milliseconds, the share of the machine's FMA peak,
// and the most memory that the process had.
#include <sys/resource.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "bench/harness.h"
#include "bench/support/fma_peak.h"
#include "bench/support/step_cases.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/loss/cross_entropy.h"
#include "oa/ml/optim/adam.h"

using namespace oa;

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);
  const char* threads = std::getenv("OA_THREADS");
  const double peak = bench::fma_peak(threads ? std::atoi(threads) : 2);
  if (options.round == 0) bench::note("FMA peak " + std::to_string(peak) + " GFLOP/s");
  Engine engine = Engine::open();
  for (const bench::StepCase& c : bench::step_cases()) {
    if (!options.wants(c.name)) continue;
    const auto model = c.make(engine);
    ml::AdamW optimizer(model->all_parameters(), 1e-3);
    const Matrix x = Matrix::from_slice<u32>(engine, {c.batch, c.context}, c.tokens());
    const Matrix y = Matrix::from_slice<u32>(engine, {c.batch * c.context}, c.targets());
    Matrix loss;
    const double seconds = bench::seconds_per_call(
        [&](int calls) {
          for (int i = 0; i < calls; ++i) {
            optimizer.zero_grad();
            ml::GradientTape tape;
            loss = ml::loss::cross_entropy(model->forward(x), y);
            tape.backward(loss);
            optimizer.step();
            engine.flush();
          }
          engine.wait();
        },
        options.seconds * 10);
    if (!(loss.item() < 6)) {
      bench::note("the loss does not fall");
      return 1;
    }
    bench::report(c.name, "oa", seconds * 1e3, "ms");
    bench::report(std::string(c.name) + ", share of FMA peak", "oa",
                  100 * c.operations / seconds * 1e-9 / peak, "%/s");
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  if (options.wants("memory")) {
    bench::report("memory peak", "oa", static_cast<double>(usage.ru_maxrss) / 1024, "MiB");
  }
}
