// Rnn, Gru and their cells as modules: names, initial weights, layers, directions, states, and the
// known first losses of small language models.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "oa/core/random.h"
#include "oa/matrix/movement.h"
#include "oa/matrix/reduce.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/data/nlp_suite.h"
#include "oa/ml/loss/cross_entropy.h"
#include "oa/ml/matrix/linear.h"
#include "oa/ml/nn/linear.h"
#include "oa/ml/nn/recurrent.h"
#include "tests/matrix/devices.h"

namespace oa::test {
namespace {

using namespace ml::nn;  // NOLINT
using ml::GruReset;

constexpr u64 kLayerSeed = 0xD1B54A32D192ED03, kRecurrentSeed = 0x9E3779B97F4A7C15;

class RecurrentModuleTest : public OnDevice {};

std::vector<std::string> paths(const ml::Module& m) {
  std::vector<std::string> list;
  for (const auto& p : m.all_named_parameters()) list.push_back(p.path);
  return list;
}

f32 limit(i64 in, i64 out) { return std::sqrt(6.0f / static_cast<f32>(in + out)); }

void expect_near(const Matrix& a, const Matrix& b, f32 bound) {
  ASSERT_EQ(a.shape(), b.shape());
  const auto x = a.read_f32(), y = b.read_f32();
  for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], bound) << i;
}

TEST_P(RecurrentModuleTest, NamesAndInitialWeights) {
  const auto rnn = Rnn::with_seed(engine(), 3, 5, 2, 7);
  EXPECT_EQ(paths(*rnn),
            (std::vector<std::string>{"layer0.weight_ih", "layer0.weight_hh", "layer0.bias_ih",
                                      "layer0.bias_hh", "layer1.weight_ih", "layer1.weight_hh",
                                      "layer1.bias_ih", "layer1.bias_hh"}));
  EXPECT_EQ(rnn->layer_parameters(0)[0].data().read_f32(), symmetric_uniform(15, limit(3, 5), 7));
  const u64 second = 7 + kLayerSeed;
  EXPECT_EQ(rnn->layer_parameters(1)[0].data().read_f32(),
            symmetric_uniform(25, limit(5, 5), second));
  EXPECT_EQ(rnn->layer_parameters(1)[1].data().read_f32(),
            symmetric_uniform(25, limit(5, 5), second + kRecurrentSeed));
  EXPECT_EQ(rnn->layer_parameters(1)[3].data().read_f32(), std::vector<f32>(5, 0.0f));
  EXPECT_EQ(rnn->input_size(), 3);
  EXPECT_EQ(rnn->hidden_size(), 5);
  EXPECT_EQ(rnn->num_layers(), 2);
  EXPECT_TRUE(rnn->has_bias());

  const auto gru = Gru::with_seed(engine(), 3, 5, 1, false, 7);
  EXPECT_EQ(paths(*gru), (std::vector<std::string>{"layer0.weight_ih", "layer0.weight_hh"}));
  EXPECT_EQ(gru->layer_parameters(0)[0].data().shape(), (Shape{15, 3}));
  EXPECT_EQ(gru->layer_parameters(0)[0].data().read_f32(), symmetric_uniform(45, limit(3, 15), 7));
  EXPECT_EQ(gru->layer_parameters(0)[1].data().read_f32(),
            symmetric_uniform(75, limit(5, 15), 7 + kRecurrentSeed));
  EXPECT_FALSE(gru->has_bias());

  const auto both =
      Gru::with_seed_and_options(engine(), 3, 5, 2, {.bias = false, .bidirectional = true}, 7);
  EXPECT_EQ(paths(*both), (std::vector<std::string>{
                              "layer0.weight_ih", "layer0.weight_hh", "layer0_reverse.weight_ih",
                              "layer0_reverse.weight_hh", "layer1.weight_ih", "layer1.weight_hh",
                              "layer1_reverse.weight_ih", "layer1_reverse.weight_hh"}));
  EXPECT_EQ(both->layer_parameters(1)[2].data().shape(), (Shape{15, 10}));
  EXPECT_EQ(both->num_layers(), 2);
  EXPECT_EQ(both->layer_parameters(0)[2].data().read_f32(),
            symmetric_uniform(45, limit(3, 15), 7 + 2 * kLayerSeed));

  const auto cell = GruCell::with_seed(engine(), 3, 5, true, 9);
  EXPECT_EQ(paths(*cell),
            (std::vector<std::string>{"weight_ih", "weight_hh", "bias_ih", "bias_hh"}));
  EXPECT_EQ(cell->weights().weight_hh.data().read_f32(),
            symmetric_uniform(75, limit(5, 15), 9 + kRecurrentSeed));
}

