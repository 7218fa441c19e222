#include "oa/ml/nn/transformer.h"

#include <algorithm>

#include "oa/core/error.h"
#include "oa/engine/engine_core.h"
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

Matrix TransformerBlock::prefill(const Matrix& input, const MultiHeadAttention::Cache& cache) {
  return feed_forward(input + attention_->prefill(ln_attn_->forward(input), cache));
}

Matrix TransformerBlock::step(const Matrix& input, const MultiHeadAttention::Cache& cache,
                              const Matrix& position) {
  return feed_forward(input + attention_->step(ln_attn_->forward(input), cache, position));
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
  return logits_of(x);
}

Transformer::State Transformer::new_state(i64 batch) const {
  State state;
  for (const auto& block : blocks_) state.caches_.push_back(block->attention().new_cache(batch));
  state.lengths_ =
      oa::matrix::cast(oa::matrix::full_like(tokens_->weight().data(), {batch}, 0), DType::I32);
  return state;
}

void Transformer::State::reset() {
  const auto clear = [](const Matrix& m) { m.assign(oa::matrix::full_like(m, 0)); };
  // A masked NaN would still be one in a product.
  for (const auto& cache : caches_) {
    clear(cache.keys);
    clear(cache.values);
  }
  clear(lengths_);
  longest_ = 0;
}

void Transformer::check_state(const State& state, const Matrix& tokens,
                              const Shape& expected) const {
  if (state.caches_.size() != blocks_.size()) {
    invalid("Transformer", "state does not fit, got one of {} blocks, expected {}",
            state.caches_.size(), blocks_.size());
  }
  if (!tokens.valid() || tokens.shape() != expected) {
    invalid("Transformer", "tokens do not fit, got {}, expected {}",
            tokens.valid() ? tokens.shape() : Shape(), expected);
  }
}

Matrix Transformer::logits_of(const Matrix& x) { return head_->forward(final_norm_->forward(x)); }

Matrix Transformer::prefill(const Matrix& tokens, i64 length, State& state) {
  const std::vector<i64> all(static_cast<size_t>(state.caches_.empty() ? 0 : state.batch()),
                             length);
  return prefill(tokens, all, state);
}

Matrix Transformer::prefill(const Matrix& tokens, std::span<const i64> lengths, State& state) {
  const i64 context = context_length(), width = model_width();
  const i64 batch = state.caches_.empty() ? 0 : state.batch();
  check_state(state, tokens, {batch, context});
  if (static_cast<i64>(lengths.size()) != batch) {
    invalid("Transformer", "wrong number of lengths, got {}, expected {}", lengths.size(), batch);
  }
  if (state.longest_ != 0) {
    fail(ErrorKind::FailedPrecondition, "Transformer",
         "the state holds {} positions, expected a new one or a reset", state.longest_);
  }
  std::vector<i32> length(lengths.size()), last(lengths.size());
  for (size_t b = 0; b < lengths.size(); ++b) {
    if (lengths[b] < 1 || lengths[b] > context) {
      invalid("Transformer", "bad length of prompt {}, got {}, expected 1 to {}", b, lengths[b],
              context);
    }
    length[b] = static_cast<i32>(lengths[b]);
    last[b] = static_cast<i32>(static_cast<i64>(b) * context + lengths[b] - 1);
  }
  auto* core = dynamic_cast<EngineCore*>(&tokens.tensor()->recorder());
  OA_CHECK(core != nullptr);  // modules are not parts of definitions
  const auto upload = [&](const std::vector<i32>& values) {
    return Matrix(core->upload("Transformer", {DType::I32, {batch}}, values.data()));
  };
  Matrix x = tokens_->forward(tokens) + positions_->weight().data();
  for (size_t i = 0; i < blocks_.size(); ++i) x = blocks_[i]->prefill(x, state.caches_[i]);
  state.lengths_.assign(upload(length));
  if (!core->capturing()) state.longest_ = *std::max_element(lengths.begin(), lengths.end());
  return logits_of(oa::matrix::gather(x.reshape({batch * context, width}), upload(last)));
}

Matrix Transformer::step(const Matrix& tokens, State& state) {
  const i64 context = context_length();
  const i64 batch = state.caches_.empty() ? 0 : state.batch();
  check_state(state, tokens, {batch});
  auto* core = dynamic_cast<EngineCore*>(&tokens.tensor()->recorder());
  OA_CHECK(core != nullptr);
  const bool runs = !core->capturing();
  if (runs && state.longest_ >= context) {
    fail(ErrorKind::FailedPrecondition, "Transformer",
         "the context is full, got {} positions, expected fewer than {}", state.longest_, context);
  }
  const Matrix at = state.lengths_;
  Matrix x =
      (tokens_->forward(tokens) + positions_->forward(at)).reshape({batch, 1, model_width()});
  for (size_t i = 0; i < blocks_.size(); ++i) x = blocks_[i]->step(x, state.caches_[i], at);
  const Matrix full = oa::matrix::full_like(at, static_cast<f64>(context));
  state.lengths_.assign(oa::matrix::minimum(at + oa::matrix::full_like(at, 1), full));
  if (runs) ++state.longest_;
  return logits_of(x.reshape({batch, model_width()}));
}

}  // namespace oa::ml::nn
