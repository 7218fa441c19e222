// One training step (forward, backward, AdamW) as a captured program: milliseconds of a replay, of
// the same step recorded anew each time, and of the capture itself. On any device.
#include <string>
#include <vector>

#include "bench/harness.h"
#include "bench/support/step_cases.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/loss/cross_entropy.h"
#include "oa/ml/optim/adam.h"
#include "oa/ml/training/training_program.h"

using namespace oa;

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);
  Engine engine = Engine::open();
  if (options.round == 0) bench::note(engine.device_info().name);
  for (const bench::StepCase& c : bench::step_cases()) {
    const std::string name = c.name;
    if (!options.wants(name)) continue;
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
      bench::note("the loss does not fall");
      return 1;
    }
    bench::report(name, "oa", replayed * 1e3, "ms");
    bench::report(name + ", recorded each time", "oa", recorded * 1e3, "ms");
    bench::report(name + ", capture", "oa", captured * 1e3, "ms");
  }
}
