// A language model of the command line: tokens in, logits out, and one token after another.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "apps/oa/lm/config.h"
#include "oa/ml/module.h"
#include "oa/ml/tokenizer/bpe.h"

namespace oa::command {

// The tokenizer that a model file names.
std::unique_ptr<ml::tokenizer::Tokenizer> make_tokenizer(const LmModelConfig& config,
                                                         const std::string& bpe_text);

// Continues one text. Holds what the model remembers of it.
class Continuation {
 public:
  virtual ~Continuation() = default;
  // Takes the next tokens of the text (at least one) and gives the logits [1, V] of what follows.
  virtual Matrix feed(std::span<const u32> tokens) = 0;
};

struct LanguageModel {
  LmModelConfig config;
  std::shared_ptr<ml::Module> module;  // tokens [B, context] -> logits [B context, V]

  static LanguageModel create(const Engine& engine, const LmModelConfig& config);
  // In evaluation mode for as long as the continuation lives.
  std::unique_ptr<Continuation> continuation(const Engine& engine) const;
};

}  // namespace oa::command
