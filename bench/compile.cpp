// From a recorded op to runnable code: compiled for the first time, and found on disk. And `oa
// info`.
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

#include "bench/harness.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/matmul.h"
#include "oa/matrix/reduce.h"
#include "oa/matrix/transcendental.h"

using namespace oa;

namespace {

struct Case {
  const char* name;
  std::function<Matrix(const Matrix&, const Matrix&)> fn;
};

const Case kCases[] = {
    {"a*b + tanh(a)", [](const Matrix& a, const Matrix& b) { return a * b + matrix::tanh(a); }},
    {"softmax", [](const Matrix& a, const Matrix&) { return matrix::softmax(a); }},
    {"variance", [](const Matrix& a, const Matrix&) { return matrix::variance(a, -1); }},
    {"product", [](const Matrix& a, const Matrix& b) { return matrix::mat_mul_nt(a, b); }},
};

// Median seconds of record + flush over shapes, each in an engine that has seen nothing.
double first_use(const std::string& cache_dir, const Case& c, bool only_once = false) {
  EngineOptions options;
  options.device_options.cache_dir = cache_dir;
  std::vector<double> samples;
  for (const i64 columns : {128, 192, 256, 320, 384, 448, 512, 576, 640}) {
    // A new engine each time: one kernel serves many shapes, and must not be found in memory.
    Engine engine = Engine::open(options);
    const auto values = bench::random_floats(static_cast<std::size_t>(64 * columns), 1);
    const Matrix a = Matrix::from_f32(engine, {64, columns}, values);
    const Matrix b = Matrix::from_f32(engine, {64, columns}, values);
    const double start = bench::now();
    const Matrix y = c.fn(a, b);
    engine.wait();
    samples.push_back(bench::now() - start);
    if (only_once) break;
  }
  return bench::median(samples);
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);
  namespace fs = std::filesystem;
  const fs::path here = fs::read_symlink("/proc/self/exe").parent_path();
  std::string pattern = (fs::temp_directory_path() / "oa-bench-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) return 1;
  const fs::path cache = pattern;

  first_use("-", kCases[0], true);  // the code generator's own first-time costs
  for (const Case& c : kCases) {
    const std::string cold = std::string("cold compile: ") + c.name;
    const std::string known = std::string("from the disk cache: ") + c.name;
    if (options.wants(cold)) bench::report(cold, "oa", first_use("-", c) * 1e3, "ms");
    if (options.wants(known)) {
      first_use(cache, c);
      bench::report(known, "oa", first_use(cache, c) * 1e3, "ms");
    }
  }
  fs::remove_all(cache);

  if (options.wants("oa info")) {
    std::string command = "'";
    command.append(here / "../apps/oa/oa").append("' info >/dev/null");
    std::vector<double> samples;
    for (int i = 0; i < 7; ++i) {
      const double start = bench::now();
      if (std::system(command.c_str()) != 0) return 1;
      samples.push_back(bench::now() - start);
    }
    bench::report("oa info", "oa", bench::median(samples) * 1e3, "ms");
  }
}
