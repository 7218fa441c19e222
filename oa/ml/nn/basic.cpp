#include "oa/ml/nn/basic.h"

#include <cmath>

#include "oa/core/error.h"
#include "oa/matrix/random.h"
#include "oa/matrix/reduce.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/matrix/activation.h"
#include "oa/ml/matrix/attention.h"
#include "oa/ml/matrix/norm.h"
#include "oa/ml/nn/init.h"

namespace oa::ml::nn {

Matrix Relu::forward(const Matrix& input) { return matrix::relu(input); }
Matrix Gelu::forward(const Matrix& input) { return matrix::gelu(input); }
Matrix Silu::forward(const Matrix& input) { return matrix::silu(input); }
Matrix Softmax::forward(const Matrix& input) { return oa::matrix::softmax(input, dim_); }
Matrix LogSoftmax::forward(const Matrix& input) { return oa::matrix::log_softmax(input, dim_); }

Matrix Flatten::forward(const Matrix& input) {
  const i64 rank = input.rank();
  const i64 start = start_ < 0 ? start_ + rank : start_;
  const i64 end = end_ < 0 ? end_ + rank : end_;
  if (rank <= 1 || start >= rank) return input;
  if (start < 0 || end >= rank || start > end) {
    invalid("Flatten", "bad axes, got {} to {} for rank {}, expected start <= end within the rank",
            start_, end_, rank);
  }
  Shape shape;
  i64 joined = 1;
  for (i64 i = 0; i < rank; ++i) {
    const i64 extent = input.shape()[static_cast<u32>(i)];
    if (i < start || i > end) {
      shape.push_back(extent);
      continue;
    }
    joined *= extent;
    if (i == end) shape.push_back(joined);
  }
  return input.reshape(shape);
}

Dropout::Dropout(const Engine& engine, f64 p, u64 seed) : p_(p), seed_(seed) {
  const u32 zeros[2] = {};
  calls_ = registry().register_buffer("calls", Matrix::from_slice<u32>(engine, {2}, zeros));
}

std::shared_ptr<Dropout> Dropout::with_seed(const Engine& engine, f64 p, u64 seed) {
  if (!(p >= 0 && p <= 1)) invalid("Dropout", "bad probability, got {}, expected 0 to 1", p);
  return std::shared_ptr<Dropout>(new Dropout(engine, p, seed));
}

std::shared_ptr<Dropout> Dropout::create(const Engine& engine, f64 p) {
  if (!(p >= 0 && p <= 1)) invalid("Dropout", "bad probability, got {}, expected 0 to 1", p);
  return with_seed(engine, p, const_cast<Engine&>(engine).next_seed());
}

Matrix Dropout::forward(const Matrix& input) {
  if (!is_training() || p_ == 0) return input;
  return oa::matrix::dropout(input, p_, oa::matrix::RandomSource(seed_, draw_step(calls_)));
}

LayerNorm::LayerNorm(const Parameter& weight, const Parameter& bias, f64 epsilon)
    : weight_(registry().register_parameter("weight", weight)),
      bias_(registry().register_parameter("bias", bias)),
      epsilon_(epsilon) {}

namespace {

void need_norm(std::string_view op, const Matrix& weight, f64 epsilon) {
  if (!weight.valid() || weight.rank() != 1 || weight.num_elements() == 0) {
    invalid(op, "bad weight, got {}, expected a vector with elements",
            weight.valid() ? weight.shape() : Shape());
  }
  if (!(epsilon > 0) || !std::isfinite(epsilon)) {
    invalid(op, "bad epsilon, got {}, expected a finite number above 0", epsilon);
  }
}

}  // namespace

std::shared_ptr<LayerNorm> LayerNorm::create(const Engine& engine, i64 size, f64 epsilon) {
  need_sizes("LayerNorm", {size});
  const Parameter weight = constant_parameter(engine, "weight", {size}, 1);
  need_norm("LayerNorm", weight.data(), epsilon);
  return std::shared_ptr<LayerNorm>(
      new LayerNorm(weight, constant_parameter(engine, "bias", {size}, 0), epsilon));
}

std::shared_ptr<LayerNorm> LayerNorm::from_matrices(const Matrix& weight, const Matrix& bias,
                                                    f64 epsilon) {
  need_norm("LayerNorm", weight, epsilon);
  if (!bias.valid() || bias.shape() != weight.shape()) {
    invalid("LayerNorm", "bias does not fit, got {}, expected {}",
            bias.valid() ? bias.shape() : Shape(), weight.shape());
  }
  return std::shared_ptr<LayerNorm>(
      new LayerNorm(Parameter::create("weight", weight), Parameter::create("bias", bias), epsilon));
}

Matrix LayerNorm::forward(const Matrix& input) {
  return matrix::layer_norm(input, weight_.data(), bias_.data(), epsilon_);
}

RmsNorm::RmsNorm(const Parameter& weight, f64 epsilon)
    : weight_(registry().register_parameter("weight", weight)), epsilon_(epsilon) {}

std::shared_ptr<RmsNorm> RmsNorm::create(const Engine& engine, i64 size, f64 epsilon) {
  need_sizes("RmsNorm", {size});
  const Parameter weight = constant_parameter(engine, "weight", {size}, 1);
  need_norm("RmsNorm", weight.data(), epsilon);
  return std::shared_ptr<RmsNorm>(new RmsNorm(weight, epsilon));
}

std::shared_ptr<RmsNorm> RmsNorm::from_matrix(const Matrix& weight, f64 epsilon) {
  need_norm("RmsNorm", weight, epsilon);
  return std::shared_ptr<RmsNorm>(new RmsNorm(Parameter::create("weight", weight), epsilon));
}

Matrix RmsNorm::forward(const Matrix& input) {
  return matrix::rms_norm(input, weight_.data(), epsilon_);
}

Rope::Rope(i64 num_heads, i64 head_dim, f64 theta_base)
    : heads_(num_heads), dim_(head_dim), theta_(theta_base) {
  need_sizes("Rope", {num_heads, head_dim});
  if (head_dim % 2 != 0) invalid("Rope", "odd head size, got {}, expected an even one", head_dim);
  if (!(theta_base > 0) || !std::isfinite(theta_base)) {
    invalid("Rope", "bad theta, got {}, expected a finite number above 0", theta_base);
  }
}

Matrix Rope::forward(const Matrix& input) { return matrix::rope(input, heads_, dim_, theta_, 0); }

Sequential& Sequential::add(std::shared_ptr<Module> module) {
  return add_named("layer_" + std::to_string(children_.size()), std::move(module));
}

Sequential& Sequential::add_named(const std::string& name, std::shared_ptr<Module> module) {
  children_.push_back(registry().register_module(name, std::move(module)));
  return *this;
}

Matrix Sequential::forward(const Matrix& input) {
  Matrix x = input;
  for (const auto& child : children_) x = child->forward(x);
  return x;
}

}  // namespace oa::ml::nn
