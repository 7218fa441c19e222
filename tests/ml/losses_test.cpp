// Losses and norms at awkward points: all rows ignored, bad classes, large logits, infinities,
// constant rows, zero vectors, ties; and the exact text of refusals.
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "oa/matrix/movement.h"
#include "oa/matrix/reduce.h"
#include "oa/matrix/transcendental.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/loss/cross_entropy.h"
#include "oa/ml/loss/elementwise.h"
#include "oa/ml/matrix/activation.h"
#include "oa/ml/matrix/norm.h"
#include "tests/matrix/devices.h"

namespace oa::test {
namespace {

using namespace ml::loss;    // NOLINT
using namespace ml::matrix;  // NOLINT

constexpr f32 kInf = std::numeric_limits<f32>::infinity();

class Losses : public OnDevice {
 protected:
  // The gradient of the sum of f(x).
  template <class F>
  std::vector<f32> slope(const Matrix& x, F&& f) {
    ml::GradientTape tape;
    tape.watch(x);
    const Matrix root = matrix::sum(f(x));
    tape.backward(root);
    return tape.gradient(x)->template read<f32>();
  }
};

void expect_near(const std::vector<f32>& got, const std::vector<f32>& want, f32 tolerance = 1e-4f) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], tolerance) << i;
}

TEST_P(Losses, AllRowsIgnoredIsZeroWithZeroGradient) {
  const Matrix x = from<f32>({5, 10}, random_f32(1, 50));
  const Matrix t = from<i32>({5}, {-100, -100, -100, -100, -100});
  for (Reduction r : {Reduction::Mean, Reduction::Sum, Reduction::None}) {
    const auto f = [&](const Matrix& m) {
      return cross_entropy(m, t, {.reduction = r, .ignore_index = -100});
    };
    for (f32 v : f(x).read<f32>()) EXPECT_EQ(v, 0);
    for (f32 v : slope(x, f)) EXPECT_EQ(v, 0);
  }
}

TEST_P(Losses, IgnoredRowsMayHoldAnything) {
  const Matrix x = from<f32>({2, 3}, {NAN, kInf, -kInf, 1, 1, 1});
  const auto f = [&](const Matrix& m) {
    return cross_entropy(m, from<i32>({2}, {255, 0}), {.ignore_index = 255});
  };
  expect_near(f(x).read<f32>(), {std::log(3.0f)});
  expect_near(slope(x, f), {0, 0, 0, -2 / 3.0f, 1 / 3.0f, 1 / 3.0f});
}

TEST_P(Losses, IgnoreSkipsRowsNotClasses) {
  const std::vector<f32> wanted = {1.0986f, 0.8620f, 0.6931f};
  const f32 first[] = {1, 0, -kInf};
  for (size_t i = 0; i < 3; ++i) {
    const Matrix x = from<f32>({1, 3}, {first[i], 1, 1});
    expect_near(cross_entropy(x, from<i32>({1}, {1}), {.ignore_index = 0}).read<f32>(),
                {wanted[i]});
  }
}

TEST_P(Losses, LargeIgnoreIndexAgreesBetweenReductions) {
  const Matrix x = from<f32>({6, 3}, random_f32(2, 18));
  const Matrix t = from<u8>({6}, {0, 1, 255, 0, 1, 2});
  const std::vector<f32> each =
      cross_entropy(x, t, {.reduction = Reduction::None, .ignore_index = 255}).read<f32>();
  EXPECT_EQ(each[2], 0);
  f32 sum = 0;
  for (f32 v : each) sum += v;
  expect_near(cross_entropy(x, t, {.ignore_index = 255}).read<f32>(), {sum / 5}, 1e-5f);
}

