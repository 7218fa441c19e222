// The subcommands of `oa`. Each adds its options to the command line and sets `action` when it was
// chosen; main() runs the action after parsing and turns errors into exit codes.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace oa::command {

using Action = std::function<void()>;

void add_convert(CLI::App& app, Action& action);
void add_explain(CLI::App& app, Action& action);
void add_info(CLI::App& app, Action& action);
void add_inspect(CLI::App& app, Action& action);
void add_selftest(CLI::App& app, Action& action);
void add_train(CLI::App& app, Action& action);
void add_generate(CLI::App& app, Action& action);
void add_eval(CLI::App& app, Action& action);

}  // namespace oa::command
