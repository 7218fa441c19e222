// Batches of products, what is computed while operands are packed, and sums cut into slices, on the
// CPU and in the interpreter that finds races and reads of memory that nobody wrote.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "oa/matrix/elementwise.h"
#include "oa/matrix/matmul.h"
#include "oa/matrix/movement.h"
#include "oa/matrix/transcendental.h"

namespace oa {
namespace {

// Multiples of 1/8 in [-1, 1]: sums of products of a few thousand of them are exact in F32, so that
// every order of summation gives the same bits, and the expected ones.
std::vector<f32> eighths(i64 n, u32 seed) {
  std::vector<f32> v(static_cast<size_t>(n));
  u32 s = seed * 2654435761u + 1;
  for (f32& x : v) {
    s = s * 1664525u + 1013904223u;
    x = static_cast<f32>(static_cast<i32>(s >> 24) % 9) / 8 - (s >> 8 & 1 ? 1.0f : 0.0f);
  }
  return v;
}

// Numbers whose sums depend on the order.
std::vector<f32> thirds(i64 n, u32 seed) {
  std::vector<f32> v = eighths(n, seed);
  for (f32& x : v) x /= 3;
  return v;
}

struct Batch {
  i64 batch, m, k, n;
};

std::vector<f32> product(const std::vector<f32>& a, const std::vector<f32>& b, const Batch& s) {
  std::vector<f32> c(static_cast<size_t>(s.batch * s.m * s.n));
  for (i64 i = 0; i < s.batch * s.m; ++i) {
    for (i64 j = 0; j < s.n; ++j) {
      f64 sum = 0;
      for (i64 l = 0; l < s.k; ++l) {
        sum += f64{a[static_cast<size_t>(i * s.k + l)]} *
               b[static_cast<size_t>((i / s.m * s.k + l) * s.n + j)];
      }
      c[static_cast<size_t>(i * s.n + j)] = static_cast<f32>(sum);
    }
  }
  return c;
}

// [b, r, c] with its last two axes exchanged in memory.
std::vector<f32> swapped(const std::vector<f32>& x, i64 batch, i64 rows, i64 columns) {
  std::vector<f32> t(x.size());
  for (i64 b = 0; b < batch; ++b) {
    for (i64 i = 0; i < rows; ++i) {
      for (i64 j = 0; j < columns; ++j) {
        t[static_cast<size_t>((b * columns + j) * rows + i)] =
            x[static_cast<size_t>((b * rows + i) * columns + j)];
      }
    }
  }
  return t;
}

class BatchedContract : public testing::TestWithParam<const char*> {
 protected:
  bool checked() const { return std::string_view(GetParam()) == "checked"; }
  Engine engine_ = Engine::open({.device = GetParam()});
};

TEST_P(BatchedContract, EveryFormOfEveryType) {
  std::vector<Batch> sizes = {
      {3, 7, 13, 19}, {5, 16, 8, 16}, {2, 16, 16, 8}, {2, 33, 20, 35}, {2, 1, 41, 52}};
  if (!checked()) {
    for (const Batch& b : {Batch{1, 16, 16, 16},
                           {4, 1, 64, 40},
                           {4, 40, 64, 1},
                           {64, 16, 32, 16},
                           {6, 100, 20, 100},
                           {6, 100, 100, 20},
                           {3, 128, 32, 128},
                           {2, 5, 600, 3},
                           {2, 130, 68, 67},
                           {1, 15, 1100, 17},
                           {2, 40, 1030, 300}}) {
      sizes.push_back(b);
    }
  }
  for (const Batch& s : sizes) {
    for (DType t : {DType::F32, DType::F16, DType::BF16, DType::F64, DType::I32}) {
      SCOPED_TRACE(fmt::format("{} x {} x {} x {} {}", s.batch, s.m, s.k, s.n, token(t)));
      const bool integers = t == DType::I32;
      if (s.batch * s.m * s.k * s.n > 50000 && t != DType::F32) continue;
      std::vector<f32> a = eighths(s.batch * s.m * s.k, 1), b = eighths(s.batch * s.k * s.n, 2);
      for (auto* v : {&a, &b}) {
        for (f32& x : *v) x = integers ? std::round(x * 8) : x;
      }
      const std::vector<f32> expected = product(a, b, s);
      const auto stored = [&](const Shape& shape, const std::vector<f32>& values) {
        Matrix x = Matrix::from_f32(engine_, shape, values).to(t);
        engine_.wait();
        return x;
      };
      const Matrix x = stored({s.batch, s.m, s.k}, a), y = stored({s.batch, s.k, s.n}, b);
      const Matrix xt = stored({s.batch, s.k, s.m}, swapped(a, s.batch, s.m, s.k));
      const Matrix yt = stored({s.batch, s.n, s.k}, swapped(b, s.batch, s.k, s.n));
      const f32 unit = t == DType::F16 ? 0x1p-11f : t == DType::BF16 ? 0x1p-8f : 0;
      // The operands' temporaries end before the product runs, else they would be results too.
      const auto check = [&](const char* form, const std::function<Matrix()>& make) {
        const Matrix c = make();
        const std::vector<f32> got = c.to(DType::F32).read_f32();
        ASSERT_EQ(got.size(), expected.size());
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_NEAR(got[i], expected[i], unit * std::abs(expected[i])) << form << " at " << i;
        }
      };
      check("nn", [&] { return matrix::mat_mul(x, y); });
      check("tn", [&] { return matrix::mat_mul_tn(xt, y); });
      check("nt", [&] { return matrix::mat_mul_nt(x, yt); });
      check("tt", [&] { return matrix::mat_mul_tn(xt, yt.transpose()); });
      // Work in front of both operands, and behind.
      const f64 two = 2, half = 0.5;
      if (!integers) {
        check("scaled nn", [&] { return matrix::mat_mul(x * two, y * half); });
        check("scaled nt", [&] { return matrix::mat_mul_nt(x * two, yt * half); });
        check("scaled tn", [&] { return matrix::mat_mul_tn(xt * two, y * half); });
      }
      check("behind", [&] {
        return matrix::abs(-matrix::mat_mul(x, y)) - matrix::abs(matrix::mat_mul(x, y)) +
               matrix::mat_mul_nt(x, yt);
      });
    }
  }
}

// Rows are dealt to workgroups in parts that need not be equal: those of a batch that each
// workgroup packs for itself, and those of one matrix.
TEST_P(BatchedContract, WorkgroupsGetEveryRowOnce) {
  for (const Batch& s : {Batch{2, 16, 256, 128},
                         {1, 16, 256, 128},
                         {3, 12, 128, 64},
                         {2, 28, 96, 64},
                         {1, 250, 16, 32},
                         {1, 333, 8, 64}}) {
    SCOPED_TRACE(fmt::format("{} x {} x {} x {}", s.batch, s.m, s.k, s.n));
    const std::vector<f32> a = eighths(s.batch * s.m * s.k, 6), b = eighths(s.batch * s.k * s.n, 7);
    const std::vector<f32> expected = product(a, b, s);
    const Matrix x = Matrix::from_f32(engine_, {s.batch, s.m, s.k}, a),
                 y = Matrix::from_f32(engine_, {s.batch, s.k, s.n}, b);
    // What is scaled is no value of its own once the statement has ended.
    const Matrix scaled = matrix::mat_mul(x * 0.5, y * 2.0), rows = matrix::mat_mul(x * 1.0, y);
    EXPECT_EQ(scaled.read_f32(), expected);
    EXPECT_EQ(rows.read_f32(), expected);
    if (s.batch == 1) {
      EXPECT_EQ(matrix::mat_mul(x.reshape({s.m, s.k}), y.reshape({s.k, s.n})).read_f32(), expected);
    }
  }
}

TEST_P(BatchedContract, HeadsAreSplitAndMergedOnTheWay) {
  for (const auto& [batch, length, heads, size] :
       {std::array<i64, 4>{2, 16, 4, 8}, {3, 10, 2, 20}, {2, 17, 3, 5}, {1, 32, 2, 32}}) {
    SCOPED_TRACE(fmt::format("{} x {} x {} x {}", batch, length, heads, size));
    const i64 width = heads * size;
    const std::vector<f32> q = eighths(batch * length * width, 3),
                           k = eighths(batch * length * width, 4), w = eighths(width * 24, 5);
    const auto at = [&](const std::vector<f32>& v, i64 b, i64 s, i64 h, i64 d) {
      return f64{v[static_cast<size_t>((b * length + s) * width + h * size + d)]};
    };
    // scores = q k^T of every head, 0 above the diagonal; mixed = scores k; result = merged w
    std::vector<f64> mixed(q.size());
    for (i64 b = 0; b < batch; ++b) {
      for (i64 h = 0; h < heads; ++h) {
        for (i64 i = 0; i < length; ++i) {
          for (i64 j = 0; j <= i; ++j) {
            f64 score = 0;
            for (i64 d = 0; d < size; ++d) score += at(q, b, i, h, d) * 0.25 * at(k, b, j, h, d);
            for (i64 d = 0; d < size; ++d) {
              mixed[static_cast<size_t>((b * length + i) * width + h * size + d)] +=
                  score * at(k, b, j, h, d);
            }
          }
        }
      }
    }
    std::vector<f64> result(static_cast<size_t>(batch * length * 24));
    for (i64 r = 0; r < batch * length; ++r) {
      for (i64 d = 0; d < width; ++d) {
        for (i64 j = 0; j < 24; ++j) {
          result[static_cast<size_t>(r * 24 + j)] +=
              mixed[static_cast<size_t>(r * width + d)] * w[static_cast<size_t>(d * 24 + j)];
        }
      }
    }
    std::vector<u8> lower(static_cast<size_t>(length * length));
    for (i64 i = 0; i < length; ++i) {
      for (i64 j = 0; j <= i; ++j) lower[static_cast<size_t>(i * length + j)] = 1;
    }
    const Matrix x = Matrix::from_f32(engine_, {batch, length, width}, q),
                 y = Matrix::from_f32(engine_, {batch, length, width}, k),
                 out = Matrix::from_f32(engine_, {width, 24}, w),
                 mask = Matrix::upload(engine_, {length, length}, DType::Bool, lower.data(),
                                       lower.size());
    const auto split = [&](const Matrix& m) {
      return m.reshape({batch, length, heads, size}).transpose(1, 2);
    };
    const Matrix scores = matrix::mat_mul_nt(split(x) * 0.25, split(y));
    const Matrix zero = Matrix::from_f32(engine_, {1}, std::vector<f32>{0});
    const Matrix heads_out = matrix::mat_mul(matrix::where(mask, scores, zero), split(y));
    const Matrix merged = heads_out.transpose(1, 2).reshape({batch * length, width});
    const std::vector<f32> got = matrix::mat_mul(merged, out).read_f32();
    ASSERT_EQ(got.size(), result.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], result[i], 1e-4 * std::max(1.0, std::abs(result[i]))) << i;
    }
    // The gradient of `out`: a sum over batches and positions, rows of A from several heads.
    const Matrix dy =
        Matrix::from_f32(engine_, {batch * length, 24}, eighths(batch * length * 24, 6));
    const std::vector<f32> gradient = matrix::mat_mul_tn(merged, dy).read_f32();
    const std::vector<f32> from = dy.read_f32();
    for (i64 d = 0; d < width; ++d) {
      for (i64 j = 0; j < 24; ++j) {
        f64 sum = 0;
        for (i64 r = 0; r < batch * length; ++r) {
          sum += mixed[static_cast<size_t>(r * width + d)] * from[static_cast<size_t>(r * 24 + j)];
        }
        ASSERT_NEAR(gradient[static_cast<size_t>(d * 24 + j)], sum,
                    1e-4 * std::max(1.0, std::abs(sum)));
      }
    }
  }
}

