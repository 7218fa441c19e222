// `oa train lm`: trains a language model on text, in a run folder that can be resumed.
#include <fmt/format.h>

#include <atomic>
#include <csignal>
#include <filesystem>

#include "apps/oa/commands.h"
#include "apps/oa/lm/options.h"
#include "apps/oa/lm/trainer.h"

namespace oa::command {
namespace {

std::atomic<bool> stop_requested = false;  // set by the first Ctrl-C

// The second Ctrl-C ends the program.
void on_interrupt(int) {
  stop_requested = true;
  std::signal(SIGINT, SIG_DFL);
}

void run(const TrainOptions& o) {
  check(o);
  const std::filesystem::path last = std::filesystem::path(o.out) / "last.oam";
  const std::string precision = o.resume && std::filesystem::exists(last)
                                    ? read_lm_file(last).train.precision
                                    : o.train.precision;
  Engine engine = Engine::open({.device = o.device,
                                .profile = !o.profile.empty(),
                                .precision = precision_from(precision).value_or(Precision::F32)});
  LmTrainer trainer = o.resume ? LmTrainer::resume(engine, o.out, o.train)
                               : LmTrainer::create(engine, o.out, o.model, o.train);
  const LmFile& file = trainer.file();
  fmt::print(stderr, "{} of {} parameters on {}, {} tokens a step\n", file.model.architecture,
             trainer.model().module->num_parameters(), engine.device_info().name,
             file.train.batch * file.model.context);
  if (trainer.done()) {
    fmt::print("the run in {} is done at step {}; --steps or --minutes gives it more\n", o.out,
               file.progress.step);
    return;
  }
  std::signal(SIGINT, on_interrupt);
  const f64 validation = trainer.run(stop_requested, o.stop_after);
  std::signal(SIGINT, SIG_DFL);
  if (!o.profile.empty()) {
    engine.write_trace(o.profile);
    fmt::print(stderr, "{}", engine.profile_table());
  }
  const std::string resume = fmt::format("oa train lm --resume --out {}", o.out);
  if (!trainer.done()) {
    fmt::print("stopped at step {}; go on with: {}\n", file.progress.step, resume);
    return;
  }
  if (o.sample > 0) {
    fmt::print("{}\n", continue_text(engine, trainer.model(), trainer.tokenizer(), "",
                                     {.tokens = o.sample, .temperature = 0.8, .seed = 1}));
  }
  fmt::print(
      "done: {} steps in {:.0f} s, least validation loss {:.4f}; the model is {}/last.oam; more: "
      "{} --steps N\n",
      file.progress.step, file.progress.seconds, validation, o.out, resume);
}

}  // namespace

void add_train(CLI::App& app, Action& action) {
  CLI::App* train = app.add_subcommand("train", "Train a model");
  train->require_subcommand(1);
  CLI::App* lm = train->add_subcommand("lm", "Train a language model on text");
  auto o = std::make_shared<TrainOptions>();
  declare(*lm, *o);
  lm->callback([o, lm, &action] {
    check_usage(*lm, *o);
    action = [o] { run(*o); };
  });
}

}  // namespace oa::command
