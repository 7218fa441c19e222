// How long a program takes to be ready, in processes of their own: a tiny training step from the
// start to its loss; and the captured step of a 6-layer model from the start until it could run,
// with an empty cache of compiled code and with a full one, and for another size of the batch.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "bench/harness.h"
#include "bench/support/step_cases.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/loss/cross_entropy.h"
#include "oa/ml/nn/transformer.h"
#include "oa/ml/optim/adam.h"

using namespace oa;

namespace {

Matrix training_step(const Matrix& x, const Matrix& y, ml::Module& model, ml::AdamW& optimizer) {
  ml::GradientTape tape;
  const Matrix loss = ml::loss::cross_entropy(model.forward(x), y);
  tape.backward(loss);
  optimizer.step();
  return loss;
}

// --- What the measured processes do ---

int first_step() {
  const Engine engine = Engine::open();
  const auto model = ml::nn::Transformer::with_seed(engine, 256, 16, 32, 64, 1, 1, 1e-5, 1);
  ml::AdamW optimizer(model->all_parameters(), 1e-3);
  const std::vector<u32> tokens(64 * 16, 5);
  const Matrix x = Matrix::from_slice<u32>(engine, {64, 16}, tokens);
  const Matrix y = Matrix::from_slice<u32>(engine, {64 * 16}, tokens);
  return training_step(x, y, *model, optimizer).item() < 10 ? 0 : 1;
}

// Captures the step of the large model for each of the batches; writes the seconds that the compile
// stages took for the last of them, and the kernels that it made.
int capture(std::span<char* const> batches, const char* result) {
  Engine engine = Engine::open();
  bench::StepCase step = bench::large_step_case();
  const auto model = step.make(engine);
  ml::AdamW optimizer(model->all_parameters(), 1e-3);
  engine.flush();
  for (const char* batch : batches) {
    step.batch = std::stoll(batch);
    const Matrix x = Matrix::from_slice<u32>(engine, {step.batch, step.context}, step.tokens());
    const Matrix y = Matrix::from_slice<u32>(engine, {step.batch * step.context}, step.targets());
    const u64 before = engine.counters().kernels_made;
    const ExecutionPlan plan =
        engine.capture([&] { return std::vector{training_step(x, y, *model, optimizer)}; },
                       {.verify = false});  // compiled, never run
    double seconds = 0;
    for (const graph::StageRecord& r : plan.stages()) seconds += r.seconds;
    std::ofstream(result) << seconds << ' ' << engine.counters().kernels_made - before;
  }
  return 0;
}

// --- Processes ---

double seconds_of_process(const char* self, std::vector<std::string> args) {
  std::vector<char*> argv = {const_cast<char*>(self)};  // execv wants them so
  for (std::string& a : args) argv.push_back(a.data());
  argv.push_back(nullptr);
  const double begin = bench::now();
  const pid_t child = fork();
  if (child == 0) {
    execv(self, argv.data());
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    bench::note("a measured process failed");
    std::exit(1);
  }
  return bench::now() - begin;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "first-step") return first_step();
  if (argc > 3 && std::string(argv[1]) == "capture") {
    return capture({argv + 3, static_cast<size_t>(argc - 3)}, argv[2]);
  }
  const bench::Options options = bench::parse(argc, argv);
  const auto folder =
      std::filesystem::temp_directory_path() / ("oa_startup_" + std::to_string(getpid()));
  const auto cache = folder / "cache", result = folder / "result";
  std::filesystem::create_directories(folder);
  setenv("OA_CACHE_DIR", cache.c_str(), 1);

  const auto wall = [&](const char* name, bool cold, int runs,
                        const std::vector<std::string>& args) {
    if (!options.wants(name)) return;
    std::filesystem::remove_all(cache);
    if (!cold) seconds_of_process(argv[0], args);
    std::vector<double> samples;
    for (int i = 0; i < runs; ++i) {
      if (cold) std::filesystem::remove_all(cache);
      samples.push_back(seconds_of_process(argv[0], args));
    }
    bench::report(name, "oa", bench::median(samples) * 1e3, "ms");
  };
  wall("first step, empty cache", true, 5, {"first-step"});
  wall("first step, full cache", false, 5, {"first-step"});
  const std::string file = result.string();
  wall("6x384 program ready, empty cache", true, 3, {"capture", file, "64"});
  wall("6x384 program ready, full cache", false, 5, {"capture", file, "64"});

  // The stages alone, with an empty cache; for a second batch size in the same process as well.
  const auto stages = [&](const std::string& name, const std::vector<std::string>& batches) {
    if (!options.wants(name)) return;
    std::vector<double> samples;
    std::vector<std::string> args = {"capture", file};
    args.insert(args.end(), batches.begin(), batches.end());
    double kernels = 0;
    for (int i = 0; i < 3; ++i) {
      std::filesystem::remove_all(cache);
      seconds_of_process(argv[0], args);
      double seconds = 0;
      std::ifstream(result) >> seconds >> kernels;
      samples.push_back(seconds);
    }
    bench::report(name, "oa", bench::median(samples) * 1e3, "ms");
    bench::report(name + ", kernels", "oa", kernels, "");
  };
  for (const char* batch : {"1", "8", "64"}) {
    stages(std::string("6x384 compile, batch ") + batch, {batch});
  }
  stages("6x384 compile, batch 64 after 8", {"8", "64"});
  std::filesystem::remove_all(folder);
}
