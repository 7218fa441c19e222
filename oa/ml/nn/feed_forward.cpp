#include "oa/ml/nn/feed_forward.h"

#include "oa/matrix/elementwise.h"
#include "oa/ml/matrix/activation.h"
#include "oa/ml/matrix/linear.h"
#include "oa/ml/nn/init.h"

namespace oa::ml::nn {

Swiglu::Swiglu(const Engine& engine, i64 input, i64 hidden, bool bias, u64 seed) {
  const auto weight = [&](const char* name, i64 out, i64 in, u64 offset) {
    return registry().register_parameter(
        name, symmetric_parameter(engine, name, {out, in}, xavier_limit(in, out), seed + offset));
  };
  gate_weight_ = weight("gate_weight", hidden, input, 0);
  up_weight_ = weight("up_weight", hidden, input, 1);
  down_weight_ = weight("down_weight", input, hidden, 2);
  if (!bias) return;
  const auto zeros = [&](const char* name, i64 size) {
    return registry().register_parameter(name, constant_parameter(engine, name, {size}, 0));
  };
  gate_bias_ = zeros("gate_bias", hidden);
  up_bias_ = zeros("up_bias", hidden);
  down_bias_ = zeros("down_bias", input);
}

std::shared_ptr<Swiglu> Swiglu::with_seed(const Engine& engine, i64 input_features,
                                          i64 intermediate_size, bool bias, u64 seed) {
  need_sizes("Swiglu", {input_features, intermediate_size});
  return std::shared_ptr<Swiglu>(new Swiglu(engine, input_features, intermediate_size, bias, seed));
}

Matrix Swiglu::forward(const Matrix& input) {
  const auto data = [](const std::optional<Parameter>& p) { return p ? p->data() : Matrix(); };
  const Matrix gate = matrix::linear(input, gate_weight_.data(), data(gate_bias_));
  const Matrix up = matrix::linear(input, up_weight_.data(), data(up_bias_));
  return matrix::linear(matrix::swiglu(gate, up), down_weight_.data(), data(down_bias_));
}

Ffn::Ffn(const Engine& engine, i64 width, i64 hidden, f64 epsilon, u64 seed)
    : norm_(registry().register_module("norm", RmsNorm::create(engine, width, epsilon))),
      gate_(registry().register_module("gate", Linear::with_seed(engine, width, hidden, seed))),
      up_(registry().register_module("up", Linear::with_seed(engine, width, hidden, seed + 1))),
      down_(
          registry().register_module("down", Linear::with_seed(engine, hidden, width, seed + 2))) {}

std::shared_ptr<Ffn> Ffn::with_seed(const Engine& engine, i64 width, i64 hidden, f64 epsilon,
                                    u64 seed) {
  need_sizes("Ffn", {width, hidden});
  return std::shared_ptr<Ffn>(new Ffn(engine, width, hidden, epsilon, seed));
}

Matrix Ffn::forward(const Matrix& input) {
  const Matrix n = norm_->forward(input);
  return input + down_->forward(matrix::swiglu(gate_->forward(n), up_->forward(n)));
}

}  // namespace oa::ml::nn
