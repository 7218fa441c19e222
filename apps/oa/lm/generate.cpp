#include "apps/oa/lm/generate.h"

#include "oa/core/utf8.h"

namespace oa::command {

std::string continue_text(Engine& engine, const LanguageModel& model,
                          const ml::tokenizer::Tokenizer& tokenizer, std::string_view prompt,
                          const GenerateOptions& o) {
  ml::nn::Generation generation = model.generation(
      engine, {.sample = {.temperature = o.temperature, .top_k = o.top_k, .top_p = o.top_p},
               .seed = o.seed});
  const std::vector<u32> start = tokenizer.encode_text(prompt.empty() ? "\n" : prompt);
  std::string text, held;
  for (i64 i = 0; i < o.tokens; ++i) {
    const std::vector<u32> next = i == 0 ? generation.start(start) : generation.next();
    const std::vector<u8> bytes = tokenizer.decode(next);
    held.append(bytes.begin(), bytes.end());
    const bool last = i + 1 == o.tokens;
    const size_t whole =
        last ? held.size() : held.size() - utf8_incomplete_tail(ml::tokenizer::bytes_of(held));
    if (o.on_text && whole > 0) o.on_text(std::string_view(held).substr(0, whole));
    text += held.substr(0, whole);
    held.erase(0, whole);
  }
  return text;
}

}  // namespace oa::command
