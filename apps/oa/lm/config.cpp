#include "apps/oa/lm/config.h"

#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "oa/core/error.h"

namespace oa::command {
namespace {

constexpr std::string_view kOp = "train";

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
  invalid(kOp, "bad --{}, got \"{}\", expected one of {}", option, value, list);
}

void need_at_least(std::string_view option, i64 value, i64 least) {
  if (value < least) invalid(kOp, "bad --{}, got {}, expected {} or more", option, value, least);
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
  fields(c, [&](const char* key, auto& field) { j.at(key).get_to(field); });
}

void check(const LmModelConfig& c) {
  need_one_of("arch", c.architecture, {"transformer", "rnn", "gru"});
  need_one_of("tokenizer", c.tokenizer, {"byte", "bpe"});
  need_at_least("vocab", c.vocab, 256);
  need_at_least("layers", c.layers, 1);
  need_at_least("width", c.width, 1);
  need_at_least("heads", c.heads, 1);
  need_at_least("hidden", c.hidden, 0);
  need_at_least("context", c.context, 1);
  need_number("dropout", c.dropout, 0, 1);
  if (c.architecture == "transformer" && c.width % c.heads != 0) {
    invalid(kOp, "--heads does not divide --width, got {} and {}, expected a divisor", c.heads,
            c.width);
  }
}

void check(const LmTrainConfig& c) {
  constexpr f64 kMost = 1e300;
  need_at_least("batch", c.batch, 1);
  need_at_least("steps", c.steps, 0);
  need_number("minutes", c.minutes, 0, kMost);
  need_number("epochs", c.epochs, 0, kMost);
  need_one_of("optimizer", c.optimizer, {"sgd", "adam", "adamw", "muon"});
  need_number("lr", c.learning_rate, 0, kMost);
  need_one_of("schedule", c.schedule, {"constant", "cosine", "wsd"});
  need_at_least("warmup", c.warmup, 0);
  need_number("weight-decay", c.weight_decay, 0, kMost);
  need_number("clip", c.clip, 0, kMost);
  if (!(c.validation_share >= 0 && c.validation_share < 1)) {
    invalid(kOp, "bad --validation, got {}, expected 0 or more and below 1", c.validation_share);
  }
  need_at_least("validate-every", c.validate_every, 0);
  need_at_least("validation-batches", c.validation_batches, 1);
  need_at_least("save-every", c.save_every, 0);
}

}  // namespace oa::command