// Rows of A that come from two axes, with work in front: a gang of rows may begin in the middle of
// the inner axis. Wide ones are packed by a launch of their own.
TEST_P(BatchedContract, RowsOfSeveralAxesAreComputedOnTheWay) {
  for (const auto& [batch, heads, length, size, n] : {std::array<i64, 5>{6, 2, 16, 8, 24},
                                                      {5, 3, 32, 4, 40},
                                                      {7, 3, 16, 12, 64},
                                                      {13, 2, 16, 32, 48},
                                                      {30, 2, 16, 32, 64},
                                                      {20, 2, 16, 32, 128},
                                                      {4, 2, 48, 6, 7},
                                                      {3, 2, 20, 8, 33},
                                                      {2, 2, 16, 1100, 9},
                                                      {5, 2, 16, 1100, 64},
                                                      {2, 2, 20, 1100, 5}}) {
    if (checked() && size > 1000) continue;
    SCOPED_TRACE(fmt::format("{} x {} x {} x {} x {}", batch, heads, length, size, n));
    const i64 width = heads * size, rows = batch * length;
    const std::vector<f32> a = eighths(rows * width, 13), w = eighths(width * n, 14);
    const Matrix x = Matrix::from_f32(engine_, {batch, heads, length, size}, a),
                 y = Matrix::from_f32(engine_, {width, n}, w);
    std::vector<f32> merged(a.size());
    for (i64 b = 0; b < batch; ++b) {
      for (i64 h = 0; h < heads; ++h) {
        for (i64 i = 0; i < length; ++i) {
          for (i64 d = 0; d < size; ++d) {
            merged[static_cast<size_t>((b * length + i) * width + h * size + d)] =
                2 * a[static_cast<size_t>(((b * heads + h) * length + i) * size + d)];
          }
        }
      }
    }
    const auto merge = [&](const Matrix& m) { return m.transpose(1, 2).reshape({rows, width}); };
    const std::vector<f32> expected = product(merged, w, {1, rows, width, n});
    // The operands' temporaries end before the product runs, else they would be results too.
    const Matrix before = matrix::mat_mul(merge(x) * 2.0, y);
    EXPECT_EQ(before.read_f32(), expected);
    const Matrix inside = matrix::mat_mul(merge(x * 2.0), y);
    EXPECT_EQ(inside.read_f32(), expected);
    // The same as columns of B.
    const Matrix wt = Matrix::from_f32(engine_, {n, width}, swapped(w, 1, width, n));
    const Matrix columns = matrix::mat_mul_nt(wt, merge(x) * 2.0);
    EXPECT_EQ(columns.read_f32(), swapped(expected, 1, rows, n));
  }
}

