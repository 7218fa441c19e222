// The first training step of a program: from the start of the process to the loss, with an empty
// cache of compiled code and with a full one.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/harness.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/loss/cross_entropy.h"
#include "oa/ml/nn/transformer.h"
#include "oa/ml/optim/adam.h"

using namespace oa;

namespace {

// What the measured process does.
int first_step() {
  Engine engine = Engine::open();
  const auto model = ml::nn::Transformer::with_seed(engine, 256, 16, 32, 64, 1, 1, 1e-5, 1);
  ml::AdamW optimizer(model->all_parameters(), 1e-3);
  const std::vector<u32> tokens(64 * 16, 5);
  const Matrix x = Matrix::from_slice<u32>(engine, {64, 16}, tokens);
  const Matrix y = Matrix::from_slice<u32>(engine, {64 * 16}, tokens);
  ml::GradientTape tape;
  const Matrix loss = ml::loss::cross_entropy(model->forward(x), y);
  tape.backward(loss);
  optimizer.step();
  return loss.item() < 10 ? 0 : 1;
}

double seconds_of_process(const char* self) {
  const double begin = bench::now();
  const pid_t child = fork();
  if (child == 0) {
    execl(self, self, "first-step", nullptr);
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    bench::note("the first step failed");
    std::exit(1);
  }
  return bench::now() - begin;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "first-step") return first_step();
  const bench::Options options = bench::parse(argc, argv);
  const auto cache =
      std::filesystem::temp_directory_path() / ("oa_startup_" + std::to_string(getpid()));
  setenv("OA_CACHE_DIR", cache.c_str(), 1);
  const auto measure = [&](const char* name, bool cold) {
    if (!options.wants(name)) return;
    std::vector<double> samples;
    for (int i = 0; i < 5; ++i) {
      if (cold) std::filesystem::remove_all(cache);
      samples.push_back(seconds_of_process(argv[0]));
    }
    bench::report(name, "oa", bench::median(samples) * 1e3, "ms");
  };
  measure("first step, empty cache", true);
  seconds_of_process(argv[0]);
  measure("first step, full cache", false);
  std::filesystem::remove_all(cache);
}
