#include "apps/oa/lm/options.h"

#include <algorithm>
#include <cmath>

#include "oa/core/error.h"

namespace oa::command {
namespace {

// A run that goes on keeps what it was made with.
void refuse_on_resume(const CLI::App& lm) {
  static constexpr std::string_view kAllowed[] = {
      "--out",        "--resume", "--steps",  "--minutes", "--epochs",
      "--stop-after", "--sample", "--device", "--profile", "--help"};
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

void declare(CLI::App& command, LmModelConfig& m) {
  command.add_option("--arch", m.architecture, "transformer, rnn or gru")->capture_default_str();
  command.add_option("--tokenizer", m.tokenizer, "byte or bpe")->capture_default_str();
  command.add_option("--vocab", m.vocab, "Vocabulary of a bpe tokenizer")->capture_default_str();
  command.add_option("--layers", m.layers)->capture_default_str();
  command.add_option("--width", m.width)->capture_default_str();
  command.add_option("--heads", m.heads)->capture_default_str();
  command.add_option("--hidden", m.hidden, "Inner width; 0: 4 times --width")
      ->capture_default_str();
  command.add_option("--context", m.context, "Tokens that the model sees")->capture_default_str();
  command.add_option("--dropout", m.dropout)->capture_default_str();
  command.add_option("--seed", m.seed)->capture_default_str();
}

void declare(CLI::App& command, TrainOptions& o) {
  LmTrainConfig& t = o.train;
  command.add_option("--data", t.data, "A text file, or a folder of text files");
  command.add_option("--out", o.out, "The run's folder")->capture_default_str();
  command.add_flag("--resume", o.resume, "Go on with the run in --out, exactly where it was");
  declare(command, o.model);
  command.add_option("--batch", t.batch, "Windows a step")->capture_default_str();
  auto* steps = command.add_option("--steps", t.steps, "Steps of the whole run");
  auto* minutes = command.add_option("--minutes", t.minutes, "Length of the whole run");
  auto* epochs = command.add_option("--epochs", t.epochs, "Times that the text is seen");
  steps->excludes(minutes)->excludes(epochs);
  minutes->excludes(epochs);
  command.add_option("--lr", t.learning_rate, "Greatest learning rate")->capture_default_str();
  command.add_option("--schedule", t.schedule, "constant, cosine or wsd (warm-up, stable, decay)")
      ->capture_default_str();
  command.add_option("--warmup", t.warmup, "Steps of rising rate")->capture_default_str();
  command.add_option("--optimizer", t.optimizer, "sgd, adam, adamw or muon")->capture_default_str();
  command.add_option("--weight-decay", t.weight_decay)->capture_default_str();
  command.add_option("--clip", t.clip, "Greatest norm of the gradients; 0: none")
      ->capture_default_str();
  command
      .add_option("--precision", t.precision,
                  "Of products where the device has matrix units: f32, f32x3 or f32x6 (f32 from "
                  "16-bit parts), f16 or bf16 (mixed; f16 with a loss scale)")
      ->capture_default_str();
  command.add_option("--validation", t.validation_share, "Share of the text to validate on")
      ->capture_default_str();
  command.add_option("--validate-every", t.validate_every, "Steps; 0: never")
      ->capture_default_str();
  command.add_option("--validation-batches", t.validation_batches)->capture_default_str();
  command.add_option("--save-every", t.save_every, "Steps; 0: only at the end")
      ->capture_default_str();
  command.add_option("--stop-after", o.stop_after, "Save and stop after this many steps; 0: never");
  command.add_option("--sample", o.sample, "Tokens to write at the end")->capture_default_str();
  command.add_option("--device", o.device, "cpu, vulkan, vulkan:N or lavapipe; default: the best");
  command.add_option("--profile", o.profile,
                     "Time every kernel: a table at the end, and a trace for chrome://tracing in "
                     "this file");
}

void declare(CLI::App& command, GenerateCommand& c) {
  command.add_option("--model", c.model, "A model file, such as run/best.oam")->required();
  command.add_option("--prompt", c.prompt, "The text to continue");
  command.add_option("--tokens", c.options.tokens, "How many to write")->capture_default_str();
  command.add_option("--temperature", c.options.temperature, "0: always the likeliest")
      ->capture_default_str();
  command.add_option("--top-k", c.options.top_k, "Only the k likeliest; 0: all")
      ->capture_default_str();
  command.add_option("--top-p", c.options.top_p, "Only the likeliest with this share")
      ->capture_default_str();
  command.add_option("--seed", c.options.seed, "The same seed writes the same text")
      ->capture_default_str();
  command.add_option("--device", c.device, "cpu, vulkan, vulkan:N or lavapipe; default: the best");
}

void check_usage(const CLI::App& command, const TrainOptions& o) {
  if (o.resume) return refuse_on_resume(command);
  if (o.train.data.empty()) throw CLI::RequiredError("--data");
  if (o.train.steps == 0 && o.train.minutes == 0 && o.train.epochs == 0) {
    throw CLI::RequiredError("--steps, --minutes or --epochs");
  }
}

void check(const TrainOptions& o) {
  check(o.model, o.train);
  need_within("train", "stop-after", o.stop_after, 0, kMostSteps);
  need_within("train", "sample", o.sample, 0, kMostTokens);
}

void check(const GenerateOptions& o) {
  constexpr std::string_view kOp = "generate";
  need_within(kOp, "tokens", o.tokens, 0, kMostTokens);
  if (!(o.temperature >= 0) || !std::isfinite(o.temperature)) {
    invalid(kOp, "bad --temperature, got {}, expected a finite number of 0 or more", o.temperature);
  }
  need_within(kOp, "top-k", o.top_k, 0, kMostTokens);
  if (!(o.top_p >= 0 && o.top_p <= 1)) {
    invalid(kOp, "bad --top-p, got {}, expected 0 to 1", o.top_p);
  }
}

}  // namespace oa::command