TEST_P(Losses, LargeLogitsAreExact) {
  const Matrix x = from<f32>({1, 3}, {-431, 279, 427});
  const auto f = [&](const Matrix& m) { return cross_entropy(m, from<i32>({1}, {0})); };
  EXPECT_EQ(f(x).read<f32>()[0], 858);
  EXPECT_EQ(slope(x, f), (std::vector<f32>{-1, 0, 1}));
  // The common part of the logits costs no digits.
  const Matrix far = from<f32>({1, 2}, {1e6f, 1e6f + 1});
  EXPECT_NEAR(cross_entropy(far, from<i32>({1}, {1})).read<f32>()[0], 0.3132617, 1e-6);
}

TEST_P(Losses, SlopesOfSoftmaxAndLogSumExpFarOut) {
  const auto softmax = [](const Matrix& m) { return matrix::softmax(m); };
  EXPECT_EQ(slope(from<f32>({3}, {-1047, -981, 1891}), softmax), (std::vector<f32>{0, 0, 0}));
  const auto lse = [](const Matrix& m) { return matrix::log_sum_exp(m, 0); };
  EXPECT_EQ(lse(from<f32>({2}, {-kInf, -kInf})).item(), -kInf);
  EXPECT_EQ(slope(from<f32>({2}, {-kInf, -kInf}), lse), (std::vector<f32>{0, 0}));
  EXPECT_EQ(slope(from<f32>({3}, {-kInf, 0, -kInf}), lse), (std::vector<f32>{0, 1, 0}));
}

// The entropy of the logits' own distribution: a class that cannot be adds nothing.
TEST_P(Losses, DistributionsWithImpossibleClasses) {
  const Matrix x = from<f32>({1, 3}, {0, 0, -kInf}), p = from<f32>({1, 3}, {0.5f, 0.5f, 0});
  const auto f = [&](const Matrix& m) { return cross_entropy(m, p); };
  EXPECT_NEAR(f(x).item(), 0.693147, 1e-6);
  expect_near(slope(x, f), {0, 0, 0}, 1e-7f);
  const Matrix q = from<f32>({1, 3}, {1, 0, 0});
  const auto g = [&](const Matrix& m) { return cross_entropy(m, q); };
  EXPECT_NEAR(g(x).item(), 0.693147, 1e-6);
  expect_near(slope(x, g), {-0.5f, 0.5f, 0}, 1e-6f);
}

TEST_P(Losses, MaskedRowsAreNotLookedAt) {
  const Matrix x = from<f32>({3, 2}, {1, 1, NAN, 3, 0, 0});
  const Matrix t = from<i32>({3}, {0, 77, 1}), mask = from<f32>({3}, {0.25f, 0, -3});
  const auto f = [&](const Matrix& m) { return cross_entropy_masked(m, t, mask, 2); };
  expect_near(f(x).read<f32>(), {std::log(2.0f)});
  expect_near(slope(x, f), {-0.25f, 0.25f, 0, 0, 0.25f, -0.25f});
}

TEST_P(Losses, NothingToAverageIsZero) {
  const Matrix none = from<f32>({0, 3}, {});
  EXPECT_EQ(cross_entropy(none, from<i32>({0}, {})).read<f32>()[0], 0);
  EXPECT_EQ(mse(none, none).read<f32>()[0], 0);
}

TEST_P(Losses, BinaryLossesAtTheEnds) {
  const Matrix p = from<f32>({2}, {0, 1}), t = from<f32>({2}, {1, 0});
  const auto f = [&](const Matrix& m) { return bce(m, t, Reduction::Sum); };
  EXPECT_NEAR(f(p).read<f32>()[0], 32.18, 0.2);  // 2 log(1e7), as F32 has 1 - 1e-7
  const std::vector<f32> d = slope(p, f);
  EXPECT_LT(d[0], -9e6f);  // the bound does not stop the gradient
  EXPECT_GT(d[1], 8e6f);
  const Matrix x = from<f32>({3}, {1e4f, -1e4f, -kInf}), hit = from<f32>({3}, {0, 1, 0});
  EXPECT_EQ(bce_with_logits(x, hit, Reduction::None).read<f32>(),
            (std::vector<f32>{1e4f, 1e4f, 0}));
}