// A batch axis along which B repeats counts as rows, wherever it stands.
TEST_P(BatchedContract, BatchesBroadcastInEveryPlace) {
  const i64 m = 6, k = 12, n = 17;
  for (const auto& [a_batch, b_batch] : {std::pair(Shape{2, 3}, Shape{2, 3}),
                                         {Shape{2, 3}, Shape{1, 3}},
                                         {Shape{2, 3}, Shape{2, 1}},
                                         {Shape{1, 3}, Shape{2, 1}},
                                         {Shape{2, 3}, Shape{3}},
                                         {Shape{3}, Shape{2, 3}},
                                         {Shape{2, 3, 2}, Shape{2, 1, 2}},
                                         {Shape{2, 3, 2}, Shape{1, 3, 1}},
                                         {Shape{}, Shape{4}}}) {
    SCOPED_TRACE(fmt::format("{} {}", a_batch, b_batch));
    const auto with = [](Shape s, i64 x, i64 y) {
      s.push_back(x);
      s.push_back(y);
      return s;
    };
    const Shape a_shape = with(a_batch, m, k), b_shape = with(b_batch, k, n);
    const std::vector<f32> a = eighths(a_shape.elements(), 7), b = eighths(b_shape.elements(), 8);
    const Matrix c = matrix::mat_mul(Matrix::from_f32(engine_, a_shape, a),
                                     Matrix::from_f32(engine_, b_shape, b));
    const Shape batch(Dims(std::span<const i64>(c.shape().data(), c.shape().rank() - 2)));
    // The operand's batch at a flat position of the result's batches.
    const auto from = [&](const Shape& own, i64 flat) {
      i64 at = 0, stride = 1;
      for (u32 i = own.rank(); i-- > 0;) {
        const u32 axis = i + batch.rank() - own.rank();
        i64 after = 1;
        for (u32 j = axis + 1; j < batch.rank(); ++j) after *= batch[j];
        if (own[i] != 1) at += flat / after % batch[axis] * stride;
        stride *= own[i];
      }
      return at;
    };
    const std::vector<f32> got = c.read_f32();
    for (i64 x = 0; x < batch.elements(); ++x) {
      const auto part = [](const std::vector<f32>& v, i64 i, i64 size) {
        return std::vector<f32>(v.begin() + i * size, v.begin() + (i + 1) * size);
      };
      EXPECT_EQ(part(got, x, m * n), product(part(a, from(a_batch, x), m * k),
                                             part(b, from(b_batch, x), k * n), {1, m, k, n}))
          << "batch " << x;
    }
  }
}

