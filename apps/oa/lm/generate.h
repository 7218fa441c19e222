// Writing with a language model.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "apps/oa/lm/model.h"

namespace oa::command {

struct GenerateOptions {
  i64 tokens = 200;
  f64 temperature = 1;  // 0: always the likeliest token
  i64 top_k = 0;        // 0: all
  f64 top_p = 1;
  u64 seed = 0;
  // Called with the text of each token as it comes; whole UTF-8 characters only.
  std::function<void(std::string_view)> on_text = {};
};

// The prompt's continuation, without the prompt. An empty prompt starts after a line's end. The
// same seed gives the same text.
std::string continue_text(Engine& engine, const LanguageModel& model,
                          const ml::tokenizer::Tokenizer& tokenizer, std::string_view prompt,
                          const GenerateOptions& options);

}  // namespace oa::command
