#include "apps/oa/lm/model.h"

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

ml::nn::Generation LanguageModel::generation(Engine& engine,
                                             const ml::nn::GenerationOptions& options) const {
  if (auto t = std::dynamic_pointer_cast<ml::nn::Transformer>(module)) {
    return {engine, std::move(t), 1, options};
  }
  return {engine, module, config.context, 1, options};
}

}  // namespace oa::command
