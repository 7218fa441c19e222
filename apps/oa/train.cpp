// `oa train lm`: trains a language model on text, in a run folder that can be resumed.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <csignal>

#include "apps/oa/commands.h"
#include "apps/oa/lm/generate.h"
#include "apps/oa/lm/trainer.h"
#include "oa/core/error.h"

namespace oa::command {
namespace {

std::atomic<bool> stop_requested = false;  // set by the first Ctrl-C

// The second Ctrl-C ends the program.
void on_interrupt(int) {
  stop_requested = true;
  std::signal(SIGINT, SIG_DFL);
}

struct Options {
  LmModelConfig model;
  LmTrainConfig train;
  std::string out = "run";
  std::string device;
  bool resume = false;
  i64 sample = 200;    // tokens written at the end
  i64 stop_after = 0;  // steps of this session; 0: any number
};

void run(const Options& o) {
  Engine engine = Engine::open({.device = o.device});
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

// A run that goes on keeps what it was made with.
void refuse_on_resume(const CLI::App& lm) {
  static constexpr std::string_view kAllowed[] = {"--out",     "--resume", "--steps",
                                                  "--minutes", "--epochs", "--stop-after",
                                                  "--sample",  "--device", "--help"};
  for (const CLI::Option* option : lm.get_options()) {
    if (option->count() == 0 ||
        std::ranges::find(kAllowed, option->get_name()) != std::end(kAllowed)) {
      continue;
    }
    throw CLI::ValidationError(
        option->get_name(),
        "not with --resume, the run keeps its own; only --steps, --minutes or --epochs, "
        "--stop-after, --sample and --device may differ");
  }
}

}  // namespace

void add_train(CLI::App& app, Action& action) {
  CLI::App* train = app.add_subcommand("train", "Train a model");
  train->require_subcommand(1);
  CLI::App* lm = train->add_subcommand("lm", "Train a language model on text");
  auto o = std::make_shared<Options>();
  LmModelConfig& m = o->model;
  LmTrainConfig& t = o->train;
  lm->add_option("--data", t.data, "A text file, or a folder of text files");
  lm->add_option("--out", o->out, "The run's folder")->capture_default_str();
  lm->add_flag("--resume", o->resume, "Go on with the run in --out, exactly where it was");
  lm->add_option("--arch", m.architecture, "transformer, rnn or gru")->capture_default_str();
  lm->add_option("--tokenizer", m.tokenizer, "byte or bpe")->capture_default_str();
  lm->add_option("--vocab", m.vocab, "Vocabulary of a bpe tokenizer")->capture_default_str();
  lm->add_option("--layers", m.layers)->capture_default_str();
  lm->add_option("--width", m.width)->capture_default_str();
  lm->add_option("--heads", m.heads)->capture_default_str();
  lm->add_option("--hidden", m.hidden, "Inner width; 0: 4 (transformer) or 2 times --width")
      ->capture_default_str();
  lm->add_option("--context", m.context, "Tokens that the model sees")->capture_default_str();
  lm->add_option("--dropout", m.dropout)->capture_default_str();
  lm->add_option("--seed", m.seed)->capture_default_str();
  lm->add_option("--batch", t.batch, "Windows a step")->capture_default_str();
  auto* steps = lm->add_option("--steps", t.steps, "Steps of the whole run");
  auto* minutes = lm->add_option("--minutes", t.minutes, "Length of the whole run");
  auto* epochs = lm->add_option("--epochs", t.epochs, "Times that the text is seen");
  steps->excludes(minutes)->excludes(epochs);
  minutes->excludes(epochs);
  lm->add_option("--lr", t.learning_rate, "Greatest learning rate")->capture_default_str();
  lm->add_option("--schedule", t.schedule, "constant, cosine or wsd (warm-up, stable, decay)")
      ->capture_default_str();
  lm->add_option("--warmup", t.warmup, "Steps of rising rate")->capture_default_str();
  lm->add_option("--optimizer", t.optimizer, "sgd, adam, adamw or muon")->capture_default_str();
  lm->add_option("--weight-decay", t.weight_decay)->capture_default_str();
  lm->add_option("--clip", t.clip, "Greatest norm of the gradients; 0: none")
      ->capture_default_str();
  lm->add_option("--validation", t.validation_share, "Share of the text to validate on")
      ->capture_default_str();
  lm->add_option("--validate-every", t.validate_every, "Steps; 0: never")->capture_default_str();
  lm->add_option("--validation-batches", t.validation_batches)->capture_default_str();
  lm->add_option("--save-every", t.save_every, "Steps; 0: only at the end")->capture_default_str();
  lm->add_option("--stop-after", o->stop_after, "Save and stop after this many steps; 0: never")
      ->check(CLI::NonNegativeNumber);
  lm->add_option("--sample", o->sample, "Tokens to write at the end")->capture_default_str();
  lm->add_option("--device", o->device, "cpu, vulkan, vulkan:N or lavapipe; default: the best");
  lm->callback([o, lm, &action] {
    if (o->resume) refuse_on_resume(*lm);
    if (!o->resume && o->train.data.empty()) {
      throw CLI::RequiredError("--data");
    }
    if (!o->resume && o->train.steps == 0 && o->train.minutes == 0 && o->train.epochs == 0) {
      throw CLI::RequiredError("--steps, --minutes or --epochs");
    }
    action = [o] { run(*o); };
  });
}

}  // namespace oa::command
