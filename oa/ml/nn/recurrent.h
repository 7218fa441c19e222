// Recurrent layers: Rnn and Gru over sequences, RnnCell and GruCell for one step.
//
// Parameters of a layer, G = 1 for the Rnn and 3 for the Gru (rows of the reset gate, the update
// gate and the candidate): weight_ih [G H, I], weight_hh [G H, H], and with biases bias_ih and
// bias_hh [G H].
#pragma once

#include <optional>
#include <string_view>

#include "oa/ml/matrix/recurrent.h"
#include "oa/ml/module.h"

namespace oa::ml::nn {

struct RecurrentWeights {
  Parameter weight_ih, weight_hh;
  std::optional<Parameter> bias_ih, bias_hh;
  i64 gates() const { return weight_hh.data().shape()[0] / weight_hh.data().shape()[1]; }
  i64 input_size() const { return weight_ih.data().shape()[1]; }
  i64 hidden_size() const { return weight_hh.data().shape()[1]; }
};

// One layer in one direction: the children of Rnn and Gru.
class RecurrentLayer final : public Module {
 public:
  RecurrentLayer(RecurrentWeights weights, bool reverse);
  Matrix forward(const Matrix& input) override;  // [B, S, I] -> [B, S, H], from a zero state
  // The same from a state [B, H]; an empty one is zero.
  Matrix scan(const Matrix& input, const Matrix& state) const;
  const RecurrentWeights& weights() const { return weights_; }
  bool is_reverse() const { return reverse_; }
  void set_reset(GruReset reset) { reset_ = reset; }
  GruReset reset() const { return reset_; }

 private:
  RecurrentWeights weights_;
  bool reverse_;
  GruReset reset_ = GruReset::AfterProduct;  // no matter to an Rnn
};

struct RecurrentOptions {
  bool bias = true;
  // A second scan from the last position to the first, beside the first one: results are
  // [B, S, 2 H], and so are the inputs of the layers behind.
  bool bidirectional = false;
};

// What Rnn and Gru share. Children layer0, layer1, ...; when bidirectional layer0, layer0_reverse,
// layer1, ...
class RecurrentStack : public Module {
 public:
  // [B, S, I] -> [B, S, H], or [B, S, 2 H] when bidirectional; every layer starts from a zero
  // state.
  Matrix forward(const Matrix& input) override;

  // The same from given states [B, H], one for each child in the order of registration, and the
  // states after the sequence (of at least one step). What follows may go on from them.
  struct Result {
    Matrix output;
    std::vector<Matrix> states;
  };
  Result run(const Matrix& input, const std::vector<Matrix>& states);
  std::vector<Matrix> zero_state(i64 batch) const;

  i64 input_size() const { return layers_[0]->weights().input_size(); }
  i64 hidden_size() const { return layers_[0]->weights().hidden_size(); }
  i64 num_layers() const { return static_cast<i64>(layers_.size()) / directions_; }
  bool has_bias() const { return layers_[0]->weights().bias_ih.has_value(); }
  bool is_bidirectional() const { return directions_ == 2; }
  // Of layer i, both directions. InvalidArgument unless 0 <= i < num_layers().
  std::vector<Parameter> layer_parameters(i64 i) const;

 protected:
  RecurrentStack(std::string_view name, const Engine& engine, i64 gates, i64 input_size,
                 i64 hidden_size, i64 layers, const RecurrentOptions& options, u64 seed);
  RecurrentStack(std::string_view name, RecurrentWeights weights);
  std::vector<std::shared_ptr<RecurrentLayer>> layers_;