TEST_P(Losses, EqualValuesHaveNoSlopeInL1) {
  const Matrix p = from<f32>({3}, {1, 2, 3}), t = from<f32>({3}, {1, 3, 2});
  EXPECT_EQ(slope(p, [&](const Matrix& m) { return l1(m, t, Reduction::Sum); }),
            (std::vector<f32>{0, -1, 1}));
}

TEST_P(Losses, RowsOfLargeMeanNormalise) {
  const i64 rows = 1000;
  std::mt19937 rng(3);
  std::normal_distribution<f32> d(2000, 1);
  std::vector<f32> v(static_cast<size_t>(rows * 4));
  for (f32& x : v) x = d(rng);
  const Matrix y = layer_norm(from<f32>({rows, 4}, v), from<f32>({4}, {1, 1, 1, 1}),
                              from<f32>({4}, {0, 0, 0, 0}), 1e-8);
  for (f32 m : matrix::mean(y, -1).read<f32>()) EXPECT_NEAR(m, 0, 1e-3);
  for (f32 s : matrix::variance(y, -1).read<f32>()) EXPECT_NEAR(s, 1, 1e-3);
}

TEST_P(Losses, ConstantRowsGiveTheBias) {
  for (i64 d : {1, 3, 256, 300}) {
    const auto n = static_cast<size_t>(d);
    const std::vector<f32> bias = random_f32(4, n);
    std::vector<f32> v;
    for (f32 c : {0.0f, 1234.0f, 1e8f, -0.1f}) v.insert(v.end(), n, c);
    const std::vector<f32> y = layer_norm(from<f32>({4, d}, v), from<f32>({d}, random_f32(5, n)),
                                          from<f32>({d}, bias), 1e-5)
                                   .read<f32>();
    for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i], bias[i % n]) << d << " " << i;
  }
}

TEST_P(Losses, NormOfZerosHasSlopeZero) {
  const Matrix x = from<f32>({2, 3}, {0, 0, 0, 1, 2, 2});
  expect_near(slope(x, [](const Matrix& m) { return norm(m, -1); }),
              {0, 0, 0, 1 / 3.0f, 2 / 3.0f, 2 / 3.0f}, 1e-6f);
  EXPECT_EQ(slope(from<f32>({2}, {0, 0}), [](const Matrix& m) { return matrix::square(norm(m)); }),
            (std::vector<f32>{0, 0}));
  expect_near(slope(x, [](const Matrix& m) { return matrix::log_sum_exp(norm(m, 1), 0); }),
              {0, 0, 0, 0.317525f, 0.635050f, 0.635050f}, 1e-5f);
  EXPECT_EQ(norm(x, 1, true).shape(), (Shape{2, 1}));
  EXPECT_EQ(norm(x).shape(), Shape{});
}

TEST_P(Losses, TiesShareAndBroadcastsAddUp) {
  EXPECT_EQ(slope(from<f32>({2}, {1, 1}), [](const Matrix& m) { return matrix::max(m, 0); }),
            (std::vector<f32>{0.5f, 0.5f}));
  EXPECT_EQ(slope(from<f32>({1}, {3}), [](const Matrix& m) { return matrix::maximum(m, m); }),
            (std::vector<f32>{1}));
  const auto f = [&](const Matrix& z) {
    return matrix::sum(matrix::exp(z)) +
           matrix::sum(matrix::exp(z) - from<f32>({1000}, std::vector<f32>(1000)));
  };
  const Matrix z = from<f32>({}, {1});
  EXPECT_NEAR(f(z).read<f32>()[0], 2721.0, 0.1);
  EXPECT_NEAR(slope(z, f)[0], 2721.0, 0.1);
}

