// Sums over the outer axes, whose partial sums come from slices of rows, with values that the same
// kernels store on the way; and copies whose gangs run along short axes.
#include <gtest/gtest.h>

#include <cmath>

#include "oa/matrix/elementwise.h"
#include "oa/matrix/matmul.h"
#include "oa/matrix/movement.h"
#include "oa/matrix/reduce.h"
#include "oa/matrix/transcendental.h"

namespace oa {
namespace {

std::vector<f32> thirds(i64 n) {
  std::vector<f32> v(static_cast<size_t>(n));
  u32 s = 12345;
  for (f32& x : v) {
    s = s * 1664525u + 1013904223u;
    x = static_cast<f32>(static_cast<i32>(s >> 20) - 2048) / 3000;
  }
  return v;
}

class ColumnSums : public testing::TestWithParam<const char*> {
 protected:
  Engine engine_ = Engine::open({.device = GetParam()});
};

TEST_P(ColumnSums, OfRowsInSlices) {
  // Around the length that is cut, slices that do not divide it, columns that fill no gang.
  for (const auto& [rows, columns] : {std::pair<i64, i64>{511, 16},
                                      {512, 16},
                                      {513, 5},
                                      {769, 48},
                                      {1024, 64},
                                      {1500, 33},
                                      {530, 130}}) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, columns));
    const std::vector<f32> x = thirds(rows * columns);
    const Matrix m = Matrix::from_f32(engine_, {rows, columns}, x);
    const std::vector<f32> sums = matrix::sum(m, 0).read_f32();
    const std::vector<f32> peaks = matrix::max(m * 2.0, 0).read_f32();
    const std::vector<i32> places = matrix::argmax(m, 0).read<i32>();
    for (i64 j = 0; j < columns; ++j) {
      f64 sum = 0;
      i64 best = 0;
      for (i64 i = 0; i < rows; ++i) {
        sum += x[static_cast<size_t>(i * columns + j)];
        if (x[static_cast<size_t>(i * columns + j)] > x[static_cast<size_t>(best * columns + j)])
          best = i;
      }
      const auto at = static_cast<size_t>(j);
      ASSERT_NEAR(sums[at], sum, 1e-4) << j;
      ASSERT_EQ(peaks[at], 2 * x[static_cast<size_t>(best * columns + j)]) << j;
      ASSERT_EQ(places[at], best) << j;
    }
  }
}

// A value that is wanted too, and one that needs the sum.
TEST_P(ColumnSums, StoreWhatTheyRead) {
  const i64 rows = 700, columns = 20;
  const std::vector<f32> x = thirds(rows * columns);
  const Matrix m = Matrix::from_f32(engine_, {rows, columns}, x);
  const Matrix y = m * 2.0 + 1.0;
  const Matrix total = matrix::sum(y, 0);
  const Matrix centred = y - total * (1.0 / static_cast<f64>(rows));
  const std::vector<f32> got = y.read_f32(), sums = total.read_f32(), rest = centred.read_f32();
  for (i64 j = 0; j < columns; ++j) {
    f64 sum = 0;
    for (i64 i = 0; i < rows; ++i) sum += 2 * f64{x[static_cast<size_t>(i * columns + j)]} + 1;
    ASSERT_NEAR(sums[static_cast<size_t>(j)], sum, 1e-3);
    for (i64 i = 0; i < rows; ++i) {
      const auto at = static_cast<size_t>(i * columns + j);
      ASSERT_EQ(got[at], 2 * x[at] + 1);
      ASSERT_NEAR(rest[at], got[at] - sum / static_cast<f64>(rows), 1e-5);
    }
  }
  // The whole of a few long rows, which lanes share.
  const i64 length = 33000;
  const std::vector<f32> z = thirds(2 * length);
  const Matrix wide = Matrix::from_f32(engine_, {2, length}, z) * 2.0;
  const std::vector<f32> pair = matrix::sum(wide, 1).read_f32(), doubled = wide.read_f32();
  for (i64 r = 0; r < 2; ++r) {
    f64 sum = 0;
    for (i64 i = 0; i < length; ++i) {
      const auto at = static_cast<size_t>(r * length + i);
      ASSERT_EQ(doubled[at], 2 * z[at]);
      sum += doubled[at];
    }
    ASSERT_NEAR(pair[static_cast<size_t>(r)], sum, 1e-2);
  }
}

TEST_P(ColumnSums, CopiesAlongShortAxes) {
  for (i64 last : {1, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 100}) {
    const i64 a = 3, b = 5, c = 7;
    const std::vector<f32> x = thirds(a * b * c * last);
    const Matrix m = Matrix::from_f32(engine_, {a, b, c, last}, x);
    const std::vector<f32> got = (m.transpose(1, 2) + 1.0).read_f32();
    const std::vector<f32> padded = matrix::pad(m, 3, 2, 3).read_f32();
    for (i64 i = 0; i < a * b * c * last; ++i) {
      const i64 d = i % last, z = i / last % c, y = i / last / c % b, w = i / last / c / b;
      ASSERT_EQ(got[static_cast<size_t>(((w * c + z) * b + y) * last + d)],
                x[static_cast<size_t>(i)] + 1)
          << last << " " << i;
    }
    for (i64 i = 0; i < a * b * c * (last + 5); ++i) {
      const i64 d = i % (last + 5) - 2, row = i / (last + 5);
      ASSERT_EQ(padded[static_cast<size_t>(i)],
                d < 0 || d >= last ? 0 : x[static_cast<size_t>(row * last + d)])
          << last << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, ColumnSums, testing::Values("cpu", "checked"));

TEST(ColumnSumThreads, ChangeNoBit) {
  const std::vector<f32> x = thirds(3000 * 40);
  std::vector<f32> first;
  for (u32 threads : {1u, 2u, 3u, 8u}) {
    EngineOptions options{.device = "cpu"};
    options.device_options.threads = threads;
    Engine e = Engine::open(options);
    const Matrix m = Matrix::from_f32(e, {3000, 40}, x);
    const std::vector<f32> sums = matrix::sum(matrix::tanh(m), 0).read_f32();
    if (first.empty()) first = sums;
    EXPECT_EQ(sums, first) << threads;
  }
}

}  // namespace
}  // namespace oa
