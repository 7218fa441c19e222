#include "apps/oa/lm/config.h"

#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "oa/core/error.h"
#include "oa/core/utf8.h"

namespace oa::command {
namespace {

constexpr std::string_view kOp = "train";
constexpr i64 kMostLayers = 100'000;

// Calls f(key, field) for each field; the one list for both directions.
template <class C, class F>
void fields(C& c, F&& f)
  requires std::same_as<std::remove_const_t<C>, LmModelConfig>
{
  f("architecture", c.architecture);
  f("tokenizer", c.tokenizer);
  f("vocab", c.vocab);
  f("layers", c.layers);
  f("width", c.width);
  f("heads", c.heads);
  f("hidden", c.hidden);
  f("context", c.context);
  f("dropout", c.dropout);
  f("seed", c.seed);
}

template <class C, class F>
void fields(C& c, F&& f)
  requires std::same_as<std::remove_const_t<C>, LmTrainConfig>
{
  f("data", c.data);
  f("batch", c.batch);
  f("steps", c.steps);
  f("minutes", c.minutes);
  f("epochs", c.epochs);
  f("optimizer", c.optimizer);
  f("learning_rate", c.learning_rate);
  f("schedule", c.schedule);
  f("warmup", c.warmup);
  f("weight_decay", c.weight_decay);
  f("precision", c.precision);
  f("clip", c.clip);
  f("validation_share", c.validation_share);
  f("validate_every", c.validate_every);
  f("validation_batches", c.validation_batches);
  f("save_every", c.save_every);
}

void need_one_of(std::string_view option, const std::string& value,
                 std::initializer_list<std::string_view> known) {
  std::string list;
  for (std::string_view k : known) {
    if (value == k) return;
    list += (list.empty() ? "" : ", ") + std::string(k);
  }
  invalid(kOp, "bad --{}, got \"{}\", expected one of {}", option, printable(value), list);
}

void need_number(std::string_view option, f64 value, f64 least, f64 most) {
  if (!(value >= least && value <= most)) {
    invalid(kOp, "bad --{}, got {}, expected {} to {}", option, value, least, most);
  }
}

}  // namespace

void to_json(nlohmann::json& j, const LmModelConfig& c) {
  fields(c, [&](const char* key, const auto& field) { j[key] = field; });
}
void from_json(const nlohmann::json& j, LmModelConfig& c) {
  fields(c, [&](const char* key, auto& field) { j.at(key).get_to(field); });
}
void to_json(nlohmann::json& j, const LmTrainConfig& c) {
  fields(c, [&](const char* key, const auto& field) { j[key] = field; });
}
void from_json(const nlohmann::json& j, LmTrainConfig& c) {
  fields(c, [&](const char* key, auto& field) {
    // Files of before there was a choice have f32.
    if (std::string_view(key) == "precision" && !j.contains(key)) return;
    j.at(key).get_to(field);
  });
}

void need_within(std::string_view op, std::string_view option, i64 value, i64 least, i64 most) {
  if (value < least || value > most) {
    invalid(op, "bad --{}, got {}, expected {} to {}", option, value, least, most);
  }
}

f64 parameter_count(const LmModelConfig& c) {
  const auto vocab = static_cast<f64>(c.vocab), width = static_cast<f64>(c.width),
             layers = static_cast<f64>(c.layers), context = static_cast<f64>(c.context);
  const f64 hidden = c.hidden > 0 ? static_cast<f64>(c.hidden) : 4 * width;
  if (c.architecture == "transformer") {
    const f64 attention = 4 * (width + 1) * width, norms = 4 * width;
    const f64 inner = (width + 1) * hidden + (hidden + 1) * width;
    return (vocab + context) * width + layers * (attention + inner + norms) + 2 * width +
           (width + 1) * vocab;
  }
  const f64 gates = c.architecture == "gru" ? 3 : 1;
  const f64 first = width + hidden + 2, others = 2 * hidden + 2;
  return vocab * width + gates * hidden * (first + (layers - 1) * others) + (hidden + 1) * vocab;
}

void check(const LmModelConfig& c) {
  need_one_of("arch", c.architecture, {"transformer", "rnn", "gru"});
  need_one_of("tokenizer", c.tokenizer, {"byte", "bpe"});
  need_within(kOp, "vocab", c.vocab, 256, kMostExtent);
  need_within(kOp, "layers", c.layers, 1, kMostLayers);
  need_within(kOp, "width", c.width, 1, kMostExtent);
  need_within(kOp, "heads", c.heads, 1, kMostExtent);
  need_within(kOp, "hidden", c.hidden, 0, kMostExtent);
  need_within(kOp, "context", c.context, 1, kMostExtent);
  need_number("dropout", c.dropout, 0, 1);
  if (c.architecture == "transformer" && c.width % c.heads != 0) {
    invalid(kOp, "--heads does not divide --width, got {} and {}, expected a divisor", c.heads,
            c.width);
  }
  if (const f64 count = parameter_count(c); count > static_cast<f64>(kMostParameters)) {
    invalid(kOp, "the model is too large, got {:.4g} parameters, expected at most {}", count,
            kMostParameters);
  }
}

void check(const LmModelConfig& model, const LmTrainConfig& c) {
  check(model);
  constexpr f64 kMost = 1e6;
  // The files of a run keep it as text.
  if (!is_utf8({reinterpret_cast<const u8*>(c.data.data()), c.data.size()})) {
    invalid(kOp, "bad --data, expected UTF-8, got \"{}\"", printable(c.data));
  }
  need_within(kOp, "batch", c.batch, 1, kMostExtent);
  need_within(kOp, "steps", c.steps, 0, kMostSteps);
  need_number("minutes", c.minutes, 0, kMost);
  need_number("epochs", c.epochs, 0, kMost);
  need_one_of("optimizer", c.optimizer, {"sgd", "adam", "adamw", "muon"});
  need_number("lr", c.learning_rate, 0, 1e300);
  need_one_of("schedule", c.schedule, {"constant", "cosine", "wsd"});
  need_within(kOp, "warmup", c.warmup, 0, kMostSteps);
  need_number("weight-decay", c.weight_decay, 0, kMost);
  need_number("clip", c.clip, 0, 1e300);
  need_one_of("precision", c.precision, {"f32", "f32x3", "f32x6", "f16", "bf16"});
  if (!(c.validation_share >= 0 && c.validation_share < 1)) {
    invalid(kOp, "bad --validation, got {}, expected 0 or more and below 1", c.validation_share);
  }
  need_within(kOp, "validate-every", c.validate_every, 0, kMostSteps);
  need_within(kOp, "validation-batches", c.validation_batches, 1, kMostSteps);
  need_within(kOp, "save-every", c.save_every, 0, kMostSteps);
  if (c.batch * model.context > kMostBatchTokens) {
    invalid(kOp, "--batch times --context is too large, got {}, expected at most {}",
            c.batch * model.context, kMostBatchTokens);
  }
}

}  // namespace oa::command