TEST_P(BatchedContract, WhatIsNotANumberStaysInItsRowAndColumn) {
  const f32 nan = std::numeric_limits<f32>::quiet_NaN(), inf = std::numeric_limits<f32>::infinity();
  const Batch s{2, 21, 20, 19};
  std::vector<f32> a = eighths(s.batch * s.m * s.k, 9), b = eighths(s.batch * s.k * s.n, 10);
  a[static_cast<size_t>(20 * s.k + 3)] = nan;              // last row of batch 0
  b[static_cast<size_t>(s.k * s.n + 7 * s.n + 18)] = inf;  // last column of batch 1
  for (f32& x : a) x = x == 0 ? 1.0f : x;
  const Matrix x = Matrix::from_f32(engine_, {s.batch, s.m, s.k}, a);
  const Matrix yt = Matrix::from_f32(engine_, {s.batch, s.n, s.k}, swapped(b, s.batch, s.k, s.n));
  const Matrix c = matrix::mat_mul_nt(-x, yt);
  const std::vector<f32> got = c.read_f32();
  for (i64 i = 0; i < s.batch * s.m * s.n; ++i) {
    const i64 row = i / s.n, column = i % s.n;
    const bool odd = row == 20 || (row >= s.m && column == 18);
    EXPECT_EQ(std::isfinite(got[static_cast<size_t>(i)]), !odd) << row << " " << column;
  }
}

