// What a language model is and how it is trained, as the command line gives it and as files keep
// it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "oa/core/types.h"

namespace oa::command {

// The model and its tokens. Kept in every model file.
struct LmModelConfig {
  std::string architecture = "transformer";  // transformer, rnn or gru
  std::string tokenizer = "byte";            // byte or bpe
  i64 vocab = 256;
  i64 layers = 4;
  i64 width = 128;
  i64 heads = 4;
  i64 hidden = 0;  // feed-forward (transformer) or recurrent width; 0: 4 times the width
  i64 context = 128;
  f64 dropout = 0;
  u64 seed = 1;
};

struct LmTrainConfig {
  std::string data;
  i64 batch = 16;
  i64 steps = 0;  // planned steps; 0 until `minutes` or `epochs` has made a number of them
  f64 minutes = 0;
  f64 epochs = 0;
  std::string optimizer = "adamw";  // sgd, adam, adamw or muon
  f64 learning_rate = 2e-3;
  std::string schedule = "cosine";  // constant, cosine or wsd (warm-up, stable, decay)
  i64 warmup = 100;
  f64 weight_decay = 0.01;
  std::string precision = "f32";  // of products, on devices with matrix units (oa::Precision)
  f64 clip = 1;                   // greatest norm of all gradients; 0: none
  f64 validation_share = 0.05;    // of the tokens, at their end
  i64 validate_every = 200;       // steps
  i64 validation_batches = 20;
  i64 save_every = 200;  // steps
};

void to_json(nlohmann::json& j, const LmModelConfig& c);
void from_json(const nlohmann::json& j, LmModelConfig& c);
void to_json(nlohmann::json& j, const LmTrainConfig& c);
void from_json(const nlohmann::json& j, LmTrainConfig& c);

// How many numbers a model of such a configuration learns; a f64, because some are absurd.
f64 parameter_count(const LmModelConfig& c);

// Nothing is allocated for a configuration above these, whether a command line or a file has it.
inline constexpr i64 kMostExtent = i64{1} << 24;       // of any size of a model
inline constexpr i64 kMostParameters = i64{1} << 34;   // of a model: 64 GiB
inline constexpr i64 kMostBatchTokens = i64{1} << 28;  // in a batch
inline constexpr i64 kMostTokens = i64{1} << 31;       // to write
inline constexpr i64 kMostSteps = i64{1} << 48;

// InvalidArgument with the option's name for values that make no sense.
void check(const LmModelConfig& c);
void check(const LmModelConfig& model, const LmTrainConfig& train);
// The check of one number.
void need_within(std::string_view op, std::string_view option, i64 value, i64 least, i64 most);

}  // namespace oa::command
