#include "apps/oa/lm/model.h"

#include <algorithm>

#include "oa/core/error.h"
#include "oa/matrix/create.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/index.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/nn/recurrent.h"
#include "oa/ml/nn/transformer.h"

namespace oa::command {
namespace {

using ml::nn::Embedding;
using ml::nn::Linear;

// Embedding, recurrent layers, head: children embed, rnn or gru, head.
class RecurrentModel final : public ml::Module {
 public:
  RecurrentModel(const Engine& engine, const LmModelConfig& c, i64 hidden)
      : embed_(registry().register_module("embed",
                                          Embedding::with_seed(engine, c.vocab, c.width, c.seed))) {
    if (c.architecture == "rnn") {
      body_ = registry().register_module(
          "rnn", ml::nn::Rnn::with_seed(engine, c.width, hidden, c.layers, c.seed + 1));
    } else {
      body_ = registry().register_module(
          "gru", ml::nn::Gru::with_seed(engine, c.width, hidden, c.layers, true, c.seed + 1));
    }
    if (c.dropout > 0) {
      dropout_ = registry().register_module(
          "dropout", ml::nn::Dropout::with_seed(engine, c.dropout, c.seed + 3));
    }
    head_ =
        registry().register_module("head", Linear::with_seed(engine, hidden, c.vocab, c.seed + 2));
  }

  Matrix forward(const Matrix& tokens) override {
    Matrix x = body_->forward(embed_->forward(tokens));
    if (dropout_) x = dropout_->forward(x);
    return head_->forward(x.reshape({-1, x.shape().back()}));
  }

 private:
  std::shared_ptr<Embedding> embed_;
  std::shared_ptr<ml::Module> body_;
  std::shared_ptr<ml::nn::Dropout> dropout_;
  std::shared_ptr<Linear> head_;
};

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

// Runs the last `context` tokens from a zero state, as in training.
class WindowContinuation final : public Continuation {
 public:
  WindowContinuation(const Engine& engine, std::shared_ptr<ml::Module> model, i64 context)
      : engine_(engine),
        model_(std::move(model)),
        context_(context),
        eval_(model_->scoped_eval()) {}

  Matrix feed(std::span<const u32> tokens) override {
    const ml::NoGrad quiet;
    OA_CHECK(!tokens.empty());
    seen_.insert(seen_.end(), tokens.begin(), tokens.end());
    const auto context = static_cast<size_t>(context_);
    if (seen_.size() > context) {
      seen_.erase(seen_.begin(), seen_.end() - static_cast<std::ptrdiff_t>(context));
    }
    std::vector<u32> window(seen_);
    window.resize(context);
    const Matrix logits = model_->forward(upload_tokens(engine_, {1, context_}, window));
    // A runtime index: no position compiles anything.
    const Matrix last = oa::matrix::arange_like(logits, 1, static_cast<f64>(seen_.size() - 1));
    return oa::matrix::index_select(logits, oa::matrix::cast(last, DType::I32), 0);
  }

 private:
  const Engine& engine_;
  std::shared_ptr<ml::Module> model_;
  i64 context_;
  ml::ScopedEval eval_;
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
  if (config.architecture == "transformer") {
    model.module = ml::nn::Transformer::with_seed_and_dropout(
        engine, config.vocab, config.context, config.width, hidden, config.layers, config.heads,
        1e-5, config.dropout, config.seed);
  } else {
    model.module = std::make_shared<RecurrentModel>(engine, config, hidden);
  }
  return model;
}

std::unique_ptr<Continuation> LanguageModel::continuation(const Engine& engine) const {
  if (auto t = std::dynamic_pointer_cast<ml::nn::Transformer>(module)) {
    return std::make_unique<TransformerContinuation>(engine, t);
  }
  return std::make_unique<WindowContinuation>(engine, module, config.context);
}

}  // namespace oa::command
