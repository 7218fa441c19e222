#include "oa/ml/nn/recurrent.h"

#include "oa/core/error.h"
#include "oa/matrix/create.h"
#include "oa/matrix/movement.h"
#include "oa/ml/matrix/linear.h"
#include "oa/ml/nn/init.h"

namespace oa::ml::nn {
namespace {

constexpr u64 kLayerSeed = 0xD1B54A32D192ED03;
constexpr u64 kRecurrentSeed = 0x9E3779B97F4A7C15;
constexpr i64 kRnnGates = 1, kGruGates = 3;

RecurrentWeights drawn(const Engine& engine, i64 gates, i64 input, i64 hidden, bool bias,
                       u64 seed) {
  const i64 rows = gates * hidden;
  RecurrentWeights w;
  w.weight_ih =
      symmetric_parameter(engine, "weight_ih", {rows, input}, xavier_limit(input, rows), seed);
  w.weight_hh = symmetric_parameter(engine, "weight_hh", {rows, hidden}, xavier_limit(hidden, rows),
                                    seed + kRecurrentSeed);
  if (bias) {
    w.bias_ih = constant_parameter(engine, "bias_ih", {rows}, 0);
    w.bias_hh = constant_parameter(engine, "bias_hh", {rows}, 0);
  }
  return w;
}

RecurrentWeights given(std::string_view name, i64 gates, const Matrix& weight_ih,
                       const Matrix& weight_hh) {
  const auto need_matrix = [&](const Matrix& m, std::string_view what) {
    if (!m.valid() || m.rank() != 2 || m.num_elements() == 0) {
      invalid(name, "bad {}, got {}, expected a matrix with elements", what,
              m.valid() ? m.shape() : Shape());
    }
  };
  need_matrix(weight_ih, "weight_ih");
  need_matrix(weight_hh, "weight_hh");
  const i64 hidden = weight_hh.shape()[1], rows = gates * hidden;
  if (weight_hh.shape()[0] != rows) {
    invalid(name, "bad weight_hh, got {}, expected {}", weight_hh.shape(), Shape{rows, hidden});
  }
  if (weight_ih.shape()[0] != rows || weight_ih.dtype() != weight_hh.dtype()) {
    invalid(name, "weight_ih does not fit, got {} {}, expected {} {} rows",
            token(weight_ih.dtype()), weight_ih.shape(), token(weight_hh.dtype()), rows);
  }
  RecurrentWeights w;
  w.weight_ih = Parameter::create("weight_ih", weight_ih);
  w.weight_hh = Parameter::create("weight_hh", weight_hh);
  return w;
}

RecurrentWeights given(std::string_view name, i64 gates, const Matrix& weight_ih,
                       const Matrix& weight_hh, const Matrix& bias_ih, const Matrix& bias_hh) {
  for (const auto& [bias, what] : {std::pair{&bias_ih, "bias_ih"}, {&bias_hh, "bias_hh"}}) {
    const bool fits = bias->valid() && weight_hh.valid() && weight_hh.rank() == 2 &&
                      bias->shape() == Shape{weight_hh.shape()[0]} &&
                      bias->dtype() == weight_hh.dtype();
    if (!fits) {
      invalid(name, "{} does not fit, got {}, expected one element for each row of weight_hh, {}",
              what, bias->valid() ? bias->shape() : Shape(),
              weight_hh.valid() ? weight_hh.shape() : Shape());
    }
  }
  RecurrentWeights w = given(name, gates, weight_ih, weight_hh);
  w.bias_ih = Parameter::create("bias_ih", bias_ih);
  w.bias_hh = Parameter::create("bias_hh", bias_hh);
  return w;
}

void register_weights(ModuleRegistry& registry, const RecurrentWeights& w) {
  registry.register_parameter("weight_ih", w.weight_ih);
  registry.register_parameter("weight_hh", w.weight_hh);
  if (w.bias_ih) registry.register_parameter("bias_ih", *w.bias_ih);
  if (w.bias_hh) registry.register_parameter("bias_hh", *w.bias_hh);
}

Matrix data_of(const std::optional<Parameter>& p) { return p ? p->data() : Matrix(); }

Matrix input_gates(const RecurrentWeights& w, const Matrix& input) {
  return matrix::linear(input, w.weight_ih.data(), data_of(w.bias_ih));
}

Matrix zeros_for(const RecurrentWeights& w, i64 batch) {
  const Matrix row = oa::matrix::slice(w.weight_hh.data(), 0, 0, 1);
  return oa::matrix::broadcast_to(oa::matrix::full_like(row, 0), {batch, w.hidden_size()});
}

}  // namespace

// --- Layers ---

RecurrentLayer::RecurrentLayer(RecurrentWeights weights, bool reverse)
    : weights_(std::move(weights)), reverse_(reverse) {
  register_weights(registry(), weights_);
}

Matrix RecurrentLayer::forward(const Matrix& input) { return scan(input, {}); }

Matrix RecurrentLayer::scan(const Matrix& input, const Matrix& state) const {
  const Matrix gates = input_gates(weights_, input);
  const Matrix weight = weights_.weight_hh.data(), bias = data_of(weights_.bias_hh);
  if (weights_.gates() == kRnnGates) {
    return matrix::rnn_scan(gates, weight, bias, {.state = state, .reverse = reverse_});
  }
  return matrix::gru_scan(gates, weight, bias,
                          {.state = state, .reverse = reverse_, .reset = reset_});
}

// --- Stacks ---

RecurrentStack::RecurrentStack(std::string_view name, const Engine& engine, i64 gates,
                               i64 input_size, i64 hidden_size, i64 layers,
                               const RecurrentOptions& options, u64 seed)
    : name_(name), directions_(options.bidirectional ? 2 : 1) {
  need_sizes(name, {input_size, hidden_size, layers});
  for (i64 i = 0; i < layers; ++i) {
    const i64 width = i == 0 ? input_size : hidden_size * directions_;
    for (i64 d = 0; d < directions_; ++d) {
      const u64 layer_seed = seed + static_cast<u64>(i + d * layers) * kLayerSeed;
      add_layer(drawn(engine, gates, width, hidden_size, options.bias, layer_seed), d == 1);
    }
  }
}

RecurrentStack::RecurrentStack(std::string_view name, RecurrentWeights weights) : name_(name) {
  add_layer(std::move(weights), false);
}

void RecurrentStack::add_layer(RecurrentWeights weights, bool reverse) {
  const std::string name = fmt::format("layer{}{}", static_cast<i64>(layers_.size()) / directions_,
                                       reverse ? "_reverse" : "");
  layers_.push_back(registry().register_module(
      name, std::make_shared<RecurrentLayer>(std::move(weights), reverse)));
}

void RecurrentStack::need_input(const Matrix& input) const {
  if (!input.valid() || input.rank() != 3 || input.shape()[2] != input_size()) {
    invalid(name_, "bad input, got {}, expected [B, S, {}]",
            input.valid() ? input.shape() : Shape(), input_size());
  }
}

Matrix RecurrentStack::forward(const Matrix& input) {
  need_input(input);
  Matrix x = input;
  for (size_t i = 0; i < layers_.size(); i += static_cast<size_t>(directions_)) {
    const Matrix y = layers_[i]->scan(x, {});
    x = directions_ == 1 ? y : oa::matrix::concat({y, layers_[i + 1]->scan(x, {})}, 2);
  }
  return x;
}

RecurrentStack::Result RecurrentStack::run(const Matrix& input, const std::vector<Matrix>& states) {
  need_input(input);
  const i64 batch = input.shape()[0], steps = input.shape()[1];
  if (steps == 0) invalid(name_, "bad input, got {}, expected one step or more", input.shape());
  if (states.size() != layers_.size()) {
    invalid(name_, "wrong number of states, got {}, expected {}", states.size(), layers_.size());
  }
  for (const Matrix& s : states) {
    if (!s.valid() || s.shape() != Shape{batch, hidden_size()}) {
      invalid(name_, "state does not fit, got {}, expected {}", s.valid() ? s.shape() : Shape(),
              Shape{batch, hidden_size()});
    }
  }
  Result result{input, {}};
  for (size_t i = 0; i < layers_.size(); i += static_cast<size_t>(directions_)) {
    std::vector<Matrix> results;
    for (size_t d = i; d < i + static_cast<size_t>(directions_); ++d) {
      results.push_back(layers_[d]->scan(result.output, states[d]));
      const i64 last = layers_[d]->is_reverse() ? 0 : steps - 1;
      result.states.push_back(
          oa::matrix::slice(results.back(), 1, last, last + 1).reshape({batch, hidden_size()}));
    }
    result.output = directions_ == 1 ? results[0] : oa::matrix::concat(results, 2);
  }
  return result;
}

std::vector<Matrix> RecurrentStack::zero_state(i64 batch) const {
  std::vector<Matrix> states;
  for (const auto& layer : layers_) states.push_back(zeros_for(layer->weights(), batch));
  return states;
}

std::vector<Parameter> RecurrentStack::layer_parameters(i64 i) const {
  if (i < 0 || i >= num_layers()) {
    invalid(name_, "bad layer, got {}, expected 0 to {}", i, num_layers() - 1);
  }
  std::vector<Parameter> all;
  for (i64 d = 0; d < directions_; ++d) {
    const auto own = layers_[static_cast<size_t>(i * directions_ + d)]->parameters();
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

std::shared_ptr<Rnn> Rnn::with_seed(const Engine& engine, i64 input_size, i64 hidden_size,
                                    i64 layers, u64 seed) {
  return with_seed_and_options(engine, input_size, hidden_size, layers, {}, seed);
}
std::shared_ptr<Rnn> Rnn::with_seed_and_bias(const Engine& engine, i64 input_size, i64 hidden_size,
                                             i64 layers, bool bias, u64 seed) {
  return with_seed_and_options(engine, input_size, hidden_size, layers, {.bias = bias}, seed);
}
std::shared_ptr<Rnn> Rnn::with_seed_and_options(const Engine& engine, i64 input_size,
                                                i64 hidden_size, i64 layers,
                                                const RecurrentOptions& options, u64 seed) {
  return std::shared_ptr<Rnn>(
      new Rnn("Rnn", engine, kRnnGates, input_size, hidden_size, layers, options, seed));
}
std::shared_ptr<Rnn> Rnn::from_matrices(const Matrix& weight_ih, const Matrix& weight_hh,
                                        const Matrix& bias_ih, const Matrix& bias_hh) {
  return std::shared_ptr<Rnn>(
      new Rnn("Rnn", given("Rnn", kRnnGates, weight_ih, weight_hh, bias_ih, bias_hh)));
}
std::shared_ptr<Rnn> Rnn::from_weights(const Matrix& weight_ih, const Matrix& weight_hh) {
  return std::shared_ptr<Rnn>(new Rnn("Rnn", given("Rnn", kRnnGates, weight_ih, weight_hh)));
}

std::shared_ptr<Gru> Gru::with_seed(const Engine& engine, i64 input_size, i64 hidden_size,
                                    i64 layers, bool bias, u64 seed) {
  return with_seed_and_options(engine, input_size, hidden_size, layers, {.bias = bias}, seed);
}
std::shared_ptr<Gru> Gru::with_seed_and_options(const Engine& engine, i64 input_size,
                                                i64 hidden_size, i64 layers,
                                                const RecurrentOptions& options, u64 seed) {
  return std::shared_ptr<Gru>(
      new Gru("Gru", engine, kGruGates, input_size, hidden_size, layers, options, seed));
}
std::shared_ptr<Gru> Gru::from_matrices(const Matrix& weight_ih, const Matrix& weight_hh,
                                        const Matrix& bias_ih, const Matrix& bias_hh) {
  return std::shared_ptr<Gru>(
      new Gru("Gru", given("Gru", kGruGates, weight_ih, weight_hh, bias_ih, bias_hh)));
}
std::shared_ptr<Gru> Gru::from_weights(const Matrix& weight_ih, const Matrix& weight_hh) {
  return std::shared_ptr<Gru>(new Gru("Gru", given("Gru", kGruGates, weight_ih, weight_hh)));
}

// --- Cells ---

RecurrentCell::RecurrentCell(std::string_view name, const Engine& engine, i64 gates, i64 input_size,
                             i64 hidden_size, bool bias, u64 seed)
    : name_(name) {
  need_sizes(name, {input_size, hidden_size});
  weights_ = drawn(engine, gates, input_size, hidden_size, bias, seed);
  register_weights(registry(), weights_);
}

RecurrentCell::RecurrentCell(std::string_view name, RecurrentWeights weights)
    : name_(name), weights_(std::move(weights)) {
  register_weights(registry(), weights_);
}

Matrix RecurrentCell::step(const Matrix& input, const Matrix& hidden) const {
  if (!input.valid() || input.rank() != 2 || input.shape()[1] != input_size()) {
    invalid(name_, "bad input, got {}, expected [B, {}]", input.valid() ? input.shape() : Shape(),
            input_size());
  }
  const Shape expected{input.shape()[0], hidden_size()};
  if (!hidden.valid() || hidden.shape() != expected) {
    invalid(name_, "hidden state does not fit, got {}, expected {}",
            hidden.valid() ? hidden.shape() : Shape(), expected);
  }
  const Matrix gates = input_gates(weights_, input);
  const Matrix weight = weights_.weight_hh.data(), bias = data_of(weights_.bias_hh);
  return weights_.gates() == kRnnGates ? matrix::rnn_cell(gates, hidden, weight, bias)
                                       : matrix::gru_cell(gates, hidden, weight, bias, reset_);
}

Matrix RecurrentCell::forward(const Matrix& input) {
  return step(input, zero_state(input.rank() == 0 ? 0 : input.shape()[0]));
}

Matrix RecurrentCell::zero_state(i64 batch) const { return zeros_for(weights_, batch); }

std::shared_ptr<RnnCell> RnnCell::with_seed(const Engine& engine, i64 input_size, i64 hidden_size,
                                            bool bias, u64 seed) {
  return std::shared_ptr<RnnCell>(
      new RnnCell("RnnCell", engine, kRnnGates, input_size, hidden_size, bias, seed));
}
std::shared_ptr<RnnCell> RnnCell::from_matrices(const Matrix& weight_ih, const Matrix& weight_hh,
                                                const Matrix& bias_ih, const Matrix& bias_hh) {
  return std::shared_ptr<RnnCell>(
      new RnnCell("RnnCell", given("RnnCell", kRnnGates, weight_ih, weight_hh, bias_ih, bias_hh)));
}
std::shared_ptr<RnnCell> RnnCell::from_weights(const Matrix& weight_ih, const Matrix& weight_hh) {
  return std::shared_ptr<RnnCell>(
      new RnnCell("RnnCell", given("RnnCell", kRnnGates, weight_ih, weight_hh)));
}

std::shared_ptr<GruCell> GruCell::with_seed(const Engine& engine, i64 input_size, i64 hidden_size,
                                            bool bias, u64 seed) {
  return std::shared_ptr<GruCell>(
      new GruCell("GruCell", engine, kGruGates, input_size, hidden_size, bias, seed));
}
std::shared_ptr<GruCell> GruCell::from_matrices(const Matrix& weight_ih, const Matrix& weight_hh,
                                                const Matrix& bias_ih, const Matrix& bias_hh) {
  return std::shared_ptr<GruCell>(
      new GruCell("GruCell", given("GruCell", kGruGates, weight_ih, weight_hh, bias_ih, bias_hh)));
}
std::shared_ptr<GruCell> GruCell::from_weights(const Matrix& weight_ih, const Matrix& weight_hh) {
  return std::shared_ptr<GruCell>(
      new GruCell("GruCell", given("GruCell", kGruGates, weight_ih, weight_hh)));
}

}  // namespace oa::ml::nn
