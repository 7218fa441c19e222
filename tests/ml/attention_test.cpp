// Attention against its definition in double precision, backend against backend, masks, and rows
// that see nothing.
#include "oa/ml/matrix/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "oa/engine/engine_core.h"
#include "oa/matrix/reduce.h"
#include "oa/ml/autograd/gradcheck.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "tests/matrix/devices.h"

namespace oa::test {
namespace {

using ml::AttentionBackend;
using ml::matrix::attention;
using ml::matrix::AttentionOptions;

constexpr f32 kMinusInfinity = -std::numeric_limits<f32>::infinity();

class AttentionTest : public OnDevice {
 protected:
  struct Case {
    i64 batch, heads, kv_heads, queries, keys, dim;
    bool causal;
  };
  // mask: additive [queries, keys], or empty.
  static std::vector<f64> reference(const Case& c, const std::vector<f32>& q,
                                    const std::vector<f32>& k, const std::vector<f32>& v,
                                    const std::vector<f32>& mask) {
    std::vector<f64> out(q.size());
    const i64 sharing = c.heads / c.kv_heads;
    for (i64 bh = 0; bh < c.batch * c.heads; ++bh) {
      const i64 kv = bh / c.heads * c.kv_heads + bh % c.heads / sharing;
      for (i64 i = 0; i < c.queries; ++i) {
        std::vector<f64> s(static_cast<size_t>(c.keys));
        f64 peak = -INFINITY, total = 0;
        for (i64 j = 0; j < c.keys; ++j) {
          f64 x = 0;
          for (i64 d = 0; d < c.dim; ++d) {
            x += static_cast<f64>(q[static_cast<size_t>((bh * c.queries + i) * c.dim + d)]) *
                 static_cast<f64>(k[static_cast<size_t>((kv * c.keys + j) * c.dim + d)]);
          }
          x /= std::sqrt(static_cast<f64>(c.dim));
          if (!mask.empty()) x += static_cast<f64>(mask[static_cast<size_t>(i * c.keys + j)]);
          if (c.causal && j > i) x = -INFINITY;
          s[static_cast<size_t>(j)] = x;
          peak = std::max(peak, x);
        }
        for (f64& x : s) {
          x = peak == -INFINITY ? 0 : std::exp(x - peak);
          total += x;
        }
        for (i64 d = 0; d < c.dim; ++d) {
          f64 y = 0;
          for (i64 j = 0; j < c.keys; ++j) {
            y += s[static_cast<size_t>(j)] *
                 static_cast<f64>(v[static_cast<size_t>((kv * c.keys + j) * c.dim + d)]);
          }
          out[static_cast<size_t>((bh * c.queries + i) * c.dim + d)] = total == 0 ? 0 : y / total;
        }
      }
    }
    return out;
  }

