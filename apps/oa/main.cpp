// The `oa` command.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

int main(int argc, char** argv) {
  CLI::App app{"OA: neural networks and reinforcement learning on any machine"};
  app.set_version_flag("--version", "oa " OA_VERSION);
  CLI11_PARSE(app, argc, argv);
  fmt::print("{}", app.help());
  return 0;
}
