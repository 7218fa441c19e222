// A language model of the command line: tokens in, logits out.
#pragma once

#include <memory>
#include <string>

#include "apps/oa/lm/config.h"
#include "oa/ml/module.h"
#include "oa/ml/nn/generation.h"
#include "oa/ml/tokenizer/bpe.h"

namespace oa::command {

// The tokenizer that a model file names.
std::unique_ptr<ml::tokenizer::Tokenizer> make_tokenizer(const LmModelConfig& config,
                                                         const std::string& bpe_text);

struct LanguageModel {
  LmModelConfig config;
  std::shared_ptr<ml::Module> module;  // tokens [B, context] -> logits [B context, V]

  static LanguageModel create(const Engine& engine, const LmModelConfig& config);
  // Continues one text at a time.
  ml::nn::Generation generation(Engine& engine, const ml::nn::GenerationOptions& options) const;
};

}  // namespace oa::command