  void check(const Case& c, const std::vector<f32>& mask = {}) {
    const auto size = [](i64 a, i64 b, i64 n, i64 d) { return static_cast<size_t>(a * b * n * d); };
    const auto q = random_f32(1, size(c.batch, c.heads, c.queries, c.dim));
    const auto k = random_f32(2, size(c.batch, c.kv_heads, c.keys, c.dim));
    const auto v = random_f32(3, size(c.batch, c.kv_heads, c.keys, c.dim));
    const std::vector<f64> expected = reference(c, q, k, v, mask);
    for (AttentionBackend backend : {AttentionBackend::Standard, AttentionBackend::Flash}) {
      AttentionOptions o{.causal = c.causal, .backend = backend};
      if (!mask.empty()) o.mask = from<f32>({c.queries, c.keys}, mask);
      const auto got = attention(from<f32>({c.batch, c.heads, c.queries, c.dim}, q),
                                 from<f32>({c.batch, c.kv_heads, c.keys, c.dim}, k),
                                 from<f32>({c.batch, c.kv_heads, c.keys, c.dim}, v), o)
                           .read_f32();
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_NEAR(static_cast<f64>(got[i]), expected[i], 2e-5)
            << i << " of " << c.queries << "x" << c.keys << "x" << c.dim;
      }
    }
  }
};

TEST_P(AttentionTest, FollowsItsDefinition) {
  check({1, 1, 1, 1, 1, 1, false});
  check({2, 3, 3, 17, 17, 8, true});
  check({1, 4, 2, 9, 21, 5, false});
  check({1, 2, 1, 20, 37, 32, true});  // tiles, where the device has them
  if (interpreted()) return;
  check({2, 2, 2, 33, 33, 32, true});
  check({1, 2, 2, 70, 70, 64, true});
  check({1, 4, 2, 130, 65, 64, false});
  check({1, 2, 1, 16, 48, 128, true});
  check({1, 2, 1, 40, 7, 130, true});
}

TEST_P(AttentionTest, RowsThatSeeNothingAreZero) {
  const i64 n = 4;
  const auto hide = [&](f32 hidden) {
    std::vector<f32> mask(static_cast<size_t>(n * n), 0);
    for (i64 j = 0; j < n; ++j) mask[static_cast<size_t>(n + j)] = hidden;
    return mask;
  };
  check({1, 1, 1, n, n, 2, false}, hide(kMinusInfinity));
  check({1, 1, 1, n, n, 2, false}, hide(-10));
  // Numbers so large that a score adds nothing to them leave an even choice.
  for (f32 hidden : {-1e10f, -std::numeric_limits<f32>::max()}) {
    for (AttentionBackend backend : {AttentionBackend::Standard, AttentionBackend::Flash}) {
      const auto v = random_f32(3, 8);
      const auto y =
          attention(from<f32>({1, 1, n, 2}, random_f32(1, 8)),
                    from<f32>({1, 1, n, 2}, random_f32(2, 8)), from<f32>({1, 1, n, 2}, v),
                    {.mask = from<f32>({n, n}, hide(hidden)), .backend = backend})
              .read_f32();
      EXPECT_NEAR(y[2], (v[0] + v[2] + v[4] + v[6]) / 4, 1e-6) << hidden;
    }
  }
}

// Additive masks that hide a whole row, from mild to one that overflows: all of it stays finite,
// and the other rows do not notice.
TEST_P(AttentionTest, HugeMasksStayFiniteAndInTheirRow) {
  constexpr f32 kMost = std::numeric_limits<f32>::max();
  const Shape shape{1, 1, 4, 2};
  for (AttentionBackend backend : {AttentionBackend::Standard, AttentionBackend::Flash}) {
    // With and without the mask on row 1, in the same kernels.
    const auto run = [&](f32 first, f32 second) {
      const auto mask = [&](f32 hidden) {
        std::vector<f32> m(16, 0);
        std::fill_n(m.begin() + 4, 4, hidden);
        return from<f32>({4, 4}, m);
      };
      const Matrix q = from<f32>(shape, random_f32(1, 8)), k = from<f32>(shape, random_f32(2, 8)),
                   v = from<f32>(shape, random_f32(3, 8));
      ml::GradientTape tape;
      for (const Matrix& m : {q, k, v}) tape.watch(m);
      const Matrix y = attention(q, k, v, {.mask = mask(first) + mask(second), .backend = backend});
      tape.backward(matrix::sum(y * y));
      std::vector<std::vector<f32>> out = {y.read_f32()};
      for (const Matrix& m : {q, k, v}) out.push_back(tape.gradient(m)->read_f32());
      return out;
    };
    const auto plain = run(0, 0);
    for (const auto& [first, second] :
         {std::pair(-10.0f, 0.0f), {-1e10f, 0}, {-kMost, 0}, {-kMost, -kMost}}) {
      const auto hidden = run(first, second);
      for (size_t part = 0; part < 4; ++part) {
        for (f32 x : hidden[part]) EXPECT_TRUE(std::isfinite(x)) << part << " " << first;
      }
      for (size_t i : {0u, 1u, 4u, 5u, 6u, 7u}) {
        EXPECT_EQ(hidden[0][i], plain[0][i]) << first << " " << second;
      }
      if (second != 0) {
        for (size_t i : {2u, 3u}) {
          EXPECT_EQ(hidden[0][i], 0);
          EXPECT_EQ(hidden[1][i], 0);
        }
      }
    }
  }
}

TEST_P(AttentionTest, GradientsOfHiddenRowsAreZeroInBothBackends) {
  const Shape shape{1, 1, 4, 2};
  std::vector<u8> seen(16, 1);
  for (size_t j = 0; j < 4; ++j) seen[4 + j] = 0;
  std::vector<std::vector<f32>> grads[2];
  for (int b = 0; b < 2; ++b) {
    const Matrix q = from<f32>(shape, random_f32(1, 8)), k = from<f32>(shape, random_f32(2, 8)),
                 v = from<f32>(shape, random_f32(3, 8));
    ml::GradientTape tape;
    for (const Matrix& m : {q, k, v}) tape.watch(m);
    const Matrix y =
        attention(q, k, v,
                  {.mask = bools({4, 4}, seen),
                   .backend = b == 0 ? AttentionBackend::Standard : AttentionBackend::Flash});
    tape.backward(matrix::sum(y * y));
    for (const Matrix& m : {q, k, v}) grads[b].push_back(tape.gradient(m)->read_f32());
    const auto out = y.read_f32();
    EXPECT_EQ(out[2], 0);
    EXPECT_EQ(out[3], 0);
    EXPECT_EQ(grads[b][0][2], 0);
    EXPECT_EQ(grads[b][0][3], 0);
  }
  for (size_t i = 0; i < 3; ++i) {
    for (size_t e = 0; e < 8; ++e) {
      EXPECT_TRUE(std::isfinite(grads[0][i][e]));
      EXPECT_NEAR(grads[0][i][e], grads[1][i][e], 1e-5) << i << " " << e;
    }
  }
}

TEST_P(AttentionTest, BackendsHaveEqualGradients) {
  struct Shapes {
    Shape q, k;
    bool inner, causal, masked;
  };
  std::vector<Shapes> cases = {{{1, 20, 2, 32}, {1, 23, 1, 32}, true, true, true}};
  if (!interpreted()) {
    cases.push_back({{2, 2, 33, 32}, {2, 2, 33, 32}, false, true, false});
    cases.push_back({{1, 4, 70, 64}, {1, 2, 45, 64}, false, false, true});
    cases.push_back({{1, 65, 2, 64}, {1, 130, 2, 64}, true, true, false});
    cases.push_back({{1, 1, 17, 128}, {1, 1, 40, 128}, false, false, false});
  }
  for (const Shapes& c : cases) {
    const i64 queries = c.q[c.inner ? 1 : 2], keys = c.k[c.inner ? 1 : 2];
    std::vector<std::vector<f32>> grads[2];
    for (int b = 0; b < 2; ++b) {
      const auto made = [&](u32 seed, const Shape& shape) {
        return from<f32>(shape, random_f32(seed, static_cast<size_t>(shape.elements())));
      };
      const Matrix q = made(1, c.q), k = made(2, c.k), v = made(3, c.k), weight = made(4, c.q);
      AttentionOptions o{.causal = c.causal,
                         .heads_inner = c.inner,
                         .backend = b == 0 ? AttentionBackend::Standard : AttentionBackend::Flash};
      if (c.masked) o.mask = made(5, {queries, keys});
      ml::GradientTape tape;
      for (const Matrix& m : {q, k, v}) tape.watch(m);
      tape.backward(matrix::sum(attention(q, k, v, o) * weight));
      for (const Matrix& m : {q, k, v}) grads[b].push_back(tape.gradient(m)->read_f32());
    }
    for (size_t i = 0; i < 3; ++i) {
      for (size_t e = 0; e < grads[0][i].size(); ++e) {
        ASSERT_NEAR(grads[0][i][e], grads[1][i][e], 2e-5)
            << "operand " << i << " element " << e << " of " << queries << "x" << keys;
      }
    }
  }
}

// Operands of 16 bits: close to plain f32, and on a device with matrix units not the same.
TEST_P(AttentionTest, RoundedPrecisionsAreCloseToPlainOnes) {
  struct Shapes {
    Shape q, k;
    bool inner, causal, masked;
  };
  std::vector<Shapes> cases = {{{1, 32, 2, 32}, {1, 64, 1, 32}, true, true, true}};
  if (!interpreted()) {
    cases.push_back({{2, 2, 96, 64}, {2, 2, 64, 64}, false, false, false});
    cases.push_back({{1, 128, 2, 64}, {1, 128, 2, 64}, true, true, false});
  }
  for (const Shapes& c : cases) {
    const i64 queries = c.q[c.inner ? 1 : 2], keys = c.k[c.inner ? 1 : 2];
    const auto made = [&](u32 seed, const Shape& shape) {
      return from<f32>(shape, random_f32(seed, static_cast<size_t>(shape.elements())));
    };
    const Matrix q = made(1, c.q), k = made(2, c.k), v = made(3, c.k), weight = made(4, c.q);
    const auto results = [&](Precision precision) {
      AttentionOptions o{.causal = c.causal,
                         .heads_inner = c.inner,
                         .backend = AttentionBackend::Flash,
                         .precision = precision};
      if (c.masked) o.mask = made(5, {queries, keys});
      ml::GradientTape tape;
      for (const Matrix& m : {q, k, v}) tape.watch(m);
      const Matrix y = attention(q, k, v, o);
      tape.backward(matrix::sum(y * weight));
      std::vector<std::vector<f32>> all = {y.read_f32()};
      for (const Matrix& m : {q, k, v}) all.push_back(tape.gradient(m)->read_f32());
      return all;
    };
    const auto plain = results(Precision::F32);
    for (const Precision p : {Precision::F16, Precision::BF16}) {
      const auto rounded = results(p);
      for (size_t i = 0; i < plain.size(); ++i) {
        for (size_t e = 0; e < plain[i].size(); ++e) {
          ASSERT_NEAR(plain[i][e], rounded[i][e], p == Precision::F16 ? 6e-3 : 5e-2)
              << token(p) << " result " << i << " element " << e << " of " << queries;
        }
      }
      EXPECT_EQ(results(p), rounded);
      if (engine().core().device().target().fragments) {
        EXPECT_NE(plain[0], rounded[0]);
      }
    }
  }
}

OA_ON_DEVICES(AttentionTest);

TEST(AttentionGradients, EqualCentralDifferences) {
  Engine& e = *open_device("cpu").engine;
  const auto values = [&](u32 seed, const Shape& shape) {
    std::vector<f64> v;
    for (f32 x : random_f32(seed, static_cast<size_t>(shape.elements()))) v.push_back(x);
    return Matrix::from_slice<f64>(e, shape, v);
  };
  for (AttentionBackend backend : {AttentionBackend::Standard, AttentionBackend::Flash}) {
    for (bool causal : {false, true}) {
      for (bool inner : {false, true}) {
        const Shape q = inner ? Shape{2, 19, 4, 6} : Shape{2, 4, 19, 6};
        const Shape k = inner ? Shape{2, 11, 2, 6} : Shape{2, 2, 11, 6};
        const auto result = ml::gradcheck(
            [&](const std::vector<Matrix>& x) {
              return attention(
                  x[0], x[1], x[2],
                  {.scale = 0.4, .causal = causal, .heads_inner = inner, .backend = backend});
            },
            {values(1, q), values(2, k), values(3, k)});
        EXPECT_TRUE(result.ok) << causal << inner << " " << result.complaint;
      }
    }
  }
}

}  // namespace
}  // namespace oa::test
