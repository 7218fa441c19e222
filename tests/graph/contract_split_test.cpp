// Products of f32 by 16-bit parts: their error against double precision, rows of any scale, numbers
// that the parts cannot stand for, and what other devices do with the names.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <random>

#include "oa/graph/evidence.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/matmul.h"
#include "oa/matrix/movement.h"
#include "oa/matrix/transcendental.h"
#include "tests/support/vulkan_name.h"

namespace oa {
namespace {

struct Numbers {
  i64 rows = 0, columns = 0;
  std::vector<f32> values;
  f32& at(i64 i, i64 j) { return values[static_cast<size_t>(i * columns + j)]; }
  f32 at(i64 i, i64 j) const { return values[static_cast<size_t>(i * columns + j)]; }
  Numbers transposed() const {
    Numbers t{columns, rows, std::vector<f32>(values.size())};
    for (i64 i = 0; i < rows; ++i) {
      for (i64 j = 0; j < columns; ++j) t.at(j, i) = at(i, j);
    }
    return t;
  }
  Numbers scaled(f32 factor) const {
    Numbers s = *this;
    for (f32& x : s.values) x *= factor;
    return s;
  }
  Matrix on(const Engine& e) const { return Matrix::from_f32(e, {rows, columns}, values); }
};

Numbers normal(i64 rows, i64 columns, u32 seed) {
  std::mt19937 random(seed);
  std::normal_distribution<f32> normal;
  Numbers n{rows, columns, std::vector<f32>(static_cast<size_t>(rows * columns))};
  for (f32& x : n.values) x = normal(random);
  return n;
}

// The largest error of an element, in units of the sum of its products' magnitudes.
f64 worst_error(const std::vector<f32>& got, const Numbers& a, const Numbers& b) {
  f64 worst = 0;
  for (i64 i = 0; i < a.rows; ++i) {
    for (i64 j = 0; j < b.columns; ++j) {
      f64 sum = 0, size = 0;
      for (i64 k = 0; k < a.columns; ++k) {
        const f64 term = static_cast<f64>(a.at(i, k)) * b.at(k, j);
        sum += term;
        size += std::abs(term);
      }
      const f64 error = std::abs(got[static_cast<size_t>(i * b.columns + j)] - sum);
      if (size > 0) worst = std::max(worst, error / size);
      if (size == 0 || std::isnan(error)) worst = error == 0 ? worst : 1;
    }
  }
  return worst;
}

// 22 bits of both operands, truncated sums of 64, sums of those in f32.
f64 bound(Precision p, i64 k) {
  const f64 parts = p == Precision::F32x3 ? 0x1p-21 : 0x1p-23;
  return parts + 0x1p-22 + 0x1p-24 * std::ceil(static_cast<f64>(k) / 64);
}

class SplitProduct : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    try {
      engine_.emplace(Engine::open({.device = test::device_under_test(GetParam())}));
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
    // Graphics cards split large products only.
    large_ = engine_->device_info().kind != device::DeviceKind::Cpu && engine_->target().fragments;
  }
  i64 size(i64 small) const { return large_ ? small * 16 : small; }
  std::optional<Engine> engine_;
  bool large_ = false;
};

TEST_P(SplitProduct, StaysWithinItsBoundInEveryForm) {
  const i64 m = large_ ? 521 : 70, k = large_ ? 1030 : 150, n = large_ ? 700 : 40;
  const Numbers a = normal(m, k, 1), b = normal(k, n, 2);
  const Matrix x = a.on(*engine_), y = b.on(*engine_);
  const Matrix xt = a.transposed().on(*engine_), yt = b.transposed().on(*engine_);
  for (Precision p : {Precision::F32x3, Precision::F32x6}) {
    SCOPED_TRACE(token(p));
    EXPECT_LE(worst_error(matrix::mat_mul(x, y, p).read_f32(), a, b), bound(p, k));
    EXPECT_LE(worst_error(matrix::mat_mul_tn(xt, y, p).read_f32(), a, b), bound(p, k));
    EXPECT_LE(worst_error(matrix::mat_mul_nt(x, yt, p).read_f32(), a, b), bound(p, k));
    EXPECT_LE(worst_error(matrix::mat_mul(xt.transpose(), yt.transpose(), p).read_f32(), a, b),
              bound(p, k));
  }
}

TEST_P(SplitProduct, RowsAndColumnsOfAnyScale) {
  const i64 m = size(40), k = size(40), n = size(40);
  Numbers a = normal(m, k, 3), b = normal(k, n, 4);
  for (i64 i = 0; i < m; ++i) {
    for (i64 l = 0; l < k; ++l) a.at(i, l) *= std::ldexp(1.0f, static_cast<int>(i % 13) * 10 - 60);
  }
  for (i64 j = 0; j < n; ++j) {
    for (i64 l = 0; l < k; ++l) b.at(l, j) *= std::ldexp(1.0f, static_cast<int>(j % 7) * 10 - 30);
  }
  for (i64 l = 0; l < k; ++l) a.at(5, l) = b.at(l, 9) = 0;  // a row and a column of zeros
  for (Precision p : {Precision::F32x3, Precision::F32x6}) {
    SCOPED_TRACE(token(p));
    const Matrix c = matrix::mat_mul(a.on(*engine_), b.on(*engine_), p);
    EXPECT_LE(worst_error(c.read_f32(), a, b), bound(p, k));
  }
}

// Elements of a row that are far below its largest one, and meet the largest of a column.
TEST_P(SplitProduct, ExponentsThatOpposeAlongTheSum) {
  const i64 m = size(40), k = size(40), n = size(40);
  for (const int span : {20, 40, 60}) {
    SCOPED_TRACE(span);
    Numbers a = normal(m, k, 5), b = normal(k, n, 6);
    for (i64 l = 0; l < k; ++l) {
      const int e = static_cast<int>(l % (span + 1)) - span / 2;
      for (i64 i = 0; i < m; ++i) a.at(i, l) *= std::ldexp(1.0f, e);
      for (i64 j = 0; j < n; ++j) b.at(l, j) *= std::ldexp(1.0f, -e);
    }
    const Matrix x = a.on(*engine_), y = b.on(*engine_);
    for (Precision p : {Precision::F32x3, Precision::F32x6}) {
      SCOPED_TRACE(token(p));
      EXPECT_LE(worst_error(matrix::mat_mul(x, y, p).read_f32(), a, b), bound(p, k));
    }
    if (span < 40) continue;
    // Halves cannot do this at all: the plain kernel has done it.
    EXPECT_EQ(matrix::mat_mul(x, y, Precision::F32x3).read_f32(), matrix::mat_mul(x, y).read_f32());
  }
}

// One element does not make a whole row small: only its own products must count.
TEST_P(SplitProduct, OneSmallElementOfARowIsHarmless) {
  const i64 m = size(40), k = size(40), n = size(40);
  Numbers a = normal(m, k, 7), b = normal(k, n, 8);
  for (i64 i = 0; i < m; ++i) a.at(i, i % k) = 0x1p-30f;
  const Matrix c = matrix::mat_mul(a.on(*engine_), b.on(*engine_), Precision::F32x3);
  EXPECT_LE(worst_error(c.read_f32(), a, b), bound(Precision::F32x3, k));
}

TEST_P(SplitProduct, InfinitiesAndNaNAreThoseOfThePlainProduct) {
  const i64 m = size(40), k = size(40), n = size(40);
  constexpr f32 inf = std::numeric_limits<f32>::infinity();
  for (const f32 special : {inf, -inf, std::numeric_limits<f32>::quiet_NaN()}) {
    Numbers a = normal(m, k, 9), b = normal(k, n, 10);
    b.at(3, 17) = special;
    const Matrix x = a.on(*engine_), y = b.on(*engine_);
    const std::vector<f32> plain = matrix::mat_mul(x, y).read_f32();
    for (Precision p : {Precision::F32x3, Precision::F32x6}) {
      const std::vector<f32> split = matrix::mat_mul(x, y, p).read_f32();
      for (size_t i = 0; i < plain.size(); ++i) {
        if (std::isnan(plain[i])) {
          ASSERT_TRUE(std::isnan(split[i])) << i;
        } else {
          ASSERT_EQ(split[i], plain[i]) << i;
        }
      }
    }
  }
}

TEST_P(SplitProduct, NumbersNearTheEndsOfTheRange) {
  const i64 m = size(40), k = size(40), n = size(40);
  Numbers a = normal(m, k, 11), b = normal(k, n, 12);
  for (i64 i = 0; i < m; ++i) {
    for (i64 l = 0; l < k; ++l) a.at(i, l) *= i % 2 ? 0x1p-80f : 0x1p120f;
  }
  for (f32& x : b.values) x *= 0x1p-20f;
  for (Precision p : {Precision::F32x3, Precision::F32x6}) {
    SCOPED_TRACE(token(p));
    const Matrix c = matrix::mat_mul(a.on(*engine_), b.on(*engine_), p);
    EXPECT_LE(worst_error(c.read_f32(), a, b), bound(p, k));
  }
}

TEST_P(SplitProduct, BatchesAndAnEpilogue) {
  const i64 batch = 2, m = size(35), k = size(36), n = size(37);
  const Numbers a = normal(batch * m, k, 13), b = normal(batch * k, n, 14), r = normal(1, n, 15);
  const Matrix x = Matrix::from_f32(*engine_, {batch, m, k}, a.values);
  const Matrix y = Matrix::from_f32(*engine_, {batch, k, n}, b.values);
  const Matrix bias = r.on(*engine_);
  const Matrix c = matrix::mat_mul(x, y, Precision::F32x3) * 2.0f + bias;
  const std::vector<f32> got = c.read_f32();
  const std::vector<f32> plain = (matrix::mat_mul(x, y) * 2.0f + bias).read_f32();
  ASSERT_EQ(got.size(), plain.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], plain[i], 3e-5 * std::sqrt(static_cast<f64>(k))) << i;
  }
}

