// The `oa` command. Exit status: 0 success, 1 an error (one line on standard error), 2 wrong usage.
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "apps/oa/commands.h"
#include "oa/core/error.h"

int main(int argc, char** argv) {
  CLI::App app{"OA: neural networks and reinforcement learning on any machine", "oa"};
  app.set_version_flag("--version", "oa " OA_VERSION);
  app.require_subcommand(1);
  oa::command::Action action;
  oa::command::add_info(app, action);
  oa::command::add_selftest(app, action);
  oa::command::add_train(app, action);
  oa::command::add_generate(app, action);
  oa::command::add_eval(app, action);
  oa::command::add_inspect(app, action);
  oa::command::add_convert(app, action);
  oa::command::add_explain(app, action);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;  // 0: --help or --version
  }
  try {
    action();
    if (std::fflush(stdout) != 0) {
      oa::fail(oa::ErrorKind::Io, "output", "cannot write, {}", std::strerror(errno));
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "oa: {}\n", error.what());
    return 1;
  }
  return 0;
}