TEST_P(RecurrentModuleTest, LayersAndDirectionsAreScansOfTheirParameters) {
  const Matrix x = from<f32>({2, 3, 4}, random_f32(1, 24));
  const auto gates = [](const Matrix& in, const std::vector<ml::Parameter>& p, size_t first) {
    return ml::matrix::linear(in, p[first].data(), p[first + 2].data());
  };
  const auto rnn = Rnn::with_seed(engine(), 4, 6, 2, 1);
  for (i64 i : {0, 1}) {
    for (size_t k : {2u, 3u}) {
      rnn->layer_parameters(i)[k].replace_data(from<f32>({6}, random_f32(static_cast<u32>(k), 6)));
    }
  }
  Matrix y = x;
  for (i64 i : {0, 1}) {
    const auto p = rnn->layer_parameters(i);
    y = ml::matrix::rnn_scan(gates(y, p, 0), p[1].data(), p[3].data());
  }
  expect_near(rnn->forward(x), y, 1e-6f);

  const auto gru = Gru::with_seed_and_options(engine(), 4, 6, 1, {.bidirectional = true}, 2);
  const auto p = gru->layer_parameters(0);
  for (GruReset reset : {GruReset::AfterProduct, GruReset::BeforeProduct}) {
    gru->set_reset(reset);
    const Matrix there =
        ml::matrix::gru_scan(gates(x, p, 0), p[1].data(), p[3].data(), {.reset = reset});
    const Matrix back = ml::matrix::gru_scan(gates(x, p, 4), p[5].data(), p[7].data(),
                                             {.reverse = true, .reset = reset});
    expect_near(gru->forward(x), matrix::concat({there, back}, 2), 1e-6f);
    if (stride(2) == 2) return;
  }
}

TEST_P(RecurrentModuleTest, GoesOnFromItsStates) {
  const Matrix x = from<f32>({2, 5, 4}, random_f32(1, 40));
  const auto gru = Gru::with_seed(engine(), 4, 3, 2, true, 3);
  const auto whole = gru->run(x, gru->zero_state(2));
  expect_near(whole.output, gru->forward(x), 1e-6f);
  const auto first = gru->run(matrix::slice(x, 1, 0, 2), gru->zero_state(2));
  const auto rest = gru->run(matrix::slice(x, 1, 2, 5), first.states);
  expect_near(rest.output, matrix::slice(whole.output, 1, 2, 5), 1e-6f);
  ASSERT_EQ(rest.states.size(), 2u);
  for (size_t i : {0u, 1u}) expect_near(rest.states[i], whole.states[i], 1e-6f);
  expect_near(rest.states[1], matrix::slice(whole.output, 1, 4, 5).reshape({2, 3}), 1e-6f);
}

TEST_P(RecurrentModuleTest, CellsStepAsTheLayersDo) {
  const Matrix x = from<f32>({2, 3, 4}, random_f32(1, 24));
  const auto check = [&](const auto& layer, const auto& cell) {
    const Matrix y = layer->forward(x);
    Matrix h = cell->zero_state(2);
    for (i64 s = 0; s < 3; ++s) {
      const Matrix now = matrix::slice(x, 1, s, s + 1).reshape({2, 4});
      if (s == 0) expect_near(cell->forward(now), cell->step(now, h), 0);
      h = cell->step(now, h);
      expect_near(h, matrix::slice(y, 1, s, s + 1).reshape({2, 5}), 1e-6f);
    }
  };
  check(Rnn::with_seed(engine(), 4, 5, 1, 3), RnnCell::with_seed(engine(), 4, 5, true, 3));
  check(Gru::with_seed(engine(), 4, 5, 1, false, 3), GruCell::with_seed(engine(), 4, 5, false, 3));
}

