// Linear layers, embeddings, and their forms for bytes.
#pragma once

#include "oa/ml/module.h"

namespace oa::ml::nn {

// y = x WT + b over the last axis.
class Linear final : public Module {
 public:
  // weight [O, I] uniform within the Xavier limit, bias [O] of zeros.
  static std::shared_ptr<Linear> with_seed(const Engine& engine, i64 input_features,
                                           i64 output_features, u64 seed);
  static std::shared_ptr<Linear> with_seed_and_bias(const Engine& engine, i64 input_features,
                                                    i64 output_features, bool bias, u64 seed);
  static std::shared_ptr<Linear> from_matrices(const Matrix& weight, const Matrix& bias);
  static std::shared_ptr<Linear> from_weight(const Matrix& weight);

  Matrix forward(const Matrix& input) override;  // [..., I] -> [..., O]

  i64 input_features() const { return weight_.data().shape()[1]; }
  i64 output_features() const { return weight_.data().shape()[0]; }
  const Parameter& weight() const { return weight_; }
  const std::optional<Parameter>& bias() const { return bias_; }
  bool has_bias() const { return bias_.has_value(); }

 private:
  Linear(const Parameter& weight, std::optional<Parameter> bias);
  Parameter weight_;
  std::optional<Parameter> bias_;
};

// Rows of a table. An index out of range is reported at the next synchronisation and gives a row of
// NaN.
class Embedding final : public Module {
 public:
  // weight [V, D] uniform within 1 / sqrt(D).
  static std::shared_ptr<Embedding> with_seed(const Engine& engine, i64 num_embeddings,
                                              i64 embedding_dim, u64 seed);
  static std::shared_ptr<Embedding> from_matrix(const Matrix& weight);

  Matrix forward(const Matrix& indices) override;  // u8, u32 or i32 [...] -> [..., D]

  i64 num_embeddings() const { return weight_.data().shape()[0]; }
  i64 embedding_dim() const { return weight_.data().shape()[1]; }
  const Parameter& weight() const { return weight_; }

 private:
  explicit Embedding(const Parameter& weight);
  Parameter weight_;
};

// An embedding of bytes: u8 [...] -> [..., D].
class ByteEmbedding final : public Module {
 public:
  static std::shared_ptr<ByteEmbedding> with_seed(const Engine& engine, i64 embedding_dim,
                                                  u64 seed);
  static std::shared_ptr<ByteEmbedding> from_matrix(const Matrix& weight);  // [256, D]
  Matrix forward(const Matrix& bytes) override;
  const Parameter& weight() const { return weight_; }

 private:
  explicit ByteEmbedding(const Parameter& weight);
  Parameter weight_;
};

// Logits of bytes: [..., I] -> [..., 256].
class ByteHead final : public Module {
 public:
  static std::shared_ptr<ByteHead> with_seed(const Engine& engine, i64 input_features, u64 seed);
  static std::shared_ptr<ByteHead> from_matrices(const Matrix& weight, const Matrix& bias);
  Matrix forward(const Matrix& input) override;
  const Parameter& weight() const { return weight_; }
  const Parameter& bias() const { return bias_; }

 private:
  ByteHead(const Parameter& weight, const Parameter& bias);
  Parameter weight_, bias_;
};

}  // namespace oa::ml::nn
