#include "oa/ml/nn/attention.h"

#include <cmath>

#include "oa/core/error.h"
#include "oa/matrix/create.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/matmul.h"
#include "oa/matrix/movement.h"
#include "oa/ml/nn/init.h"

namespace oa::ml::nn {

MultiHeadAttention::MultiHeadAttention(const Engine& engine, i64 width, i64 heads, i64 sequence,
                                       f64 dropout, bool bias, u64 seed)
    : width_(width), heads_(heads), sequence_(sequence) {
  const auto project = [&](const char* name, u64 offset) {
    return registry().register_module(
        name, Linear::with_seed_and_bias(engine, width, width, bias, seed + offset));
  };
  q_ = project("q_proj", 0);
  k_ = project("k_proj", 1);
  v_ = project("v_proj", 2);
  out_ = project("out_proj", 3);
  if (dropout > 0) {
    dropout_ = registry().register_module("dropout", Dropout::with_seed(engine, dropout, seed + 4));
  }
}

std::shared_ptr<MultiHeadAttention> MultiHeadAttention::with_seed(const Engine& engine,
                                                                  i64 model_width, i64 num_heads,
                                                                  i64 sequence_length, u64 seed) {
  return with_seed_and_options(engine, model_width, num_heads, sequence_length, 0, true, seed);
}

std::shared_ptr<MultiHeadAttention> MultiHeadAttention::with_seed_and_bias(const Engine& engine,
                                                                           i64 model_width,
                                                                           i64 num_heads,
                                                                           i64 sequence_length,
                                                                           bool bias, u64 seed) {
  return with_seed_and_options(engine, model_width, num_heads, sequence_length, 0, bias, seed);
}

std::shared_ptr<MultiHeadAttention> MultiHeadAttention::with_seed_and_options(
    const Engine& engine, i64 model_width, i64 num_heads, i64 sequence_length, f64 dropout,
    bool bias, u64 seed) {
  constexpr std::string_view kOp = "MultiHeadAttention";
  need_sizes(kOp, {model_width, num_heads, sequence_length});
  if (model_width % num_heads != 0) {
    invalid(kOp, "heads do not divide the width, got {} and {}, expected a divisor", num_heads,
            model_width);
  }
  if (!(dropout >= 0 && dropout <= 1)) {
    invalid(kOp, "bad dropout, got {}, expected 0 to 1", dropout);
  }
  return std::shared_ptr<MultiHeadAttention>(
      new MultiHeadAttention(engine, model_width, num_heads, sequence_length, dropout, bias, seed));
}

void MultiHeadAttention::set_backend(AttentionBackend backend) {
  if (backend == AttentionBackend::Flash && dropout_) {
    invalid("MultiHeadAttention", "Flash has no dropout of probabilities, got {}, expected 0",
            dropout_->probability());
  }
  backend_ = backend;
}

void MultiHeadAttention::set_sequence_length(i64 sequence_length) {
  need_sizes("MultiHeadAttention", {sequence_length});
  sequence_ = sequence_length;
}

Matrix MultiHeadAttention::attend(const Matrix& input, const Matrix& mask) {
  if (!input.valid() || input.rank() != 2 || input.shape()[1] != width_ ||
      input.shape()[0] % sequence_ != 0) {
    invalid("MultiHeadAttention", "input does not fit, got {}, expected [B x {}, {}]",
            input.valid() ? input.shape() : Shape(), sequence_, width_);
  }
  const i64 batch = input.shape()[0] / sequence_, dim = width_ / heads_;
  const Shape split{batch, sequence_, heads_, dim};
  const Matrix q = q_->forward(input).reshape(split), k = k_->forward(input).reshape(split),
               v = v_->forward(input).reshape(split);
  const bool causal = mode_ == AttentionMode::Causal;
  const bool drops = dropout_ && dropout_->is_training() && dropout_->probability() > 0;
  Matrix y;
  if (drops) {
    // Probabilities are dropped, so they have to exist.
    const auto heads_first = [](const Matrix& x) { return oa::matrix::transpose(x, 1, 2); };
    const Matrix scores = oa::matrix::mat_mul_nt(heads_first(q), heads_first(k));
    const Matrix hidden = causal ? matrix::causal_mask(scores, sequence_, sequence_) : mask;
    const Matrix p =
        matrix::softmax_scaled_masked(scores, hidden, 1 / std::sqrt(static_cast<f64>(dim)));
    y = heads_first(oa::matrix::mat_mul(dropout_->forward(p), heads_first(v)));
    last_backend_ = AttentionBackend::Standard;
  } else {
    last_backend_ = backend_ == AttentionBackend::Auto ? AttentionBackend::Flash : backend_;
    y = matrix::attention(
        q, k, v, {.causal = causal, .mask = mask, .heads_inner = true, .backend = last_backend_});
  }
  return out_->forward(y.reshape(input.shape()));
}

Matrix MultiHeadAttention::forward(const Matrix& input) { return attend(input, {}); }

Matrix MultiHeadAttention::forward_masked(const Matrix& input, const Matrix& mask) {
  constexpr std::string_view kOp = "MultiHeadAttention";
  if (mode_ != AttentionMode::Bidirectional) {
    invalid(kOp, "a mask with the causal mode, expected the bidirectional mode");
  }
  if (!input.valid() || input.rank() != 2 || input.shape()[0] % sequence_ != 0) {
    invalid(kOp, "input does not fit, got {}, expected [B x {}, {}]",
            input.valid() ? input.shape() : Shape(), sequence_, width_);
  }
  const i64 batch = input.shape()[0] / sequence_;
  const Shape expected{batch * heads_ * sequence_, sequence_};
  if (!mask.valid() || mask.shape() != expected) {
    invalid(kOp, "mask does not fit, got {}, expected {}", mask.valid() ? mask.shape() : Shape(),
            expected);
  }
  return attend(input, mask.reshape({batch, heads_, sequence_, sequence_}));
}

MultiHeadAttention::Cache MultiHeadAttention::new_cache(i64 batch) const {
  need_sizes("MultiHeadAttention", {batch});
  const auto zeros = [&] {
    return oa::matrix::full_like(q_->weight().data(), {batch, sequence_, width_}, 0);
  };
  return {zeros(), zeros()};
}

void MultiHeadAttention::check_cached(const Matrix& input, const Cache& cache, i64 count) const {
  constexpr std::string_view kOp = "MultiHeadAttention";
  if (mode_ != AttentionMode::Causal) {
    invalid(kOp, "a cache with the bidirectional mode, expected the causal mode");
  }
  for (const Matrix* m : {&cache.keys, &cache.values}) {
    if (m->valid() && m->rank() == 3 && m->shape()[1] == sequence_ && m->shape()[2] == width_ &&
        m->shape()[0] == cache.keys.shape()[0]) {
      continue;
    }
    invalid(kOp, "cache does not fit, got {}, expected [B, {}, {}]",
            m->valid() ? m->shape() : Shape(), sequence_, width_);
  }
  const Shape expected{cache.keys.shape()[0], count, width_};
  if (!input.valid() || input.shape() != expected) {
    invalid(kOp, "input does not fit, got {}, expected {}", input.valid() ? input.shape() : Shape(),
            expected);
  }
}

Matrix MultiHeadAttention::attend_cached(const Matrix& query, const Cache& cache,
                                         const Matrix& mask) {
  const i64 batch = query.shape()[0], count = query.shape()[1], dim = width_ / heads_;
  const Shape kv{batch, sequence_, heads_, dim};
  const Matrix y = matrix::attention(query.reshape({batch, count, heads_, dim}),
                                     cache.keys.reshape(kv), cache.values.reshape(kv),
                                     {.causal = !mask.valid(), .mask = mask, .heads_inner = true});
  return out_->forward(y.reshape(query.shape()));
}

Matrix MultiHeadAttention::prefill(const Matrix& input, const Cache& cache) {
  check_cached(input, cache, sequence_);
  cache.keys.assign(k_->forward(input));
  cache.values.assign(v_->forward(input));
  return attend_cached(q_->forward(input), cache, {});
}

Matrix MultiHeadAttention::step(const Matrix& input, const Cache& cache, const Matrix& position) {
  check_cached(input, cache, 1);
  const i64 batch = cache.keys.shape()[0];
  if (!position.valid() || position.dtype() != DType::I32 || position.shape() != Shape{batch}) {
    invalid("MultiHeadAttention", "position does not fit, got {} {}, expected i32 [{}]",
            position.valid() ? token(position.dtype()) : "nothing",
            position.valid() ? position.shape() : Shape(), batch);
  }
  const Matrix at =
      oa::matrix::arange_like(position, sequence_, 0, DType::I32).reshape({1, sequence_});
  const Matrix here = position.reshape({batch, 1});
  const Matrix is_here = oa::matrix::equal(at, here).reshape({batch, sequence_, 1});
  cache.keys.assign(oa::matrix::where(is_here, k_->forward(input), cache.keys));
  cache.values.assign(oa::matrix::where(is_here, v_->forward(input), cache.values));
  const Matrix seen = oa::matrix::less_equal(at, here).reshape({batch, 1, 1, sequence_});
  return attend_cached(q_->forward(input), cache, seen);
}

}  // namespace oa::ml::nn
