// Multi-head attention.
#pragma once

#include <optional>

#include "oa/ml/matrix/attention.h"
#include "oa/ml/nn/basic.h"
#include "oa/ml/nn/linear.h"

namespace oa::ml::nn {

enum class AttentionMode : u8 { Causal, Bidirectional };

// Projects to queries, keys and values, attends within each sequence, projects back (Vaswani et
// al., 2017). Children q_proj, k_proj, v_proj, out_proj.
class MultiHeadAttention final : public Module {
 public:
  // Seeds of the projections: seed to seed + 3; of the dropout: seed + 4.
  static std::shared_ptr<MultiHeadAttention> with_seed(const Engine& engine, i64 model_width,
                                                       i64 num_heads, i64 sequence_length,
                                                       u64 seed);
  static std::shared_ptr<MultiHeadAttention> with_seed_and_bias(const Engine& engine,
                                                                i64 model_width, i64 num_heads,
                                                                i64 sequence_length, bool bias,
                                                                u64 seed);
  // dropout: of the attention probabilities while training, in [0, 1].
  static std::shared_ptr<MultiHeadAttention> with_seed_and_options(const Engine& engine,
                                                                   i64 model_width, i64 num_heads,
                                                                   i64 sequence_length, f64 dropout,
                                                                   bool bias, u64 seed);

  Matrix forward(const Matrix& input) override;  // [B S, D] -> [B S, D]
  // With an additive mask [B H S, S]; bidirectional only.
  Matrix forward_masked(const Matrix& input, const Matrix& mask);

  // What a generation remembers: keys and values [B, capacity, D] in memory of their own, replaced
  // in place, so that what reads and writes them can be captured and replayed.
  struct Cache {
    Matrix keys, values;
  };
  Cache new_cache(i64 batch) const;  // zeros; capacity: sequence_length
  // forward() of x [B, capacity, D], which also fills the cache. Causal.
  Matrix prefill(const Matrix& input, const Cache& cache);
  // One new position per sequence, x [B, 1, D], at `position` I32 [B] of its cache row: attends to
  // what lies there up to this position, and keeps it. A position outside of the cache keeps
  // nothing. Causal.
  Matrix step(const Matrix& input, const Cache& cache, const Matrix& position);

  AttentionBackend backend() const { return backend_; }
  // Flash has no dropout; InvalidArgument.
  void set_backend(AttentionBackend backend);
  AttentionBackend last_backend() const { return last_backend_; }  // of the last forward
  AttentionMode mode() const { return mode_; }
  void set_mode(AttentionMode mode) { mode_ = mode; }
  i64 model_width() const { return width_; }
  i64 num_heads() const { return heads_; }
  i64 sequence_length() const { return sequence_; }
  void set_sequence_length(i64 sequence_length);
  bool has_bias() const { return q_->has_bias(); }
  f64 dropout_probability() const { return dropout_ ? dropout_->probability() : 0; }

 private:
  MultiHeadAttention(const Engine& engine, i64 width, i64 heads, i64 sequence, f64 dropout,
                     bool bias, u64 seed);
  Matrix attend(const Matrix& input, const Matrix& mask);
  Matrix attend_cached(const Matrix& query, const Cache& cache, const Matrix& mask);
  void check_cached(const Matrix& input, const Cache& cache, i64 count) const;
  i64 width_, heads_, sequence_;
  AttentionBackend backend_ = AttentionBackend::Auto;
  AttentionBackend last_backend_ = AttentionBackend::Auto;
  AttentionMode mode_ = AttentionMode::Causal;
  std::shared_ptr<Linear> q_, k_, v_, out_;
  std::shared_ptr<Dropout> dropout_;  // null without dropout
};

}  // namespace oa::ml::nn
