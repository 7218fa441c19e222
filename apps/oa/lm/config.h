// What a language model is and how it is trained, as the command line gives it and as files keep
// it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

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
  i64 hidden = 0;  // feed-forward (transformer) or recurrent width; 0: 4 or 2 times the width
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
  f64 clip = 1;                 // greatest norm of all gradients; 0: none
  f64 validation_share = 0.05;  // of the tokens, at their end
  i64 validate_every = 200;     // steps
  i64 validation_batches = 20;
  i64 save_every = 200;  // steps
};

void to_json(nlohmann::json& j, const LmModelConfig& c);
void from_json(const nlohmann::json& j, LmModelConfig& c);
void to_json(nlohmann::json& j, const LmTrainConfig& c);
void from_json(const nlohmann::json& j, LmTrainConfig& c);

// InvalidArgument with the option's name for values that make no sense.
void check(const LmModelConfig& c);
void check(const LmTrainConfig& c);

}  // namespace oa::command