 private:
  void add_layer(RecurrentWeights weights, bool reverse);
  void need_input(const Matrix& input) const;
  std::string_view name_;
  i64 directions_ = 1;
};

// Layer i draws from the seed s = seed + i 0xD1B54A32D192ED03, a reverse direction as if it were
// layer num_layers + i: weight_ih within sqrt(6 / (I + G H)) from s, weight_hh within
// sqrt(6 / (H + G H)) from s + 0x9E3779B97F4A7C15; biases are 0.
class Rnn final : public RecurrentStack {
 public:
  static std::shared_ptr<Rnn> with_seed(const Engine& engine, i64 input_size, i64 hidden_size,
                                        i64 layers, u64 seed);
  static std::shared_ptr<Rnn> with_seed_and_bias(const Engine& engine, i64 input_size,
                                                 i64 hidden_size, i64 layers, bool bias, u64 seed);
  static std::shared_ptr<Rnn> with_seed_and_options(const Engine& engine, i64 input_size,
                                                    i64 hidden_size, i64 layers,
                                                    const RecurrentOptions& options, u64 seed);
  // One layer. InvalidArgument when shapes or dtypes do not fit.
  static std::shared_ptr<Rnn> from_matrices(const Matrix& weight_ih, const Matrix& weight_hh,
                                            const Matrix& bias_ih, const Matrix& bias_hh);
  static std::shared_ptr<Rnn> from_weights(const Matrix& weight_ih, const Matrix& weight_hh);

 private:
  using RecurrentStack::RecurrentStack;
};

class Gru final : public RecurrentStack {
 public:
  static std::shared_ptr<Gru> with_seed(const Engine& engine, i64 input_size, i64 hidden_size,
                                        i64 layers, bool bias, u64 seed);
  static std::shared_ptr<Gru> with_seed_and_options(const Engine& engine, i64 input_size,
                                                    i64 hidden_size, i64 layers,
                                                    const RecurrentOptions& options, u64 seed);
  static std::shared_ptr<Gru> from_matrices(const Matrix& weight_ih, const Matrix& weight_hh,
                                            const Matrix& bias_ih, const Matrix& bias_hh);
  static std::shared_ptr<Gru> from_weights(const Matrix& weight_ih, const Matrix& weight_hh);

  GruReset reset() const { return layers_[0]->reset(); }
  void set_reset(GruReset reset) {
    for (const auto& layer : layers_) layer->set_reset(reset);
  }

 private:
  using RecurrentStack::RecurrentStack;
};

// What RnnCell and GruCell share; parameters of their own, seeds as those of layer 0.
class RecurrentCell : public Module {
 public:
  // input [B, I], hidden [B, H] -> the next hidden [B, H].
  Matrix step(const Matrix& input, const Matrix& hidden) const;
  Matrix forward(const Matrix& input) override;  // a step from the zero state
  Matrix zero_state(i64 batch) const;            // [B, H]

  i64 input_size() const { return weights_.input_size(); }
  i64 hidden_size() const { return weights_.hidden_size(); }
  bool has_bias() const { return weights_.bias_ih.has_value(); }
  const RecurrentWeights& weights() const { return weights_; }

 protected:
  RecurrentCell(std::string_view name, const Engine& engine, i64 gates, i64 input_size,
                i64 hidden_size, bool bias, u64 seed);
  RecurrentCell(std::string_view name, RecurrentWeights weights);
  GruReset reset_ = GruReset::AfterProduct;

 private:
  std::string_view name_;
  RecurrentWeights weights_;
};

class RnnCell final : public RecurrentCell {
 public:
  static std::shared_ptr<RnnCell> with_seed(const Engine& engine, i64 input_size, i64 hidden_size,
                                            bool bias, u64 seed);
  static std::shared_ptr<RnnCell> from_matrices(const Matrix& weight_ih, const Matrix& weight_hh,
                                                const Matrix& bias_ih, const Matrix& bias_hh);
  static std::shared_ptr<RnnCell> from_weights(const Matrix& weight_ih, const Matrix& weight_hh);

 private:
  using RecurrentCell::RecurrentCell;
};

class GruCell final : public RecurrentCell {
 public:
  static std::shared_ptr<GruCell> with_seed(const Engine& engine, i64 input_size, i64 hidden_size,
                                            bool bias, u64 seed);
  static std::shared_ptr<GruCell> from_matrices(const Matrix& weight_ih, const Matrix& weight_hh,
                                                const Matrix& bias_ih, const Matrix& bias_hh);
  static std::shared_ptr<GruCell> from_weights(const Matrix& weight_ih, const Matrix& weight_hh);

  GruReset reset() const { return reset_; }
  void set_reset(GruReset reset) { reset_ = reset; }

 private:
  using RecurrentCell::RecurrentCell;
};

}  // namespace oa::ml::nn
