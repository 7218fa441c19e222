#include "oa/ml/nn/transformer.h"

#include "oa/core/error.h"
#include "oa/matrix/create.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/index.h"
#include "oa/matrix/movement.h"
#include "oa/ml/matrix/activation.h"
#include "oa/ml/nn/init.h"

namespace oa::ml::nn {

TransformerBlock::TransformerBlock(const Engine& engine, i64 width, i64 hidden, i64 sequence,
                                   i64 heads, f64 epsilon, f64 dropout, u64 seed)
    : ln_attn_(registry().register_module("ln_attn", LayerNorm::create(engine, width, epsilon))),
      attention_(registry().register_module(
          "attention", MultiHeadAttention::with_seed_and_options(engine, width, heads, sequence,
                                                                 dropout, true, seed))),
      ln_ffn_(registry().register_module("ln_ffn", LayerNorm::create(engine, width, epsilon))),
      ffn1_(registry().register_module("ffn1", Linear::with_seed(engine, width, hidden, seed + 4))),
      ffn2_(
          registry().register_module("ffn2", Linear::with_seed(engine, hidden, width, seed + 5))) {
  if (dropout == 0) return;
  drop_attn_ = registry().register_module("dropout_attn",
                                          Dropout::with_seed(engine, dropout, seed + 0x10001));
  drop_ffn_ = registry().register_module("dropout_ffn",
                                         Dropout::with_seed(engine, dropout, seed + 0x10002));
}

std::shared_ptr<TransformerBlock> TransformerBlock::with_seed(const Engine& engine, i64 model_width,
                                                              i64 hidden_width, i64 sequence_length,
                                                              i64 num_heads, f64 epsilon,
                                                              u64 seed) {
  return with_seed_and_dropout(engine, model_width, hidden_width, sequence_length, num_heads,
                               epsilon, 0, seed);
}

std::shared_ptr<TransformerBlock> TransformerBlock::with_seed_and_dropout(
    const Engine& engine, i64 model_width, i64 hidden_width, i64 sequence_length, i64 num_heads,
    f64 epsilon, f64 dropout, u64 seed) {
  need_sizes("TransformerBlock", {model_width, hidden_width, sequence_length, num_heads});
  return std::shared_ptr<TransformerBlock>(new TransformerBlock(
      engine, model_width, hidden_width, sequence_length, num_heads, epsilon, dropout, seed));
}

std::shared_ptr<TransformerBlock> TransformerBlock::with_seed_conditioned(
    const Engine& engine, i64 model_width, i64 hidden_width, i64 sequence_length, i64 num_heads,
    i64 condition_dim, f64 epsilon, u64 seed) {
  need_sizes("TransformerBlock", {condition_dim});
  const auto block =
      with_seed(engine, model_width, hidden_width, sequence_length, num_heads, epsilon, seed);
  const std::vector<f32> weight(static_cast<size_t>(6 * model_width * condition_dim));
  const std::vector<f32> bias(static_cast<size_t>(6 * model_width));
  block->modulation_ = block->registry().register_module(
      "adaptive_modulation",
      Linear::from_matrices(Matrix::from_f32(engine, {6 * model_width, condition_dim}, weight),
                            Matrix::from_f32(engine, {6 * model_width}, bias)));
  return block;
}

Matrix TransformerBlock::dropped(const Matrix& x, const std::shared_ptr<Dropout>& dropout) const {
  return dropout ? dropout->forward(x) : x;
}

Matrix TransformerBlock::feed_forward(const Matrix& x) {
  const Matrix hidden = matrix::gelu(ffn1_->forward(ln_ffn_->forward(x)));
  return x + dropped(ffn2_->forward(hidden), drop_ffn_);
}

Matrix TransformerBlock::forward(const Matrix& input) {
  const Matrix x = input + dropped(attention_->forward(ln_attn_->forward(input)), drop_attn_);
  return feed_forward(x);
}

Matrix TransformerBlock::forward_masked(const Matrix& input, const Matrix& mask) {
  const Matrix branch = attention_->forward_masked(ln_attn_->forward(input), mask);
  return feed_forward(input + dropped(branch, drop_attn_));
}

Matrix TransformerBlock::forward_conditioned(const Matrix& input, const Matrix& condition,
                                             const Matrix& mask) {
  constexpr std::string_view kOp = "TransformerBlock";
  const i64 width = model_width(), length = sequence_length();
  if (!modulation_) invalid(kOp, "the block has no condition, expected one made with a condition");
  if (!input.valid() || input.rank() != 2 || input.shape()[1] != width ||
      input.shape()[0] % length != 0) {
    invalid(kOp, "input does not fit, got {}, expected [B x {}, {}]",
            input.valid() ? input.shape() : Shape(), length, width);
  }
  const i64 batch = input.shape()[0] / length;
  if (!condition.valid() || condition.shape() != Shape{batch, condition_dim()}) {
    invalid(kOp, "condition does not fit, got {}, expected {}",
            condition.valid() ? condition.shape() : Shape(), Shape{batch, condition_dim()});
  }
  const Matrix all = modulation_->forward(condition).reshape({batch, 1, 6 * width});
  const auto part = [&](i64 i) { return oa::matrix::slice(all, 2, i * width, (i + 1) * width); };
  // Rows of a sample share its modulation.
  const auto rows = [&](const Matrix& x) { return x.reshape({batch, length, width}); };
  const auto flat = [&](const Matrix& x) { return x.reshape(input.shape()); };
  const auto modulated = [&](const Matrix& n, i64 shift) {
    return flat(rows(n) * (part(shift + 1) + 1.0) + part(shift));
  };
  const Matrix a = modulated(ln_attn_->forward(input), 0);
  const Matrix attended =
      mask.valid() ? attention_->forward_masked(a, mask) : attention_->forward(a);
  const Matrix x = input + flat(part(2) * rows(dropped(attended, drop_attn_)));
  const Matrix hidden = matrix::gelu(ffn1_->forward(modulated(ln_ffn_->forward(x), 3)));
  return x + flat(part(5) * rows(dropped(ffn2_->forward(hidden), drop_ffn_)));
}

Matrix TransformerBlock::step(const Matrix& input, MultiHeadAttention::Cache& cache, i64 count) {
  return feed_forward(input + attention_->step(ln_attn_->forward(input), cache, count));
}

Transformer::Transformer(const Engine& engine, i64 vocab, i64 context, i64 width, i64 hidden,
                         i64 layers, i64 heads, f64 epsilon, f64 dropout, u64 seed)
    : tokens_(registry().register_module("token_embedding",
                                         Embedding::with_seed(engine, vocab, width, seed))),
      positions_(registry().register_module(
          "position_embedding", Embedding::with_seed(engine, context, width, seed + 1))) {
  if (dropout > 0) {
    drop_ =
        registry().register_module("dropout", Dropout::with_seed(engine, dropout, seed + 0x10000));
  }
  for (i64 i = 0; i < layers; ++i) {
    const u64 block_seed = seed + 2 + 6 * static_cast<u64>(i);
    blocks_.push_back(registry().register_module(
        "block_" + std::to_string(i),
        TransformerBlock::with_seed_and_dropout(engine, width, hidden, context, heads, epsilon,
                                                dropout, block_seed)));
  }
  final_norm_ = registry().register_module("final_norm", LayerNorm::create(engine, width, epsilon));
  head_ = registry().register_module(
      "head", Linear::with_seed(engine, width, vocab, seed + 2 + 6 * static_cast<u64>(layers)));
}

std::shared_ptr<Transformer> Transformer::with_seed(const Engine& engine, i64 vocab_size,
                                                    i64 context_length, i64 model_width,
                                                    i64 hidden_width, i64 num_layers, i64 num_heads,
                                                    f64 epsilon, u64 seed) {
  return with_seed_and_dropout(engine, vocab_size, context_length, model_width, hidden_width,
                               num_layers, num_heads, epsilon, 0, seed);
}

std::shared_ptr<Transformer> Transformer::with_seed_and_dropout(
    const Engine& engine, i64 vocab_size, i64 context_length, i64 model_width, i64 hidden_width,
    i64 num_layers, i64 num_heads, f64 epsilon, f64 dropout, u64 seed) {
  need_sizes("Transformer",
             {vocab_size, context_length, model_width, hidden_width, num_layers, num_heads});
  if (model_width % num_heads != 0) {
    invalid("Transformer", "heads do not divide the width, got {} and {}, expected a divisor",
            num_heads, model_width);
  }
  return std::shared_ptr<Transformer>(new Transformer(engine, vocab_size, context_length,
                                                      model_width, hidden_width, num_layers,
                                                      num_heads, epsilon, dropout, seed));
}

Matrix Transformer::forward(const Matrix& tokens) {
  const i64 context = context_length(), width = model_width();
  if (!tokens.valid() || tokens.rank() != 2 || tokens.shape()[1] != context) {
    invalid("Transformer", "tokens do not fit, got {}, expected [B, {}]",
            tokens.valid() ? tokens.shape() : Shape(), context);
  }
  const i64 batch = tokens.shape()[0];
  Matrix x =
      (tokens_->forward(tokens) + positions_->weight().data()).reshape({batch * context, width});
  if (drop_) x = drop_->forward(x);
  for (const auto& block : blocks_) x = block->forward(x);
  return head_->forward(final_norm_->forward(x));
}

Transformer::State Transformer::new_state(i64 batch) const {
  State state;
  for (const auto& block : blocks_) state.caches.push_back(block->attention().new_cache(batch));
  return state;
}

Matrix Transformer::prefill(const Matrix& tokens, i64 length, State& state) {
  const i64 context = context_length();
  if (!tokens.valid() || tokens.rank() != 2 || tokens.shape()[1] != context || length < 1 ||
      length > context) {
    invalid("Transformer", "prompt does not fit, got {} of length {}, expected [B, {}] and 1 to {}",
            tokens.valid() ? tokens.shape() : Shape(), length, context, context);
  }
  for (const auto& cache : state.caches) {
    if (cache.length != 0) {
      fail(ErrorKind::FailedPrecondition, "Transformer",
           "the state holds {} positions, expected a new one", cache.length);
    }
  }
  const i64 batch = tokens.shape()[0];
  Matrix x = tokens_->forward(tokens) + positions_->weight().data();
  for (size_t i = 0; i < blocks_.size(); ++i) x = blocks_[i]->step(x, state.caches[i], context);
  for (auto& cache : state.caches) cache.length = length;
  // The row of the last position, by a runtime index.
  const Matrix at =
      oa::matrix::cast(oa::matrix::arange_like(x, 1, static_cast<f64>(length - 1)), DType::I32);
  const Matrix last = oa::matrix::index_select(x, at, 1).reshape({batch, model_width()});
  return head_->forward(final_norm_->forward(last));
}

Matrix Transformer::step(const Matrix& tokens, State& state) {
  if (!tokens.valid() || tokens.rank() != 1) {
    invalid("Transformer", "tokens do not fit, got {}, expected [B]",
            tokens.valid() ? tokens.shape() : Shape());
  }
  const i64 batch = tokens.shape()[0], position = state.length();
  if (position >= context_length()) {
    fail(ErrorKind::FailedPrecondition, "Transformer",
         "the context is full, got {} positions, expected fewer than {}", position,
         context_length());
  }
  const Matrix token = tokens_->forward(tokens);
  const Matrix at =
      oa::matrix::cast(oa::matrix::arange_like(token, 1, static_cast<f64>(position)), DType::I32);
  Matrix x = (token + positions_->forward(at)).reshape({batch, 1, model_width()});
  for (size_t i = 0; i < blocks_.size(); ++i) x = blocks_[i]->step(x, state.caches[i], 1);
  return head_->forward(final_norm_->forward(x.reshape({batch, model_width()})));
}

}  // namespace oa::ml::nn