TEST_P(BatchedContract, EmptyBatches) {
  const Matrix x = Matrix::from_f32(engine_, {0, 4, 3}, {}),
               y = Matrix::from_f32(engine_, {0, 3, 5}, {});
  EXPECT_EQ(matrix::mat_mul(x, y).shape(), (Shape{0, 4, 5}));
  EXPECT_TRUE(matrix::mat_mul(x, y).read_f32().empty());
  const Matrix u = Matrix::from_f32(engine_, {2, 4, 0}, {}),
               v = Matrix::from_f32(engine_, {2, 0, 5}, {});
  EXPECT_EQ(matrix::mat_mul(u, v).read_f32(), std::vector<f32>(40));
}

INSTANTIATE_TEST_SUITE_P(Devices, BatchedContract, testing::Values("cpu", "checked"));

// One launch does it all; a value that others read too is computed once and kept.
TEST(ContractPrologue, IsPartOfTheProductsLaunch) {
  Engine e = Engine::open({.device = "cpu"});
  const Matrix x = Matrix::from_f32(e, {4, 32, 48}, thirds(4 * 32 * 48, 1)),
               w = Matrix::from_f32(e, {48, 64}, thirds(48 * 64, 2)),
               y = Matrix::from_f32(e, {4, 32, 48}, thirds(4 * 32 * 48, 3));
  const auto dispatches = [&](const std::function<Matrix()>& f) {
    return e.capture([&] { return std::vector<Matrix>{f()}; }).dispatch_count();
  };
  EXPECT_EQ(dispatches([&] { return matrix::mat_mul(matrix::tanh(x) * 2.0, w); }), 1u);
  EXPECT_EQ(dispatches([&] { return matrix::mat_mul_nt(matrix::tanh(x), y + 1.0); }), 1u);
  EXPECT_EQ(dispatches([&] { return matrix::mat_mul_tn(x * y, y) + 1.0; }), 1u);
  EXPECT_EQ(dispatches([&] {
              const Matrix t = matrix::tanh(x);
              return matrix::mat_mul_nt(t, t);
            }),
            2u);
}

