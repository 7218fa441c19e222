// Recurrent cells and scans against plain loops in double precision, cell against scan, gradients
// against central differences, and the same bits for every number of threads.
#include "oa/ml/matrix/recurrent.h"

#include <gtest/gtest.h>

#include <cmath>

#include "oa/matrix/movement.h"
#include "oa/matrix/reduce.h"
#include "oa/ml/autograd/gradcheck.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "tests/matrix/devices.h"

namespace oa::test {
namespace {

using ml::GruReset;
using ml::matrix::gru_cell;
using ml::matrix::gru_scan;
using ml::matrix::rnn_cell;
using ml::matrix::rnn_scan;

struct Case {
  i64 batch, steps, hidden, gates;
  bool bias = true, state = false, reverse = false;
  GruReset reset = GruReset::AfterProduct;
};

struct Values {
  std::vector<f32> gates_i, weight, bias, state;
};

Values values_of(const Case& c, u32 seed = 1) {
  const auto n = [](i64 x) { return static_cast<size_t>(x); };
  const f32 limit = 1.5f / std::sqrt(static_cast<f32>(c.hidden));
  Values v;
  v.gates_i = random_f32(seed, n(c.batch * c.steps * c.gates * c.hidden));
  v.weight = random_f32(seed + 1, n(c.gates * c.hidden * c.hidden), -limit, limit);
  if (c.bias) v.bias = random_f32(seed + 2, n(c.gates * c.hidden), -1, 1);
  if (c.state) v.state = random_f32(seed + 3, n(c.batch * c.hidden), -1, 1);
  return v;
}

f64 logistic(f64 x) { return 1 / (1 + std::exp(-x)); }

// One row of the batch at one step, from the state before it.
std::vector<f64> reference_step(const Case& c, const Values& v, size_t gates_at,
                                const std::vector<f64>& h) {
  const auto n = static_cast<size_t>(c.hidden);
  const auto product = [&](size_t row, const std::vector<f64>& x) {
    f64 sum = c.bias ? static_cast<f64>(v.bias[row]) : 0;
    for (size_t k = 0; k < n; ++k) sum += static_cast<f64>(v.weight[row * n + k]) * x[k];
    return sum;
  };
  const auto gate = [&](size_t row) { return static_cast<f64>(v.gates_i[gates_at + row]); };
  std::vector<f64> out(n);
  if (c.gates == 1) {
    for (size_t i = 0; i < n; ++i) out[i] = std::tanh(gate(i) + product(i, h));
    return out;
  }
  std::vector<f64> r(n), z(n), reset(n);
  for (size_t i = 0; i < n; ++i) {
    r[i] = logistic(gate(i) + product(i, h));
    z[i] = logistic(gate(n + i) + product(n + i, h));
    reset[i] = r[i] * h[i];
  }
  for (size_t i = 0; i < n; ++i) {
    const f64 candidate = c.reset == GruReset::AfterProduct ? r[i] * product(2 * n + i, h)
                                                            : product(2 * n + i, reset);
    out[i] = (1 - z[i]) * std::tanh(gate(2 * n + i) + candidate) + z[i] * h[i];
  }
  return out;
}

std::vector<f64> reference_scan(const Case& c, const Values& v) {
  const auto n = static_cast<size_t>(c.hidden);
  std::vector<f64> out(static_cast<size_t>(c.batch * c.steps) * n);
  for (i64 b = 0; b < c.batch; ++b) {
    std::vector<f64> h(n, 0.0);
    for (size_t i = 0; c.state && i < n; ++i) {
      h[i] = static_cast<f64>(v.state[static_cast<size_t>(b) * n + i]);
    }
    for (i64 s = 0; s < c.steps; ++s) {
      const auto at = static_cast<size_t>(b * c.steps + (c.reverse ? c.steps - 1 - s : s));
      h = reference_step(c, v, at * static_cast<size_t>(c.gates) * n, h);
      std::copy(h.begin(), h.end(), out.begin() + static_cast<i64>(at * n));
    }
  }
  return out;
}

Matrix scan(const Case& c, const Matrix& gates, const Matrix& weight, const Matrix& bias,
            const Matrix& state) {
  return c.gates == 1 ? rnn_scan(gates, weight, bias, {.state = state, .reverse = c.reverse})
                      : gru_scan(gates, weight, bias,
                                 {.state = state, .reverse = c.reverse, .reset = c.reset});
}

struct Operands {
  Matrix gates, weight, bias, state;
  Operands(const Engine& e, const Case& c, const Values& v) {
    gates = Matrix::from_f32(e, {c.batch, c.steps, c.gates * c.hidden}, v.gates_i);
    weight = Matrix::from_f32(e, {c.gates * c.hidden, c.hidden}, v.weight);
    if (c.bias) bias = Matrix::from_f32(e, {c.gates * c.hidden}, v.bias);
    if (c.state) state = Matrix::from_f32(e, {c.batch, c.hidden}, v.state);
  }
  Matrix run(const Case& c) const { return scan(c, gates, weight, bias, state); }
};

std::string text_of(const Case& c) {
  return fmt::format("[{}, {}, {} {}] bias {} state {} reverse {} reset before {}", c.batch,
                     c.steps, c.gates, c.hidden, c.bias, c.state, c.reverse,
                     c.reset == GruReset::BeforeProduct);
}

// The result and the gradients of every operand, of a fixed weighted sum.
std::vector<std::vector<f32>> result_and_gradients(const Engine& e, const Case& c) {
  const Values v = values_of(c);
  const Operands o(e, c, v);
  const Matrix weights =
      Matrix::from_f32(e, {c.batch, c.steps, c.hidden},
                       random_f32(9, static_cast<size_t>(c.batch * c.steps * c.hidden)));
  ml::GradientTape tape;
  std::vector<Matrix> watched;
  for (const Matrix& m : {o.gates, o.weight, o.bias, o.state}) {
    if (!m.valid()) continue;
    tape.watch(m);
    watched.push_back(m);
  }
  const Matrix y = o.run(c);
  tape.backward(matrix::sum(y * weights));
  std::vector<std::vector<f32>> all = {y.read_f32()};
  for (const Matrix& m : watched) all.push_back(tape.gradient(m)->read_f32());
  return all;
}

class RecurrentTest : public OnDevice {
 protected:
  void follows(const Case& c) {
    const Values v = values_of(c);
    const std::vector<f64> expected = reference_scan(c, v);
    const std::vector<f32> got = Operands(engine(), c, v).run(c).read_f32();
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(static_cast<f64>(got[i]), expected[i], 4e-6) << i << " of " << text_of(c);
    }
  }
  // The kinds of scan with all that they may have: gates, reset.
  void each_kind(const std::function<void(i64, GruReset)>& f) {
    f(1, GruReset::AfterProduct);
    f(3, GruReset::AfterProduct);
    f(3, GruReset::BeforeProduct);
  }
};

TEST_P(RecurrentTest, FollowsItsDefinition) {
  each_kind([&](i64 gates, GruReset reset) {
    follows({3, 4, 7, gates, true, true, false, reset});
    if (interpreted()) return;
    for (i64 hidden : {1, 33, 64}) follows({5, 6, hidden, gates, true, false, true, reset});
  });
  if (interpreted() || stride(2) == 2) return;
  // Rows and columns that fill no tile, one row, two, and many.
  each_kind([&](i64 gates, GruReset reset) {
    for (i64 batch : {1, 2, 3, 9, 67}) {
      for (i64 hidden : {1, 7, 16, 33, 64, 100, 130}) {
        const bool odd = (batch + hidden) % 2 == 1;
        follows(
            {batch, 1 + hidden % 5, hidden, gates, odd, hidden % 3 == 0, batch % 3 == 0, reset});
      }
    }
    follows({2, 40, 300, gates, true, true, true, reset});
  });
}

TEST_P(RecurrentTest, ScanIsTheCellRepeated) {
  each_kind([&](i64 gates, GruReset reset) {
    if (stride(2) == 2 && reset == GruReset::BeforeProduct) return;
    const Case c{3, 3, 5, gates, true, true, false, reset};
    const Operands o(engine(), c, values_of(c));
    const std::vector<f32> all = o.run(c).read_f32();
    Matrix h = o.state;
    for (i64 s = 0; s < c.steps; ++s) {
      const Matrix now = matrix::slice(o.gates, 1, s, s + 1).reshape({c.batch, gates * c.hidden});
      h = gates == 1 ? rnn_cell(now, h, o.weight, o.bias)
                     : gru_cell(now, h, o.weight, o.bias, reset);
      const std::vector<f32> step = h.read_f32();
      for (i64 b = 0; b < c.batch; ++b) {
        for (i64 i = 0; i < c.hidden; ++i) {
          EXPECT_NEAR(step[static_cast<size_t>(b * c.hidden + i)],
                      all[static_cast<size_t>((b * c.steps + s) * c.hidden + i)], 1e-6);
        }
      }
    }
  });
}

// x = 1, h = 0.5, input weights (.1, .2, .3), recurrent weights (.4, .5, .6), input bias of the
// candidate .1, recurrent .2.
TEST_P(RecurrentTest, PlaceOfTheResetGate) {
  const Matrix gates = from<f32>({1, 3}, {0.1f, 0.2f, 0.4f}), h = from<f32>({1, 1}, {0.5f});
  const Matrix weight = from<f32>({3, 1}, {0.4f, 0.5f, 0.6f});
  const Matrix bias = from<f32>({3}, {0, 0, 0.2f});
  EXPECT_NEAR(gru_cell(gates, h, weight, bias).read_f32()[0], 0.537454, 1e-6);
  const Matrix sequence = gates.reshape({1, 1, 3});
  EXPECT_NEAR(gru_scan(sequence, weight, bias, {.state = h}).read_f32()[0], 0.537454, 1e-6);
  EXPECT_NEAR(gru_cell(gates, h, weight, bias, GruReset::BeforeProduct).read_f32()[0], 0.557736,
              1e-6);
  EXPECT_NEAR(gru_scan(sequence, weight, bias, {.state = h, .reset = GruReset::BeforeProduct})
                  .read_f32()[0],
              0.557736, 1e-6);
}

// The checks of gradients run on the CPU; other devices have the same.
TEST_P(RecurrentTest, GradientsEqualThoseOfTheCpu) {
  each_kind([&](i64 gates, GruReset reset) {
    for (const Case& c : {Case{2, 3, 5, gates, true, true, false, reset},
                          Case{5, 2, 19, gates, false, false, true, reset}}) {
      const auto expected = result_and_gradients(*open_device("cpu").engine, c);
      const auto got = result_and_gradients(engine(), c);
      for (size_t k = 0; k < got.size(); ++k) {
        for (size_t i = 0; i < got[k].size(); ++i) {
          ASSERT_NEAR(got[k][i], expected[k][i], 1e-5) << k << ", " << i << " of " << text_of(c);
        }
      }
      if (stride(2) == 2) return;  // one case of each kind
    }
  });
}

TEST_P(RecurrentTest, NothingToDo) {
  for (i64 gates : {1, 3}) {
    for (const auto& [batch, steps, hidden] :
         {std::array<i64, 3>{0, 3, 4}, std::array<i64, 3>{2, 0, 4}, std::array<i64, 3>{2, 3, 0}}) {
      const Case c{batch, steps, hidden, gates, true, true};
      Values v = values_of({batch, steps, std::max<i64>(hidden, 1), gates, true, true});
      if (hidden == 0) v = {};
      ml::GradientTape tape;
      const Operands o(engine(), c, v);
      for (const Matrix& m : {o.gates, o.weight, o.bias, o.state}) tape.watch(m);
      const Matrix y = o.run(c);
      EXPECT_EQ(y.shape(), (Shape{batch, steps, hidden}));
      tape.backward(matrix::sum(y));
      for (const Matrix& m : {o.weight, o.bias, o.state}) {
        for (f32 x : tape.gradient(m)->read_f32()) EXPECT_EQ(x, 0);
      }
    }
  }
}

TEST_P(RecurrentTest, NanStaysInItsRow) {
  for (i64 gates : {1, 3}) {
    const Case c{3, 3, 5, gates};
    Values v = values_of(c);
    // Row 1, step 1.
    v.gates_i[static_cast<size_t>((1 * 3 + 1) * gates * 5)] = std::nanf("");
    const std::vector<f32> y = Operands(engine(), c, v).run(c).read_f32();
    for (size_t i = 0; i < y.size(); ++i) {
      const size_t row = i / 15, step = i / 5 % 3;
      const bool reached = row == 1 && (step == 2 || (step == 1 && i % 5 == 0));
      EXPECT_EQ(std::isnan(y[i]), reached) << i;
    }
  }
}

OA_ON_DEVICES(RecurrentTest);

TEST(Recurrent, GradientsEqualCentralDifferences) {
  Engine& e = *open_device("cpu").engine;
  const auto f64_of = [&](const Shape& s, u32 seed, f64 limit) {
    std::mt19937 rng(seed);
    std::uniform_real_distribution<f64> d(-limit, limit);
    std::vector<f64> x(static_cast<size_t>(s.elements()));
    for (f64& y : x) y = d(rng);
    return Matrix::from_slice<f64>(e, s, x);
  };
  for (const Case& base : {Case{1, 4, 1, 1, true, true}, Case{3, 5, 33, 1, true, true, true},
                           Case{7, 3, 10, 1, false, false}, Case{1, 4, 1, 3, true, true, true},
                           Case{3, 5, 33, 3, true, true}, Case{7, 3, 10, 3, false, false, true}}) {
    for (GruReset reset : {GruReset::AfterProduct, GruReset::BeforeProduct}) {
      Case c = base;
      c.reset = reset;
      if (c.gates == 1 && reset == GruReset::BeforeProduct) continue;
      std::vector<Matrix> in = {f64_of({c.batch, c.steps, c.gates * c.hidden}, 1, 1.5),
                                f64_of({c.gates * c.hidden, c.hidden}, 2, 0.4)};
      if (c.bias) in.push_back(f64_of({c.gates * c.hidden}, 3, 0.5));
      if (c.state) in.push_back(f64_of({c.batch, c.hidden}, 4, 1));
      const auto result = ml::gradcheck(
          [&](const std::vector<Matrix>& x) {
            return scan(c, x[0], x[1], c.bias ? x[2] : Matrix(),
                        c.state ? x[c.bias ? 3 : 2] : Matrix());
          },
          in, {.most_elements = 24});
      EXPECT_TRUE(result.ok) << text_of(c) << ": " << result.complaint;
    }
  }
}

// Several layers, both directions and a state that is computed: gradients reach through all.
TEST(Recurrent, GradientsOfStackedScans) {
  Engine& e = *open_device("cpu").engine;
  const auto of = [&](const Shape& s, u32 seed) {
    const std::vector<f32> x = random_f32(seed, static_cast<size_t>(s.elements()), -0.7f, 0.7f);
    return matrix::cast(Matrix::from_f32(e, s, x), DType::F64);
  };
  const auto result = ml::gradcheck(
      [](const std::vector<Matrix>& x) {
        const Matrix a = rnn_scan(x[0], x[1], {}, {.state = x[3] * x[3]});
        const Matrix b =
            gru_scan(matrix::concat({a, a, x[0]}, 2), x[2], {}, {.state = x[3], .reverse = true});
        return a * b;
      },
      {of({2, 4, 6}, 1), of({6, 6}, 2), of({18, 6}, 3), of({2, 6}, 4)});
  EXPECT_TRUE(result.ok) << result.complaint;
}

TEST(Recurrent, NumberOfThreadsChangesNoBit) {
  std::vector<std::vector<std::vector<f32>>> runs;
  for (u32 threads : {1u, 2u, 3u}) {
    Engine e = Engine::open({.device = "cpu", .device_options = {.threads = threads}});
    std::vector<std::vector<f32>> all;
    for (const Case& c : {Case{37, 5, 33, 1, true, true}, Case{37, 5, 33, 3, true, true, true},
                          Case{9, 4, 70, 3, true, false, false, GruReset::BeforeProduct}}) {
      for (auto& values : result_and_gradients(e, c)) all.push_back(std::move(values));
    }
    runs.push_back(std::move(all));
  }
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_EQ(runs[0], runs[2]);
}

// What a row gives does not depend on the rows beside it.
TEST(Recurrent, BatchChangesNoBit) {
  Engine& e = *open_device("cpu").engine;
  for (i64 gates : {1, 3}) {
    const Case whole{11, 4, 40, gates};
    Values v = values_of(whole);
    const std::vector<f32> all = Operands(e, whole, v).run(whole).read_f32();
    for (i64 rows : {1, 2, 5}) {
      const Case part{rows, 4, 40, gates};
      Values w = v;
      w.gates_i.resize(static_cast<size_t>(rows * 4 * gates * 40));
      const std::vector<f32> some = Operands(e, part, w).run(part).read_f32();
      EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin())) << rows;
    }
  }
}