TEST_P(Losses, ActivationsFarOut) {
  const std::vector<f32> far = {-13.24f, -50, -1e4f, 20.625f, 1e4f, -kInf, kInf, -1e20f, 1e20f};
  const std::vector<f32> wanted = {0, 0, 0, 20.625f, 1e4f, 0, kInf, 0, 1e20f};
  const Matrix x = from<f32>({9}, far);
  const std::vector<f32> y = gelu(x).read<f32>();
  for (size_t i = 0; i < far.size(); ++i) {
    EXPECT_EQ(y[i], wanted[i]) << far[i];
    EXPECT_EQ(std::signbit(y[i]), far[i] < 0) << far[i];
  }
  const auto check = [&](const char* name, auto&& f) {
    const std::vector<f32> d = slope(x, f), v = f(x).template read<f32>();
    for (size_t i = 1; i < far.size(); ++i) {
      EXPECT_NEAR(d[i], far[i] > 0 ? 1 : 0, 1e-6) << name << " " << far[i];
      EXPECT_FALSE(std::isnan(v[i])) << name << " " << far[i];
    }
  };
  check("gelu", [](const Matrix& m) { return gelu(m); });
  check("gelu_erf", [](const Matrix& m) { return gelu_erf(m); });
  check("silu", [](const Matrix& m) { return silu(m); });
  check("mish", [](const Matrix& m) { return mish(m); });
  check("elu", [](const Matrix& m) { return elu(m, 1); });
  EXPECT_EQ(slope(from<f32>({3}, {-1, 0, 2}), [](const Matrix& m) { return relu(m); }),
            (std::vector<f32>{0, 0, 1}));
  EXPECT_TRUE(std::isnan(relu(from<f32>({1}, {NAN})).read<f32>()[0]));
}

