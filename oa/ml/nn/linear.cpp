#include "oa/ml/nn/linear.h"

#include <cmath>

#include "oa/core/error.h"
#include "oa/matrix/index.h"
#include "oa/ml/matrix/linear.h"
#include "oa/ml/nn/init.h"

namespace oa::ml::nn {
namespace {

constexpr i64 kBytes = 256;

void need_matrix(std::string_view op, const Matrix& m) {
  if (!m.valid() || m.rank() != 2 || m.num_elements() == 0) {
    invalid(op, "bad weight, got {}, expected a matrix with elements",
            m.valid() ? m.shape() : Shape());
  }
}

void need_bias(std::string_view op, const Matrix& weight, const Matrix& bias) {
  if (!bias.valid() || bias.shape() != Shape{weight.shape()[0]}) {
    invalid(op, "bias does not fit, got {}, expected [{}]", bias.valid() ? bias.shape() : Shape(),
            weight.shape()[0]);
  }
}

Parameter embedding_weight(const Engine& engine, i64 rows, i64 dim, u64 seed) {
  return symmetric_parameter(engine, "weight", {rows, dim}, 1 / std::sqrt(static_cast<f64>(dim)),
                             seed);
}

}  // namespace

Linear::Linear(const Parameter& weight, std::optional<Parameter> bias)
    : weight_(registry().register_parameter("weight", weight)), bias_(std::move(bias)) {
  if (bias_) registry().register_parameter("bias", *bias_);
}

std::shared_ptr<Linear> Linear::with_seed(const Engine& engine, i64 input_features,
                                          i64 output_features, u64 seed) {
  return with_seed_and_bias(engine, input_features, output_features, true, seed);
}

std::shared_ptr<Linear> Linear::with_seed_and_bias(const Engine& engine, i64 input_features,
                                                   i64 output_features, bool bias, u64 seed) {
  need_sizes("Linear", {input_features, output_features});
  const Parameter weight = symmetric_parameter(engine, "weight", {output_features, input_features},
                                               xavier_limit(input_features, output_features), seed);
  std::optional<Parameter> b;
  if (bias) b = constant_parameter(engine, "bias", {output_features}, 0);
  return std::shared_ptr<Linear>(new Linear(weight, std::move(b)));
}

std::shared_ptr<Linear> Linear::from_matrices(const Matrix& weight, const Matrix& bias) {
  need_matrix("Linear", weight);
  need_bias("Linear", weight, bias);
  return std::shared_ptr<Linear>(
      new Linear(Parameter::create("weight", weight), Parameter::create("bias", bias)));
}

std::shared_ptr<Linear> Linear::from_weight(const Matrix& weight) {
  need_matrix("Linear", weight);
  return std::shared_ptr<Linear>(new Linear(Parameter::create("weight", weight), std::nullopt));
}

Matrix Linear::forward(const Matrix& input) {
  return matrix::linear(input, weight_.data(), bias_ ? bias_->data() : Matrix());
}

Embedding::Embedding(const Parameter& weight)
    : weight_(registry().register_parameter("weight", weight)) {}

std::shared_ptr<Embedding> Embedding::with_seed(const Engine& engine, i64 num_embeddings,
                                                i64 embedding_dim, u64 seed) {
  need_sizes("Embedding", {num_embeddings, embedding_dim});
  return std::shared_ptr<Embedding>(
      new Embedding(embedding_weight(engine, num_embeddings, embedding_dim, seed)));
}

std::shared_ptr<Embedding> Embedding::from_matrix(const Matrix& weight) {
  need_matrix("Embedding", weight);
  return std::shared_ptr<Embedding>(new Embedding(Parameter::create("weight", weight)));
}

Matrix Embedding::forward(const Matrix& indices) {
  return oa::matrix::gather(weight_.data(), indices);
}

ByteEmbedding::ByteEmbedding(const Parameter& weight)
    : weight_(registry().register_parameter("weight", weight)) {}

std::shared_ptr<ByteEmbedding> ByteEmbedding::with_seed(const Engine& engine, i64 embedding_dim,
                                                        u64 seed) {
  need_sizes("ByteEmbedding", {embedding_dim});
  return std::shared_ptr<ByteEmbedding>(
      new ByteEmbedding(embedding_weight(engine, kBytes, embedding_dim, seed)));
}

std::shared_ptr<ByteEmbedding> ByteEmbedding::from_matrix(const Matrix& weight) {
  need_matrix("ByteEmbedding", weight);
  if (weight.shape()[0] != kBytes) {
    invalid("ByteEmbedding", "bad weight, got {}, expected 256 rows", weight.shape());
  }
  return std::shared_ptr<ByteEmbedding>(new ByteEmbedding(Parameter::create("weight", weight)));
}

Matrix ByteEmbedding::forward(const Matrix& bytes) {
  if (!bytes.valid() || bytes.dtype() != DType::U8) {
    invalid("ByteEmbedding", "bad bytes, got {}, expected u8",
            bytes.valid() ? token(bytes.dtype()) : "nothing");
  }
  return oa::matrix::gather(weight_.data(), bytes);
}

ByteHead::ByteHead(const Parameter& weight, const Parameter& bias)
    : weight_(registry().register_parameter("weight", weight)),
      bias_(registry().register_parameter("bias", bias)) {}

std::shared_ptr<ByteHead> ByteHead::with_seed(const Engine& engine, i64 input_features, u64 seed) {
  need_sizes("ByteHead", {input_features});
  return std::shared_ptr<ByteHead>(
      new ByteHead(symmetric_parameter(engine, "weight", {kBytes, input_features},
                                       xavier_limit(input_features, kBytes), seed),
                   constant_parameter(engine, "bias", {kBytes}, 0)));
}

std::shared_ptr<ByteHead> ByteHead::from_matrices(const Matrix& weight, const Matrix& bias) {
  need_matrix("ByteHead", weight);
  if (weight.shape()[0] != kBytes) {
    invalid("ByteHead", "bad weight, got {}, expected 256 rows", weight.shape());
  }
  need_bias("ByteHead", weight, bias);
  return std::shared_ptr<ByteHead>(
      new ByteHead(Parameter::create("weight", weight), Parameter::create("bias", bias)));
}

Matrix ByteHead::forward(const Matrix& input) {
  return matrix::linear(input, weight_.data(), bias_.data());
}

}  // namespace oa::ml::nn
