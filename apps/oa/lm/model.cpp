#include "apps/oa/lm/model.h"

#include <algorithm>

#include "oa/core/error.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/nn/transformer.h"

namespace oa::command {
namespace {

i64 hidden_of(const LmModelConfig& c) { return c.hidden > 0 ? c.hidden : 4 * c.width; }

Matrix upload_tokens(const Engine& engine, const Shape& shape, std::span<const u32> tokens) {
  return Matrix::from_slice<u32>(engine, shape, tokens);
}

// The key/value cache makes a token cost the same at every position. When the context is full, its
// newer half is read again from position 0.
class TransformerContinuation final : public Continuation {
 public:
  TransformerContinuation(const Engine& engine, std::shared_ptr<ml::nn::Transformer> model)
      : engine_(engine), model_(std::move(model)), eval_(model_->scoped_eval()) {}

  Matrix feed(std::span<const u32> tokens) override {
    const ml::NoGrad quiet;
    OA_CHECK(!tokens.empty());
    const auto context = static_cast<size_t>(model_->context_length());
    seen_.insert(seen_.end(), tokens.begin(), tokens.end());
    const bool one_more = tokens.size() == 1 && state_ && seen_.size() <= context;
    if (one_more) return model_->step(upload_tokens(engine_, {1}, tokens), *state_);
    if (seen_.size() > context) {
      seen_.erase(seen_.begin(), seen_.end() - static_cast<std::ptrdiff_t>((context + 1) / 2));
    }
    std::vector<u32> window(seen_);
    window.resize(context);
    state_ = model_->new_state(1);
    return model_->prefill(upload_tokens(engine_, {1, model_->context_length()}, window),
                           static_cast<i64>(seen_.size()), *state_);
  }

 private:
  const Engine& engine_;
  std::shared_ptr<ml::nn::Transformer> model_;
  ml::ScopedEval eval_;
  std::optional<ml::nn::Transformer::State> state_;
  std::vector<u32> seen_;
};

}  // namespace

std::unique_ptr<ml::tokenizer::Tokenizer> make_tokenizer(const LmModelConfig& config,
                                                         const std::string& bpe_text) {
  if (config.tokenizer == "byte") return std::make_unique<ml::tokenizer::ByteTokenizer>();
  return std::make_unique<ml::BpeTokenizer>(
      ml::BpeTokenizer::parse(ml::tokenizer::bytes_of(bpe_text)));
}

LanguageModel LanguageModel::create(const Engine& engine, const LmModelConfig& config) {
  const i64 hidden = hidden_of(config);
  LanguageModel model{.config = config};
  model.module = ml::nn::Transformer::with_seed_and_dropout(
      engine, config.vocab, config.context, config.width, hidden, config.layers, config.heads, 1e-5,
      config.dropout, config.seed);
  return model;
}

std::unique_ptr<Continuation> LanguageModel::continuation(const Engine& engine) const {
  return std::make_unique<TransformerContinuation>(
      engine, std::dynamic_pointer_cast<ml::nn::Transformer>(module));
}

}  // namespace oa::command
