// Transformer blocks and the decoder-only language model.
#pragma once

#include <span>

#include "oa/ml/nn/attention.h"
#include "oa/ml/nn/basic.h"
#include "oa/ml/nn/linear.h"

namespace oa::ml::nn {

// x1 = x + attention(ln_attn(x)); y = x1 + ffn2(gelu(ffn1(ln_ffn(x1)))). Children ln_attn,
// attention, ln_ffn, ffn1, ffn2.
class TransformerBlock final : public Module {
 public:
  // Attention has the seed, ffn1 seed + 4, ffn2 seed + 5.
  static std::shared_ptr<TransformerBlock> with_seed(const Engine& engine, i64 model_width,
                                                     i64 hidden_width, i64 sequence_length,
                                                     i64 num_heads, f64 epsilon, u64 seed);
  // The same with dropout of attention probabilities and of both branches while training.
  static std::shared_ptr<TransformerBlock> with_seed_and_dropout(const Engine& engine,
                                                                 i64 model_width, i64 hidden_width,
                                                                 i64 sequence_length, i64 num_heads,
                                                                 f64 epsilon, f64 dropout,
                                                                 u64 seed);

  // With a condition [B, C] that shifts, scales and gates both branches (AdaLN-Zero; Peebles and
  // Xie, 2023): a further child adaptive_modulation, a Linear [6 D, C] of zeros, so that the new
  // block is the identity. Its results in order: shift, scale and gate of the attention, then of
  // the feed-forward branch.
  static std::shared_ptr<TransformerBlock> with_seed_conditioned(const Engine& engine,
                                                                 i64 model_width, i64 hidden_width,
                                                                 i64 sequence_length, i64 num_heads,
                                                                 i64 condition_dim, f64 epsilon,
                                                                 u64 seed);

  Matrix forward(const Matrix& input) override;  // [B S, D]
  // With an additive mask [B H S, S]; bidirectional only.
  Matrix forward_masked(const Matrix& input, const Matrix& mask);
  // With a condition [B, C], and a mask if it is not empty. InvalidArgument unless the block is
  // conditioned.
  Matrix forward_conditioned(const Matrix& input, const Matrix& condition, const Matrix& mask = {});
  bool is_adaptively_conditioned() const { return static_cast<bool>(modulation_); }
  i64 condition_dim() const { return modulation_ ? modulation_->input_features() : 0; }
  // forward() for a generation, over all positions and one by one: see MultiHeadAttention.
  Matrix prefill(const Matrix& input, const MultiHeadAttention::Cache& cache);
  Matrix step(const Matrix& input, const MultiHeadAttention::Cache& cache, const Matrix& position);

  i64 model_width() const { return attention_->model_width(); }
  i64 hidden_width() const { return ffn1_->output_features(); }
  i64 sequence_length() const { return attention_->sequence_length(); }
  i64 num_heads() const { return attention_->num_heads(); }
  AttentionMode attention_mode() const { return attention_->mode(); }
  void set_attention_mode(AttentionMode mode) { attention_->set_mode(mode); }
  void set_sequence_length(i64 length) { attention_->set_sequence_length(length); }
  MultiHeadAttention& attention() const { return *attention_; }

 private:
  TransformerBlock(const Engine& engine, i64 width, i64 hidden, i64 sequence, i64 heads,
                   f64 epsilon, f64 dropout, u64 seed);
  Matrix feed_forward(const Matrix& x);
  Matrix dropped(const Matrix& x, const std::shared_ptr<Dropout>& dropout) const;
  std::shared_ptr<LayerNorm> ln_attn_;
  std::shared_ptr<MultiHeadAttention> attention_;
  std::shared_ptr<LayerNorm> ln_ffn_;
  std::shared_ptr<Linear> ffn1_, ffn2_;
  std::shared_ptr<Dropout> drop_attn_, drop_ffn_;  // null without dropout
  std::shared_ptr<Linear> modulation_;             // null unless conditioned
};

// Token and learned position embeddings, blocks, a last norm and a head. Children token_embedding,
// position_embedding, block_0 ..., final_norm, head.
class Transformer final : public Module {
 public:
  // Seeds: tokens seed, positions seed + 1, block i seed + 2 + 6 i, head seed + 2 + 6 layers.
  static std::shared_ptr<Transformer> with_seed(const Engine& engine, i64 vocab_size,
                                                i64 context_length, i64 model_width,
                                                i64 hidden_width, i64 num_layers, i64 num_heads,
                                                f64 epsilon, u64 seed);
  static std::shared_ptr<Transformer> with_seed_and_dropout(const Engine& engine, i64 vocab_size,
                                                            i64 context_length, i64 model_width,
                                                            i64 hidden_width, i64 num_layers,
                                                            i64 num_heads, f64 epsilon, f64 dropout,
                                                            u64 seed);

  // u8 or u32 tokens [B, context] -> logits [B context, V].
  Matrix forward(const Matrix& tokens) override;

  // One generation per row, in device memory of fixed capacity (the context): what the blocks
  // remember, and how many tokens each row has. All of it is replaced in place by what reads it, so
  // a step can be captured, and every submission goes one token on.
  class State {
   public:
    i64 batch() const { return lengths_.shape()[0]; }
    const Matrix& lengths() const { return lengths_; }  // I32 [B]
    // Tokens of the longest row, as the host knows it.
    i64 longest() const { return longest_; }
    // To be called after submissions of a captured step, so that it stays so.
    void count_replays(i64 steps) { longest_ += steps; }
    // Empties all rows; captured steps go on with them.
    void reset();

   private:
    friend class Transformer;
    std::vector<MultiHeadAttention::Cache> caches_;
    Matrix lengths_;
    i64 longest_ = 0;
  };
  State new_state(i64 batch) const;
  // Fills a state, new or reset, from the first lengths[b] (1 to context) of each row of tokens
  // [B, context]; the others do not matter. Gives the logits [B, V] after each row's last token.
  Matrix prefill(const Matrix& tokens, std::span<const i64> lengths, State& state);
  Matrix prefill(const Matrix& tokens, i64 length, State& state);  // of all rows
  // Logits [B, V] after one more token per row, tokens [B]. FailedPrecondition when a row is full;
  // where only the device can tell (replays that were not counted), the next synchronisation raises
  // OutOfRange with the row, whose logits are NaN, and nothing of the state has changed.
  Matrix step(const Matrix& tokens, State& state);

  i64 vocab_size() const { return tokens_->num_embeddings(); }
  i64 context_length() const { return positions_->num_embeddings(); }
  i64 model_width() const { return tokens_->embedding_dim(); }
  i64 hidden_width() const { return blocks_[0]->hidden_width(); }
  i64 num_layers() const { return static_cast<i64>(blocks_.size()); }
  i64 num_heads() const { return blocks_[0]->num_heads(); }
  TransformerBlock& block(i64 i) { return *blocks_.at(static_cast<size_t>(i)); }

 private:
  Transformer(const Engine& engine, i64 vocab, i64 context, i64 width, i64 hidden, i64 layers,
              i64 heads, f64 epsilon, f64 dropout, u64 seed);
  void check_state(const State& state, const Matrix& tokens, const Shape& expected) const;
  Matrix logits_of(const Matrix& x);
  std::shared_ptr<Embedding> tokens_, positions_;
  std::shared_ptr<Dropout> drop_;  // null without dropout
  std::vector<std::shared_ptr<TransformerBlock>> blocks_;
  std::shared_ptr<LayerNorm> final_norm_;
  std::shared_ptr<Linear> head_;
};

}  // namespace oa::ml::nn