// Embedding, a recurrent layer and a head on the first batch of the suite's text.
TEST_P(RecurrentModuleTest, SmallLanguageModelsHaveTheKnownFirstLosses) {
  if (interpreted()) GTEST_SKIP() << "too slow";
  constexpr u64 kSeed = 20260714;
  const std::string text = ml::data::nlp_suite_text();
  for (const bool bytes : {false, true}) {
    const i64 vocabulary = bytes ? 256 : 27;
    std::vector<u32> tokens;
    for (char c : text) {
      const u32 byte = static_cast<u8>(c);
      tokens.push_back(bytes ? byte : c == ' ' ? 26 : byte - 'a');
    }
    ml::data::NlpSuiteSampler sampler(tokens);
    std::vector<u32> inputs(64 * 16), targets(64 * 16);
    sampler.next(std::span<u32>(inputs), std::span<u32>(targets));
    const Matrix x = from<u32>({64, 16}, inputs), t = from<u32>({1024}, targets);
    const auto embed = Embedding::with_seed(engine(), vocabulary, 32, kSeed);
    const auto head = Linear::with_seed(engine(), 64, vocabulary, kSeed + 2);
    const auto first_loss = [&](ml::Module& layer, i64 parameters) {
      EXPECT_EQ(embed->num_parameters() + layer.num_parameters() + head->num_parameters(),
                parameters);
      ml::GradientTape tape;
      const Matrix y = layer.forward(embed->forward(x)).reshape({1024, 64});
      const Matrix loss = ml::loss::cross_entropy(head->forward(y), t);
      tape.backward(loss);
      for (const auto& p : layer.all_named_parameters()) {
        const auto g = p.parameter.gradient();
        EXPECT_TRUE(g.has_value()) << p.path;
        if (!g) continue;
        f64 size = 0;
        for (f32 v : g->read_f32()) size += std::abs(static_cast<f64>(v));
        EXPECT_GT(size, 1e-4) << p.path;
        EXPECT_LT(size, 1e3) << p.path;
      }
      return static_cast<f64>(loss.item());
    };
    EXPECT_NEAR(first_loss(*Rnn::with_seed(engine(), 32, 64, 1, kSeed + 1), bytes ? 31104 : 8891),
                bytes ? 5.569197 : 3.310754, 1e-5);
    EXPECT_NEAR(
        first_loss(*Gru::with_seed(engine(), 32, 64, 1, true, kSeed + 1), bytes ? 43648 : 21435),
        bytes ? 5.550348 : 3.292559, 1e-5);
    if (stride(2) == 2) return;
  }
}

TEST_P(RecurrentModuleTest, GivenWeightsAndTheirMistakes) {
  const Matrix ih = from<f32>({6, 3}, random_f32(1, 18)), hh = from<f32>({6, 2}, random_f32(2, 12));
  const Matrix b = from<f32>({6}, random_f32(3, 6)), c = from<f32>({6}, random_f32(4, 6));
  EXPECT_EQ(error_of([&] { Rnn::from_weights(ih, hh); }),
            "Rnn: bad weight_hh, got [6, 2], expected [2, 2]");
  EXPECT_EQ(error_of([&] { GruCell::from_weights(from<f32>({5, 3}, random_f32(1, 15)), hh); }),
            "GruCell: weight_ih does not fit, got f32 [5, 3], expected f32 6 rows");
  EXPECT_EQ(error_of([&] { Gru::from_matrices(ih, hh, b, from<f32>({2}, {1, 2})); }),
            "Gru: bias_hh does not fit, got [2], expected one element for each row of weight_hh, "
            "[6, 2]");
  const auto gru = Gru::from_matrices(ih, hh, b, c);
  EXPECT_EQ(gru->hidden_size(), 2);
  const Matrix x = from<f32>({2, 1, 3}, random_f32(5, 6));
  expect_near(gru->forward(x), ml::matrix::gru_scan(ml::matrix::linear(x, ih, b), hh, c), 1e-6f);
  EXPECT_EQ(error_of([&] { gru->forward(from<f32>({2, 3}, random_f32(5, 6))); }),
            "Gru: bad input, got [2, 3], expected [B, S, 3]");
  EXPECT_EQ(error_of([&] { gru->run(x, {}); }), "Gru: wrong number of states, got 0, expected 1");
  EXPECT_EQ(error_of([&] { gru->layer_parameters(1); }), "Gru: bad layer, got 1, expected 0 to 0");
  EXPECT_EQ(error_of([&] { Rnn::with_seed(engine(), 3, 0, 1, 0); }),
            "Rnn: bad size, got 0, expected 1 or more");
  const auto cell = RnnCell::with_seed(engine(), 3, 2, true, 0);
  EXPECT_EQ(error_of([&] { cell->step(from<f32>({2, 3}, random_f32(5, 6)), cell->zero_state(3)); }),
            "RnnCell: hidden state does not fit, got [3, 2], expected [2, 2]");
}

OA_ON_DEVICES(RecurrentModuleTest);

}  // namespace
}  // namespace oa::test
