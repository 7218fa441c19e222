// Small modules: activations, shapes, dropout, normalisation, rotary positions, and Sequential.
#pragma once

#include <optional>

#include "oa/ml/module.h"

namespace oa::ml::nn {

class Identity final : public Module {
 public:
  Matrix forward(const Matrix& input) override { return input; }
};

class Relu final : public Module {
 public:
  Matrix forward(const Matrix& input) override;
};
class Gelu final : public Module {  // the tanh form
 public:
  Matrix forward(const Matrix& input) override;
};
class Silu final : public Module {
 public:
  Matrix forward(const Matrix& input) override;
};

class Softmax final : public Module {
 public:
  explicit Softmax(i64 dim = -1) : dim_(dim) {}
  Matrix forward(const Matrix& input) override;
  i64 dim() const { return dim_; }

 private:
  i64 dim_;
};
class LogSoftmax final : public Module {
 public:
  explicit LogSoftmax(i64 dim = -1) : dim_(dim) {}
  Matrix forward(const Matrix& input) override;
  i64 dim() const { return dim_; }

 private:
  i64 dim_;
};

// Joins axes start .. end (inclusive, negative from the end) into one. Values of rank 0 or 1, and
// those without axis `start`, pass unchanged.
class Flatten final : public Module {
 public:
  explicit Flatten(i64 start_dim = 1, i64 end_dim = -1) : start_(start_dim), end_(end_dim) {}
  Matrix forward(const Matrix& input) override;
  i64 start_dim() const { return start_; }
  i64 end_dim() const { return end_; }

 private:
  i64 start_, end_;
};

// Zeroes elements with probability p while training, and scales the others by 1 / (1 - p). The mask
// is a function of the seed, the number of the call (a persistent buffer, so that a resumed run
// draws what an uninterrupted one would) and the element.
class Dropout final : public Module {
 public:
  // p in [0, 1]. Without a seed: the next one of the engine's stream.
  static std::shared_ptr<Dropout> create(const Engine& engine, f64 p);
  static std::shared_ptr<Dropout> with_seed(const Engine& engine, f64 p, u64 seed);
  Matrix forward(const Matrix& input) override;
  f64 probability() const { return p_; }

 private:
  Dropout(const Engine& engine, f64 p, u64 seed);
  f64 p_;
  u64 seed_;
  Matrix calls_;  // u32 [2]: low and high word of the number of calls
};

// (x - mean) / sqrt(variance + epsilon) weight + bias over the last axis.
class LayerNorm final : public Module {
 public:
  static std::shared_ptr<LayerNorm> create(const Engine& engine, i64 size, f64 epsilon = 1e-5);
  static std::shared_ptr<LayerNorm> from_matrices(const Matrix& weight, const Matrix& bias,
                                                  f64 epsilon = 1e-5);
  Matrix forward(const Matrix& input) override;
  i64 normalized_shape() const { return weight_.data().shape()[0]; }
  f64 epsilon() const { return epsilon_; }
  const Parameter& weight() const { return weight_; }
  const Parameter& bias() const { return bias_; }

 private:
  LayerNorm(const Parameter& weight, const Parameter& bias, f64 epsilon);
  Parameter weight_, bias_;
  f64 epsilon_;
};

// x / sqrt(mean(x^2) + epsilon) weight over the last axis (Zhang and Sennrich, 2019).
class RmsNorm final : public Module {
 public:
  static std::shared_ptr<RmsNorm> create(const Engine& engine, i64 size, f64 epsilon = 1e-5);
  static std::shared_ptr<RmsNorm> from_matrix(const Matrix& weight, f64 epsilon = 1e-5);
  Matrix forward(const Matrix& input) override;
  i64 dimension() const { return weight_.data().shape()[0]; }
  f64 epsilon() const { return epsilon_; }
  const Parameter& weight() const { return weight_; }

 private:
  RmsNorm(const Parameter& weight, f64 epsilon);
  Parameter weight_;
  f64 epsilon_;
};

// Rotary positions from 0 on: [T, H D].
class Rope final : public Module {
 public:
  Rope(i64 num_heads, i64 head_dim, f64 theta_base = 10000);
  Matrix forward(const Matrix& input) override;
  i64 num_heads() const { return heads_; }
  i64 head_dim() const { return dim_; }
  f64 theta_base() const { return theta_; }

 private:
  i64 heads_, dim_;
  f64 theta_;
};

// Applies its children in order.
class Sequential final : public Module {
 public:
  // Named layer_0, layer_1, ...
  Sequential& add(std::shared_ptr<Module> module);
  Sequential& add_named(const std::string& name, std::shared_ptr<Module> module);
  Matrix forward(const Matrix& input) override;
  size_t len() const { return children_.size(); }
  bool is_empty() const { return children_.empty(); }

 private:
  std::vector<std::shared_ptr<Module>> children_;
};

}  // namespace oa::ml::nn