TEST_P(SplitProduct, AMatrixForTheWholeBatch) {
  const i64 batch = 3, m = size(20), k = size(40), n = size(40);
  const Numbers a = normal(batch * m, k, 16), b = normal(k, n, 17);
  const Matrix x = Matrix::from_f32(*engine_, {batch, m, k}, a.values);
  const Matrix c = matrix::mat_mul(x, b.on(*engine_), Precision::F32x3);
  EXPECT_LE(worst_error(c.read_f32(), a, b), bound(Precision::F32x3, k));
}

// Few results of long sums, which are cut into slices; the slices of k do not divide it.
TEST_P(SplitProduct, LongSumsInSlices) {
  const i64 m = large_ ? 384 : 40, k = large_ ? 9001 : 700, n = large_ ? 260 : 36;
  const Numbers a = normal(m, k, 18), b = normal(k, n, 19);
  const Matrix x = a.on(*engine_), y = b.on(*engine_), yt = b.transposed().on(*engine_);
  for (Precision p : {Precision::F32, Precision::F32x3, Precision::F32x6}) {
    SCOPED_TRACE(token(p));
    const f64 most = p == Precision::F32 ? 1e-6 : bound(p, k);
    EXPECT_LE(worst_error(matrix::mat_mul(x, y, p).read_f32(), a, b), most);
    EXPECT_LE(worst_error((matrix::mat_mul_nt(x, yt, p) * 0.5f).read_f32(), a, b.scaled(0.5f)),
              most);
  }
}

