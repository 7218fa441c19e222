// `oa selftest`: runs small computations on devices and compares with the host.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "apps/oa/commands.h"
#include "apps/oa/selftest_checks.h"
#include "oa/core/error.h"
#include "oa/device/select.h"

namespace oa::command {
namespace {

// The devices that an engine would open by itself: software drivers only when named.
std::vector<std::string> default_devices() {
  std::vector<std::string> names;
  for (const device::DeviceInfo& d : device::list_devices()) {
    if (d.kind != device::DeviceKind::SoftwareGpu) names.push_back(d.id);
  }
  return names;
}

// Number of failed checks.
int test_device(const std::string& name, bool verbose) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  EngineOptions options;
  options.device = name;
  options.guard_bands = true;
  Engine engine = Engine::open(options);
  int failed = 0;
  for (const Check& check : selftest_checks()) {
    std::string wrong;
    try {
      wrong = check.run(engine);
      engine.check_guards();
    } catch (const Error& error) {
      wrong = error.what();
    }
    if (!wrong.empty()) ++failed;
    if (verbose || !wrong.empty()) {
      fmt::print("  {:<16}{}\n", check.name, wrong.empty() ? "ok" : "FAILED: " + wrong);
    }
  }
  const f64 seconds = std::chrono::duration<f64>(Clock::now() - start).count();
  const auto total = static_cast<int>(selftest_checks().size());
  fmt::print("{}: {}, {} of {} checks passed, {:.2f} s\n", engine.device_info().id,
             engine.device_info().name, total - failed, total, seconds);
  return failed;
}

}  // namespace

void add_selftest(CLI::App& app, Action& action) {
  CLI::App* selftest = app.add_subcommand("selftest", "Compare what devices compute with the host");
  struct Options {
    std::vector<std::string> devices;
    bool verbose = false;
  };
  const auto options = std::make_shared<Options>();
  selftest->add_option("--device", options->devices,
                       "Devices by name, as OA_DEVICE has them; default: all but software drivers");
  selftest->add_flag("--verbose", options->verbose, "Name every check");
  selftest->callback([&action, options] {
    action = [options] {
      int failed = 0;
      for (const std::string& name :
           options->devices.empty() ? default_devices() : options->devices) {
        failed += test_device(name, options->verbose);
      }
      if (failed > 0) {
        fail(ErrorKind::BackendFailure, "selftest", "{} checks failed, expected none", failed);
      }
    };
  });
}

}  // namespace oa::command
