// Products of every form and size against their definition in double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "oa/matrix/elementwise.h"
#include "oa/matrix/matmul.h"
#include "oa/matrix/movement.h"
#include "oa/matrix/transcendental.h"
#include "tests/support/vulkan_name.h"

namespace oa {
namespace {

std::vector<f32> numbers(i64 n, u32 seed) {
  std::vector<f32> v(static_cast<size_t>(n));
  u32 s = seed * 2654435761u + 1;
  for (f32& x : v) {
    s = s * 1664525u + 1013904223u;
    x = static_cast<f32>(static_cast<i32>(s >> 8) - (1 << 23)) * 0x1p-23f;
  }
  return v;
}

std::vector<f64> product(const std::vector<f32>& a, const std::vector<f32>& b, i64 m, i64 k,
                         i64 n) {
  std::vector<f64> c(static_cast<size_t>(m * n));
  for (i64 i = 0; i < m; ++i) {
    for (i64 l = 0; l < k; ++l) {
      const f64 x = a[static_cast<size_t>(i * k + l)];
      for (i64 j = 0; j < n; ++j)
        c[static_cast<size_t>(i * n + j)] += x * b[static_cast<size_t>(l * n + j)];
    }
  }
  return c;
}

std::vector<f32> transposed(const std::vector<f32>& a, i64 rows, i64 columns) {
  std::vector<f32> t(a.size());
  for (i64 i = 0; i < rows; ++i) {
    for (i64 j = 0; j < columns; ++j)
      t[static_cast<size_t>(j * rows + i)] = a[static_cast<size_t>(i * columns + j)];
  }
  return t;
}

void expect_near(const std::vector<f32>& got, const std::vector<f64>& expected, i64 k) {
  ASSERT_EQ(got.size(), expected.size());
  const f64 bound = 1e-6 * std::sqrt(static_cast<f64>(k) + 1) * 4;
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], bound) << "at " << i;
}

struct Size {
  i64 m, k, n;
};

TEST(Contract, EveryFormAtOddSizes) {
  Engine e = Engine::open({.device = "cpu"});
  const Size sizes[] = {{1, 1, 1},       {1, 300, 70},   {300, 70, 1},   {2, 3, 5},
                        {13, 29, 37},    {16, 16, 16},   {17, 64, 33},   {31, 100, 65},
                        {64, 1, 64},     {97, 89, 101},  {128, 257, 48}, {300, 33, 20},
                        {257, 300, 130}, {512, 600, 96}, {32, 1024, 96}};
  for (const auto& [m, k, n] : sizes) {
    SCOPED_TRACE(fmt::format("{} x {} x {}", m, k, n));
    const std::vector<f32> a = numbers(m * k, 1), b = numbers(k * n, 2);
    const std::vector<f64> expected = product(a, b, m, k, n);
    const Matrix x = Matrix::from_f32(e, {m, k}, a), y = Matrix::from_f32(e, {k, n}, b);
    const Matrix xt = Matrix::from_f32(e, {k, m}, transposed(a, m, k));
    const Matrix yt = Matrix::from_f32(e, {n, k}, transposed(b, k, n));
    expect_near(matrix::mat_mul(x, y).read_f32(), expected, k);
    expect_near(matrix::mat_mul_tn(xt, y).read_f32(), expected, k);
    expect_near(matrix::mat_mul_nt(x, yt).read_f32(), expected, k);
    expect_near(matrix::mat_mul(xt.transpose(), yt.transpose()).read_f32(), expected, k);
  }
}

TEST(Contract, AppliesAnEpilogueInTheSameKernel) {
  Engine e = Engine::open({.device = "cpu"});
  const i64 m = 50, k = 40, n = 70;
  const std::vector<f32> a = numbers(m * k, 3), b = numbers(n * k, 4), bias = numbers(n, 5),
                         residual = numbers(m * n, 6);
  const Matrix x = Matrix::from_f32(e, {m, k}, a), w = Matrix::from_f32(e, {n, k}, b),
               c = Matrix::from_f32(e, {n}, bias), r = Matrix::from_f32(e, {m, n}, residual);
  const Matrix y = r + matrix::tanh(matrix::mat_mul_nt(x, w) + c);
  const ExecutionPlan plan = e.capture(
      [&] { return std::vector<Matrix>{r + matrix::tanh(matrix::mat_mul_nt(x, w) + c)}; });
  EXPECT_LE(plan.dispatch_count(), 2u);  // the product, perhaps a pack of w
  std::vector<f64> expected = product(a, transposed(b, n, k), m, k, n);
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] = residual[i] + std::tanh(expected[i] + bias[i % static_cast<size_t>(n)]);
  }
  expect_near(y.read_f32(), expected, k);
}

TEST(Contract, BatchesBroadcast) {
  Engine e = Engine::open({.device = "cpu"});
  const i64 batch = 3, m = 7, k = 9, n = 11;
  const std::vector<f32> a = numbers(batch * m * k, 7), b = numbers(k * n, 8);
  const Matrix x = Matrix::from_f32(e, {batch, m, k}, a), y = Matrix::from_f32(e, {1, k, n}, b);
  const Matrix c = matrix::mat_mul(x, y);
  EXPECT_EQ(c.shape(), (Shape{batch, m, n}));
  expect_near(c.read_f32(), product(a, b, batch * m, k, n), k);
}