// A matrix that several products read, by its rows and by its columns, is split once for them; each
// gets what it computes alone. Rows and columns fill no tile.
TEST_P(SplitProduct, ProductsShareWhatIsSplit) {
  const i64 m = size(48) + 5, k = size(44) + 4, n = size(40);
  const Matrix x = normal(m, k, 23).on(*engine_), z = normal(m, n, 24).on(*engine_);
  const Matrix w = normal(n, k, 25).on(*engine_), v = normal(n, k, 26).on(*engine_);
  for (Precision p : {Precision::F32x3, Precision::F32x6}) {
    SCOPED_TRACE(token(p));
    const std::vector<std::function<Matrix()>> products = {
        [&] { return matrix::mat_mul_nt(x, w, p); }, [&] { return matrix::mat_mul_nt(x, v, p); },
        [&] { return matrix::mat_mul(z, w, p); }, [&] { return matrix::mat_mul_tn(z, x, p); },
        [&] { return matrix::mat_mul_tn(x, x, p); }};
    std::vector<std::vector<f32>> alone;
    for (const auto& product : products) alone.push_back(product().read_f32());
    const ExecutionPlan plan = engine_->capture([&] {
      std::vector<Matrix> all;
      for (const auto& product : products) all.push_back(product());
      return all;
    });
    engine_->submit(plan);
    for (size_t i = 0; i < products.size(); ++i) EXPECT_EQ(plan.results()[i].read_f32(), alone[i]);
    if (!engine_->target().fragments) continue;
    u32 passes = 0;
    for (const auto& d : plan.evidence().dispatches) passes += d.label == "split parts";
    EXPECT_EQ(passes, 4u);  // x, z, w, v
  }
}