// The lanes of a vector, its tail and one element alone.
TEST_P(Losses, ActivationsHaveTheSameBitsInEveryLane) {
  const std::vector<std::pair<const char*, std::function<Matrix(const Matrix&)>>> list = {
      {"gelu", [](const Matrix& m) { return gelu(m); }},
      {"gelu_erf", [](const Matrix& m) { return gelu_erf(m); }},
      {"silu", [](const Matrix& m) { return silu(m); }},
      {"mish", [](const Matrix& m) { return mish(m); }},
      {"softplus", [](const Matrix& m) { return matrix::log1p(matrix::exp(m)); }}};
  for (const auto& [name, f] : list) {
    for (const f32 x : {21.66f, -0.3f}) {
      const u32 alone = std::bit_cast<u32>(f(from<f32>({1}, {x})).read<f32>()[0]);
      for (i64 n = 2; n <= 40; n += stride(19)) {
        for (f32 y : f(from<f32>({n}, std::vector<f32>(static_cast<size_t>(n), x))).read<f32>()) {
          ASSERT_EQ(std::bit_cast<u32>(y), alone) << name << " " << x << " " << n;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, Losses, testing::Values("cpu", "lavapipe"),
                         [](const auto& tested) { return std::string(tested.param); });

// Takes 9 GB and a minute: only with OA_LARGE.
TEST(LargeLosses, RowsBeyondTwoToTheThirtyTwo) {
  if (!std::getenv("OA_LARGE")) GTEST_SKIP() << "OA_LARGE is not set";
  Engine e = Engine::open({.device = "cpu"});
  constexpr i64 kRows = 65539, kClasses = 65537;
  std::vector<f32> rows(kRows), classes(kClasses);
  std::vector<i32> targets(kRows);
  for (i64 i = 0; i < kRows; ++i) {
    rows[static_cast<size_t>(i)] = static_cast<f32>(i * 7 % 13);
    targets[static_cast<size_t>(i)] = static_cast<i32>(i * 31 % kClasses);
  }
  f64 sum = 0;
  for (i64 j = 0; j < kClasses; ++j) {
    classes[static_cast<size_t>(j)] = static_cast<f32>(j * 5 % 17) / 4;
    sum += std::exp(static_cast<f64>(classes[static_cast<size_t>(j)]));
  }
  // All numbers are exact in F16.
  const Matrix x = matrix::cast(
      Matrix::from_f32(e, {kRows, 1}, rows) + Matrix::from_f32(e, {1, kClasses}, classes),
      DType::F16);
  e.flush();
  const auto y =
      cross_entropy(x, Matrix::from_slice<i32>(e, {kRows}, targets), {.reduction = Reduction::None})
          .read<f32>();
  for (size_t i = 0; i < y.size(); ++i) {
    const f64 wanted = std::log(sum) - static_cast<f64>(classes[static_cast<size_t>(targets[i])]);
    ASSERT_NEAR(static_cast<f64>(y[i]), wanted, 1e-5) << i;
  }
}

TEST(LossClasses, BadOnesAreReportedWithRowAndValue) {
  Engine e = Engine::open({.device = "cpu"});
  const Matrix x = Matrix::from_f32(e, {3, 5}, std::vector<f32>(15));
  const Matrix t = Matrix::from_slice<i32>(e, {3}, std::vector<i32>{1, 2, -4});
  EXPECT_EQ(error_of([&] { cross_entropy(x, t, {.ignore_index = -1}).read<f32>(); }),
            "cross_entropy: index out of range at row 2, got -4, expected 0 to 4");
}

TEST(LossClasses, BadOnesAreNaNRowsWithoutTheCheck) {
  Engine e = Engine::open({.device = "cpu", .check_indices = false});
  const Matrix x = Matrix::from_f32(e, {3, 5}, std::vector<f32>(15));
  for (i32 bad : {-4, 5, std::numeric_limits<i32>::max(), std::numeric_limits<i32>::min()}) {
    const Matrix t = Matrix::from_slice<i32>(e, {3}, std::vector<i32>{1, 2, bad});
    const std::vector<f32> y = cross_entropy(x, t, {.reduction = Reduction::None}).read<f32>();
    EXPECT_NEAR(y[0], std::log(5.0), 1e-6);
    EXPECT_TRUE(std::isnan(y[2]));
    ml::GradientTape tape;
    tape.watch(x);
    tape.backward(cross_entropy(x, t));
    const std::vector<f32> d = tape.gradient(x)->read<f32>();
    EXPECT_NEAR(d[0], 0.2 / 3, 1e-6);
    for (size_t i = 10; i < 15; ++i) EXPECT_TRUE(std::isnan(d[i]));
  }
}

TEST(LossRefusals, HaveExactText) {
  Engine e = Engine::open({.device = "cpu"});
  const Matrix x = Matrix::from_f32(e, {3, 2}, std::vector<f32>(6));
  const Matrix w = Matrix::from_f32(e, {2}, std::vector<f32>(2));
  const Matrix t = Matrix::from_slice<i32>(e, {3}, std::vector<i32>(3));
  const Matrix mask = Matrix::from_f32(e, {3}, std::vector<f32>(3));
  EXPECT_EQ(error_of([&] { cross_entropy(x, t, {.label_smoothing = 1.5}); }),
            "cross_entropy: bad label smoothing, got 1.5, expected 0 to 1");
  EXPECT_EQ(error_of([&] { cross_entropy(x, t, {.ignore_index = 1ll << 40}); }),
            "cross_entropy: bad ignore index, got 1099511627776, expected a 32-bit number");
  EXPECT_EQ(error_of([&] { cross_entropy_masked(x, t, mask, 0); }),
            "cross_entropy_masked: bad valid count, got 0, expected 1 to 3");
  EXPECT_EQ(error_of([&] { cross_entropy_masked(x, t, mask, 4); }),
            "cross_entropy_masked: bad valid count, got 4, expected 1 to 3");
  EXPECT_EQ(error_of([&] { cross_entropy(x, {}); }),
            "cross_entropy: operand 1 is empty, expected a value");
  EXPECT_EQ(error_of([&] { layer_norm(x, w, w, 0); }),
            "layer_norm: bad epsilon, got 0, expected a finite number above 0");
  EXPECT_EQ(error_of([&] { rms_norm(x, w, NAN); }),
            "rms_norm: bad epsilon, got nan, expected a finite number above 0");
  EXPECT_EQ(error_of([&] { norm(x, 2); }).substr(0, 5), "norm:");
}

}  // namespace
}  // namespace oa::test