// Tiles in shared memory, whole and ragged, in the interpreter that finds races and bad accesses,
// and on the Vulkan device under test.
class ContractOnGpu : public testing::TestWithParam<const char*> {};

TEST_P(ContractOnGpu, TilesOfEveryForm) {
  std::optional<Engine> engine;
  try {
    engine.emplace(Engine::open({.device = test::device_under_test(GetParam())}));
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  Engine& e = *engine;
  // A software driver takes seconds to compile a tile.
  const bool slow = test::device_under_test(GetParam()) == "lavapipe";
  const std::vector<Size> sizes = slow
                                      ? std::vector<Size>{{33, 17, 35}}
                                      : std::vector<Size>{{32, 16, 32}, {33, 17, 35}, {48, 48, 40}};
  for (const auto& [m, k, n] : sizes) {
    for (DType dtype : {DType::F32, DType::F16, DType::BF16}) {
      if (slow && dtype != DType::F32) continue;
      SCOPED_TRACE(fmt::format("{} x {} x {} {}", m, k, n, token(dtype)));
      // Sums of few multiples of 1/8 are exact in every format of the operands and in f32.
      std::vector<f32> a = numbers(m * k, 11), b = numbers(k * n, 12);
      for (auto* v : {&a, &b}) {
        for (f32& x : *v) x = std::round(x * 8) / 8;
      }
      const std::vector<f64> exact = product(a, b, m, k, n);
      const auto stored = [&](i64 rows, i64 columns, const std::vector<f32>& values) {
        Matrix x = Matrix::from_f32(e, {rows, columns}, values).to(dtype);
        e.wait();
        return x;
      };
      const Matrix x = stored(m, k, a), y = stored(k, n, b);
      const Matrix xt = stored(k, m, transposed(a, m, k)), yt = stored(n, k, transposed(b, k, n));
      const auto check = [&](const Matrix& c) {
        const std::vector<f32> got = c.to(DType::F32).read_f32();
        const f64 unit = dtype == DType::F32 ? 0 : dtype == DType::F16 ? 0x1p-11 : 0x1p-8;
        ASSERT_EQ(got.size(), exact.size());
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_NEAR(got[i], exact[i], unit * std::abs(exact[i])) << "at " << i;
        }
      };
      check(matrix::mat_mul(x, y));
      check(matrix::mat_mul_tn(xt, y));
      check(matrix::mat_mul_nt(x, yt));
      check(matrix::mat_mul(xt.transpose(), yt.transpose()));
      check(matrix::mat_mul(x, y) * 2.0f * 0.5f);  // through an epilogue
    }
  }
}

TEST_P(ContractOnGpu, TilesOfBatches) {
  std::optional<Engine> engine;
  try {
    engine.emplace(Engine::open({.device = test::device_under_test(GetParam())}));
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const i64 batch = 2, m = 48, k = 24, n = 40;
  const std::vector<f32> a = numbers(batch * m * k, 13), b = numbers(batch * k * n, 14);
  const Matrix x = Matrix::from_f32(*engine, {batch, m, k}, a);
  const Matrix y = Matrix::from_f32(*engine, {batch, k, n}, b);
  std::vector<f64> expected;
  for (i64 i = 0; i < batch; ++i) {
    const auto part = [&](const std::vector<f32>& v, i64 size) {
      return std::vector<f32>(v.begin() + i * size, v.begin() + (i + 1) * size);
    };
    const auto c = product(part(a, m * k), part(b, k * n), m, k, n);
    expected.insert(expected.end(), c.begin(), c.end());
  }
  expect_near(matrix::mat_mul(x, y).read_f32(), expected, k);
}

INSTANTIATE_TEST_SUITE_P(Devices, ContractOnGpu, testing::Values("checked_gpu", "lavapipe"));

TEST(Contract, AnEmptyInnerExtentGivesZeros) {
  Engine e = Engine::open({.device = "cpu"});
  const Matrix x = Matrix::from_f32(e, {3, 0}, {}), y = Matrix::from_f32(e, {0, 4}, {});
  EXPECT_EQ(matrix::mat_mul(x, y).read_f32(), std::vector<f32>(12, 0.0f));
}

TEST(Contract, TheThreadCountChangesNoBit) {
  const std::vector<f32> a = numbers(200 * 300, 9), b = numbers(300 * 100, 10);
  std::vector<f32> first;
  for (u32 threads : {1u, 2u, 3u}) {
    EngineOptions options{.device = "cpu"};
    options.device_options.threads = threads;
    Engine e = Engine::open(options);
    const std::vector<f32> c =
        matrix::mat_mul(Matrix::from_f32(e, {200, 300}, a), Matrix::from_f32(e, {300, 100}, b))
            .read_f32();
    if (first.empty()) first = c;
    EXPECT_EQ(c, first);
  }
}

TEST(Contract, RefusesWhatDoesNotFit) {
  Engine e = Engine::open({.device = "cpu"});
  const Matrix x = Matrix::from_f32(e, {2, 3}, numbers(6, 1)),
               y = Matrix::from_f32(e, {2, 3}, numbers(6, 2));
  try {
    matrix::mat_mul(x, y);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "mat_mul: inner extents differ, got 3 and 2 in [2, 3] and [2, 3], expected equal ones");
  }
}

}  // namespace
}  // namespace oa