// What follows a product may be a kernel of its own; columns that fill packs of four, and not.
TEST_P(SplitProduct, LongEpilogues) {
  for (const i64 n : {i64{44}, i64{41}}) {
    const i64 m = large_ ? 1100 : 40, k = 64, columns = large_ ? n * 24 : n;
    const Numbers a = normal(m, k, 20), b = normal(k, columns, 21), r = normal(1, columns, 22);
    const Matrix bias = r.on(*engine_);
    for (DType dtype : {DType::F32, DType::F16}) {
      const Matrix x = a.on(*engine_).to(dtype), y = b.on(*engine_).to(dtype);
      engine_->wait();
      for (Precision p : {Precision::F32, Precision::F32x3}) {
        SCOPED_TRACE(fmt::format("{} columns, {} {}", columns, token(dtype), token(p)));
        const Matrix c = matrix::mat_mul(x, y, p).to(DType::F32);
        const std::vector<f32> got = matrix::tanh(c * 0.125 + bias).read_f32();
        ASSERT_EQ(got.size(), static_cast<size_t>(m * columns));
        for (i64 i = 0; i < m; i += 7) {
          for (i64 j = 0; j < columns; ++j) {
            f64 sum = 0;
            for (i64 l = 0; l < k; ++l) sum += static_cast<f64>(a.at(i, l)) * b.at(l, j);
            const f64 expected = std::tanh(sum * 0.125 + r.at(0, j));
            ASSERT_NEAR(got[static_cast<size_t>(i * columns + j)], expected,
                        dtype == DType::F32 ? 3e-6 : 2e-2)
                << i << ", " << j;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, SplitProduct, testing::Values("cpu", "checked_gpu", "lavapipe"));

TEST(Precision, TheCpuComputesF32ForEveryName) {
  Engine e = Engine::open({.device = "cpu"});
  const Matrix x = normal(50, 60, 1).on(e), y = normal(60, 70, 2).on(e);
  const std::vector<f32> plain = matrix::mat_mul(x, y, Precision::F32).read_f32();
  EXPECT_EQ(matrix::mat_mul(x, y, Precision::F32x3).read_f32(), plain);
  EXPECT_EQ(matrix::mat_mul(x, y, Precision::F32x6).read_f32(), plain);
  EXPECT_EQ(matrix::mat_mul(x, y).read_f32(), plain);
}

TEST(Precision, OfTheEngineUnlessTheCallNamesOne) {
  EngineOptions options{.device = "checked_gpu"};
  options.precision = Precision::F32x3;
  Engine split = Engine::open(options), plain = Engine::open({.device = "checked_gpu"});
  const Numbers a = normal(40, 64, 3), b = normal(64, 40, 4);
  const auto product = [&](Engine& e, Precision p) {
    return matrix::mat_mul(a.on(e), b.on(e), p).read_f32();
  };
  const std::vector<f32> f32x3 = product(plain, Precision::F32x3);
  const std::vector<f32> f32 = product(plain, Precision::F32);
  EXPECT_NE(f32x3, f32);
  EXPECT_EQ(product(split, Precision::Engine), f32x3);
  EXPECT_EQ(product(split, Precision::F32), f32);
  EXPECT_EQ(product(plain, Precision::Engine), f32);
}

TEST(Precision, IsPartOfAProgramsStructure) {
  Engine e = Engine::open({.device = "cpu"});
  const Matrix x = normal(4, 4, 1).on(e), y = normal(4, 4, 2).on(e);
  const auto compiled = [&](Precision p) {
    const u64 before = e.counters().programs_compiled;
    matrix::mat_mul(x, y, p).read_f32();
    return e.counters().programs_compiled - before;
  };
  EXPECT_EQ(compiled(Precision::F32), 1u);
  EXPECT_EQ(compiled(Precision::F32x3), 1u);
  EXPECT_EQ(compiled(Precision::Engine), 0u);
  // Other types have no such choice.
  const Matrix h = x.to(DType::F16), g = y.to(DType::F16);
  e.wait();
  const u64 before = e.counters().programs_compiled;
  e.checkpoint();
  Matrix first = matrix::mat_mul(h, g, Precision::F32x3);
  e.wait();
  Matrix second = matrix::mat_mul(h, g);
  e.wait();
  EXPECT_EQ(e.counters().programs_compiled - before, 1u);
}

}  // namespace
}  // namespace oa