TEST(ContractPrologue, FusedAndUnfusedAgree) {
  const auto run = [](bool fuse) {
    Engine e = Engine::open({.device = "cpu", .fuse = fuse});
    const Matrix x = Matrix::from_f32(e, {3, 40, 24}, thirds(3 * 40 * 24, 4)),
                 y = Matrix::from_f32(e, {3, 50, 24}, thirds(3 * 50 * 24, 5)),
                 bias = Matrix::from_f32(e, {24}, thirds(24, 6));
    const Matrix nt = matrix::mat_mul_nt(matrix::tanh(x + bias), y * 0.5);
    const Matrix tn = matrix::mat_mul_tn(x.transpose() + 1.0, (y * bias).transpose());
    const Matrix nn = matrix::mat_mul(x - bias, matrix::exp(y).transpose());
    return std::vector<std::vector<f32>>{nt.read_f32(), tn.read_f32(), nn.read_f32()};
  };
  EXPECT_EQ(run(true), run(false));  // the same operations on the same numbers in the same order
}

// Few tiles and a long sum: slices by the shape alone, added in a fixed order.
TEST(ContractSlices, GiveTheSameBitsOnAnyNumberOfThreads) {
  struct Case {
    i64 m, n, k;
  };
  for (const auto& [m, n, k] : {Case{32, 32, 1024},
                                {8, 8, 4096},
                                {32, 64, 1024},
                                {5, 70, 3001},
                                {1, 16, 5000},
                                {32, 96, 1040}}) {
    SCOPED_TRACE(fmt::format("{} x {} x {}", m, n, k));
    const std::vector<f32> a = thirds(k * m, 7), b = thirds(k * n, 8);
    std::vector<f32> first;
    for (u32 threads : {1u, 2u, 3u, 5u}) {
      EngineOptions options{.device = "cpu"};
      options.device_options.threads = threads;
      Engine e = Engine::open(options);
      const Matrix x = Matrix::from_f32(e, {k, m}, a), y = Matrix::from_f32(e, {k, n}, b);
      const std::vector<f32> c = (matrix::mat_mul_tn(x, y) * 2.0).read_f32();
      if (first.empty()) first = c;
      EXPECT_EQ(c, first) << threads;
    }
    for (i64 i = 0; i < m; ++i) {
      for (i64 j = 0; j < n; ++j) {
        f64 sum = 0;
        for (i64 l = 0; l < k; ++l) {
          sum += 2 * f64{a[static_cast<size_t>(l * m + i)]} * b[static_cast<size_t>(l * n + j)];
        }
        ASSERT_NEAR(first[static_cast<size_t>(i * n + j)], sum, 2e-5 * std::sqrt(k))
            << i << " " << j;
      }
    }
  }
}

TEST(ContractSlices, RunCleanlyWhereEverythingIsChecked) {
  Engine e = Engine::open({.device = "checked"});
  const i64 m = 9, n = 20, k = 1536;
  const std::vector<f32> a = eighths(k * m, 9), b = eighths(k * n, 10);
  const Matrix x = Matrix::from_f32(e, {k, m}, a), y = Matrix::from_f32(e, {k, n}, b);
  EXPECT_EQ(matrix::mat_mul_tn(x, y).read_f32(), product(swapped(a, 1, k, m), b, {1, m, k, n}));
}

TEST(BatchedContractThreads, ChangeNoBit) {
  const std::vector<f32> q = thirds(10 * 50 * 24, 11), k = thirds(10 * 50 * 24, 12);
  std::vector<f32> first;
  for (u32 threads : {1u, 2u, 3u, 7u}) {
    EngineOptions options{.device = "cpu"};
    options.device_options.threads = threads;
    Engine e = Engine::open(options);
    const Matrix x = Matrix::from_f32(e, {10, 50, 24}, q), y = Matrix::from_f32(e, {10, 50, 24}, k);
    const Matrix scores = matrix::mat_mul_nt(x * 0.3, y);
    const std::vector<f32> c = matrix::mat_mul_tn(scores, matrix::mat_mul(scores, y)).read_f32();
    if (first.empty()) first = c;
    EXPECT_EQ(c, first) << threads;
  }
}

}  // namespace
}  // namespace oa