// Without a tape the gates are not kept; the result is the same.
TEST(Recurrent, TapeChangesNoBit) {
  Engine& e = *open_device("cpu").engine;
  const Case c{5, 6, 20, 3, true, true};
  const Operands o(e, c, values_of(c));
  const std::vector<f32> plain = o.run(c).read_f32();
  ml::GradientTape tape;
  tape.watch(o.weight);
  EXPECT_EQ(o.run(c).read_f32(), plain);
}

// Numbers of 16 bits are those of F32 in between; the results are rounded.
TEST_P(RecurrentTest, SixteenBitsAroundSumsOfThirtyTwo) {
  for (const DType narrow : {DType::F16, DType::BF16}) {
    for (const i64 gates : {1, 3}) {
      const Case c{.batch = 3, .steps = 5, .hidden = 7, .gates = gates, .state = true};
      const Values v = values_of(c);
      const auto rounded = [&](const Shape& shape, const std::vector<f32>& values) {
        return matrix::cast(from<f32>(shape, values), narrow);
      };
      const std::vector<Matrix> in = {rounded({c.batch, c.steps, gates * c.hidden}, v.gates_i),
                                      rounded({gates * c.hidden, c.hidden}, v.weight),
                                      rounded({gates * c.hidden}, v.bias),
                                      rounded({c.batch, c.hidden}, v.state)};
      engine().flush();  // what is cast back in one kernel is not rounded
      std::vector<Matrix> wide;
      for (const Matrix& m : in) wide.push_back(matrix::cast(m, DType::F32));
      const auto as_narrow = [&](const Matrix& m) {
        const Matrix x = matrix::cast(m, narrow);
        engine().flush();
        return matrix::cast(x, DType::F32).read_f32();
      };
      engine().flush();
      const auto run = [&](const std::vector<Matrix>& x, std::vector<Matrix>* grads, bool cell) {
        ml::GradientTape tape;
        for (const Matrix& m : x) tape.watch(m);
        const Matrix first = cell ? matrix::slice(x[0], 1, 0, 1).squeeze(1) : x[0];
        const Matrix y = cell && gates == 1 ? rnn_cell(first, x[3], x[1], x[2])
                         : cell             ? gru_cell(first, x[3], x[1], x[2])
                         : gates == 1       ? rnn_scan(first, x[1], x[2], {.state = x[3]})
                                            : gru_scan(first, x[1], x[2], {.state = x[3]});
        tape.backward(matrix::sum(matrix::cast(y, DType::F32)));
        for (const Matrix& m : x) grads->push_back(*tape.gradient(m));
        return y;
      };
      for (const bool cell : {false, true}) {
        std::vector<Matrix> grads, expected;
        const Matrix y = run(in, &grads, cell), reference = run(wide, &expected, cell);
        EXPECT_EQ(y.dtype(), narrow);
        engine().flush();
        EXPECT_EQ(matrix::cast(y, DType::F32).read_f32(), as_narrow(reference));
        for (size_t i = 0; i < grads.size(); ++i) {
          EXPECT_EQ(grads[i].dtype(), narrow) << i;
          EXPECT_EQ(matrix::cast(grads[i], DType::F32).read_f32(), as_narrow(expected[i]))
              << token(narrow) << " " << gates << " " << cell << " operand " << i;
        }
      }
      // Gates of 16 bits over weights that are kept in 32.
      EXPECT_EQ(
          rnn_scan(matrix::slice(in[0], 2, 0, c.hidden), matrix::slice(wide[1], 0, 0, c.hidden))
              .dtype(),
          narrow);
    }
  }
}

}  // namespace
}  // namespace oa::test
