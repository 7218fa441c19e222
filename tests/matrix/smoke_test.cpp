// The whole way from Matrix operations to numbers, on every device that is here.
#include <gtest/gtest.h>

#include <cmath>

#include "oa/device/select.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/matmul.h"
#include "oa/matrix/movement.h"
#include "oa/matrix/reduce.h"
#include "oa/matrix/transcendental.h"
#include "tests/support/vulkan_name.h"

namespace oa {
namespace {

class Smoke : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    try {
      engine_.emplace(Engine::open({.device = test::device_under_test(GetParam())}));
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::NoSuitableDevice) throw;
      GTEST_SKIP() << e.what();
    }
  }
  std::optional<Engine> engine_;
};

TEST_P(Smoke, FusesElementwiseWorkIntoOneKernel) {
  std::vector<f32> v(37 * 53);
  for (size_t i = 0; i < v.size(); ++i) v[i] = std::sin(0.37f * static_cast<f32>(i)) * 3;
  const Matrix x = Matrix::from_f32(*engine_, {37, 53}, v);
  const auto before = engine_->counters().dispatches;
  const std::vector<f32> y = (x * x + matrix::tanh(x)).read_f32();
  EXPECT_EQ(engine_->counters().dispatches, before + 1);
  for (size_t i = 0; i < v.size(); ++i) {
    const f64 expected = static_cast<f64>(v[i]) * v[i] + std::tanh(static_cast<f64>(v[i]));
    ASSERT_NEAR(y[i], expected, 1e-5);
  }
}

TEST_P(Smoke, SoftmaxRowsAndColumns) {
  std::vector<f32> v(37 * 53);
  for (size_t i = 0; i < v.size(); ++i) v[i] = std::sin(0.37f * static_cast<f32>(i)) * 3;
  const Matrix x = Matrix::from_f32(*engine_, {37, 53}, v);
  const std::vector<f32> rows = matrix::softmax(x).read_f32();
  const std::vector<f32> columns = matrix::softmax(x, 0).read_f32();
  for (size_t r = 0; r < 37; ++r) {
    f64 total = 0;
    for (size_t c = 0; c < 53; ++c) total += std::exp(static_cast<f64>(v[r * 53 + c]));
    for (size_t c = 0; c < 53; ++c) {
      ASSERT_NEAR(rows[r * 53 + c], std::exp(static_cast<f64>(v[r * 53 + c])) / total, 1e-6);
    }
  }
  for (size_t c = 0; c < 53; ++c) {
    f64 total = 0;
    for (size_t r = 0; r < 37; ++r) total += std::exp(static_cast<f64>(v[r * 53 + c]));
    for (size_t r = 0; r < 37; ++r) {
      ASSERT_NEAR(columns[r * 53 + c], std::exp(static_cast<f64>(v[r * 53 + c])) / total, 1e-6);
    }
  }
}

TEST_P(Smoke, ProductsOfEveryForm) {
  constexpr i64 m = 13, k = 29, n = 37;
  std::vector<f32> a(m * k), b(k * n);
  for (size_t i = 0; i < a.size(); ++i) a[i] = std::sin(0.31f * static_cast<f32>(i));
  for (size_t i = 0; i < b.size(); ++i) b[i] = std::cos(0.17f * static_cast<f32>(i));
  const Matrix x = Matrix::from_f32(*engine_, {m, k}, a), y = Matrix::from_f32(*engine_, {k, n}, b);
  const std::vector<f32> products[] = {
      matrix::mat_mul(x, y).read_f32(), matrix::mat_mul_nt(x, y.transpose()).read_f32(),
      matrix::mat_mul_tn(matrix::copy(x.transpose()), y).read_f32()};
  for (const auto& c : products) {
    for (i64 i = 0; i < m; ++i) {
      for (i64 j = 0; j < n; ++j) {
        f64 sum = 0;
        for (i64 l = 0; l < k; ++l) sum += static_cast<f64>(a[i * k + l]) * b[l * n + j];
        ASSERT_NEAR(c[static_cast<size_t>(i * n + j)], sum, 1e-5);
      }
    }
  }
}

TEST_P(Smoke, AssignsInPlaceAndReplays) {
  const std::vector<f32> v = {1, 2, 3};
  const Matrix x = Matrix::from_f32(*engine_, {3}, v);
  const Matrix old = x + 0.0;
  x.assign(x * 2.0);
  EXPECT_EQ(x.read_f32(), (std::vector<f32>{2, 4, 6}));
  EXPECT_EQ(old.read_f32(), v);
  Matrix total;
  const ExecutionPlan plan = engine_->capture([&] {
    x.assign(x + 1.0);
    total = matrix::sum(x);
    return std::vector<Matrix>{total};
  });
  for (int i = 1; i <= 3; ++i) {
    engine_->submit(plan);
    EXPECT_EQ(total.read_f32()[0], 12 + 3 * i);
  }
  EXPECT_EQ(x.read_f32(), (std::vector<f32>{5, 7, 9}));
}

TEST_P(Smoke, ChangingANumberCompilesNothing) {
  const Matrix x = Matrix::from_f32(*engine_, {3}, std::vector<f32>{1, 2, 3});
  (x * 2.0).read_f32();
  const auto compiled = engine_->counters().programs_compiled;
  EXPECT_EQ((x * 3.0).read_f32()[2], 9);
  EXPECT_EQ(engine_->counters().programs_compiled, compiled);
}

INSTANTIATE_TEST_SUITE_P(Devices, Smoke,
                         testing::Values("cpu", "lavapipe", "checked", "checked_gpu"));

}  // namespace
}  // namespace oa
