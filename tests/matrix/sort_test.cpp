#include "oa/matrix/sort.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "oa/matrix/index.h"
#include "oa/matrix/movement.h"
#include "tests/matrix/devices.h"

namespace oa::matrix {
namespace {

using test::error_of;

class Sort : public test::OnDevice {};
OA_ON_DEVICES(Sort);

constexpr f32 kNan = std::numeric_limits<f32>::quiet_NaN();
constexpr f32 kInf = std::numeric_limits<f32>::infinity();

// Positions of each row of n in sorted order: NaN greatest, equal elements in their order.
template <class T>
std::vector<i32> order(const std::vector<T>& x, size_t n, bool descending) {
  std::vector<i32> all;
  for (size_t r = 0; n > 0 && r < x.size() / n; ++r) {
    std::vector<i32> p(n);
    std::iota(p.begin(), p.end(), 0);
    const auto before = [&](i32 a, i32 b) {
      const T u = x[r * n + static_cast<size_t>(a)], v = x[r * n + static_cast<size_t>(b)];
      if (u != u || v != v) return v != v && u == u;
      return u < v;
    };
    std::stable_sort(p.begin(), p.end(),
                     [&](i32 a, i32 b) { return descending ? before(b, a) : before(a, b); });
    all.insert(all.end(), p.begin(), p.end());
  }
  return all;
}

// Few distinct values, with both zeros, infinities and NaN among them.
std::vector<f32> awkward(u32 seed, size_t n) {
  const f32 values[] = {0.0f, -0.0f, kNan, kInf, -kInf, 1.5f, -2, 1e-40f, 3e38f, -1};
  std::vector<f32> x(n);
  const auto pick = test::random_i32(seed, n, 0, 40);
  const auto other = test::random_f32(seed + 1, n);
  for (size_t i = 0; i < n; ++i) x[i] = pick[i] < 10 ? values[pick[i]] : other[i];
  return x;
}

bool same_bits(const std::vector<f32>& a, const std::vector<f32>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (a[i] != b[i] || std::signbit(a[i]) != std::signbit(b[i])) return false;
  }
  return a.size() == b.size();
}

TEST_P(Sort, RowsOfManyLengths) {
  std::vector<i64> lengths;
  for (i64 n = 1; n <= 40; n += stride(19)) lengths.push_back(n);
  for (i64 n : {127, 129, 300}) lengths.push_back(n);
  if (!interpreted()) lengths.push_back(5000);
  for (i64 n : lengths) {
    const auto x = awkward(static_cast<u32>(n), static_cast<size_t>(3 * n));
    for (bool descending : {false, true}) {
      const Matrix m = from<f32>({3, n}, x);
      const auto want = order(x, static_cast<size_t>(n), descending);
      ASSERT_EQ(argsort(m, -1, descending).read<i32>(), want) << n;
      std::vector<f32> values;
      for (size_t i = 0; i < want.size(); ++i) {
        values.push_back(
            x[i / static_cast<size_t>(n) * static_cast<size_t>(n) + static_cast<size_t>(want[i])]);
      }
      ASSERT_TRUE(same_bits(sort(m, -1, descending).read_f32(), values)) << n;
    }
  }
}

TEST_P(Sort, LongRowsOfManyBlocks) {
  const size_t n = interpreted() ? 16999 : 40009;
  const auto x = awkward(3, n);
  const Matrix m = from<f32>({static_cast<i64>(n)}, x);
  EXPECT_EQ(argsort(m).read<i32>(), order(x, n, false));
  if (interpreted()) return;
  const auto y = test::random_i32(4, 2 * n, -50, 50);
  const Matrix k = from<i32>({2, static_cast<i64>(n)}, y);
  EXPECT_EQ(argsort(k, 1, true).read<i32>(), order(y, n, true));
}

// Few of a long row: the beginning of the whole order.
TEST_P(Sort, SelectionOfFew) {
  for (const i64 n : {257, 300, interpreted() ? 301 : 5000}) {
    const auto x = awkward(static_cast<u32>(n), static_cast<size_t>(3 * n));
    const Matrix m = from<f32>({3, n}, x);
    const auto want = order(x, static_cast<size_t>(n), true);
    for (const i64 k : {1, 7, 16, 17, 64}) {
      if (interpreted() && k > 16) continue;
      const TopKResult r = top_k(m, k);
      std::vector<i32> indices;
      std::vector<f32> values;
      for (i64 row = 0; row < 3; ++row) {
        for (i64 i = 0; i < k; ++i) {
          indices.push_back(want[static_cast<size_t>(row * n + i)]);
          values.push_back(x[static_cast<size_t>(row * n + indices.back())]);
        }
      }
      ASSERT_EQ(r.indices.read<i32>(), indices) << n << " " << k;
      ASSERT_TRUE(same_bits(r.values.read_f32(), values)) << n << " " << k;
    }
  }
  // Nothing but one key, and the keys at both ends.
  for (const bool ends : {false, true}) {
    std::vector<u32> u(700, ends ? 0u : 5u);
    if (ends) u[13] = u[699] = ~0u;
    const auto got = top_k(from<u32>({700}, u), 5).indices.read<i32>();
    EXPECT_EQ(got, ends ? (std::vector<i32>{13, 699, 0, 1, 2}) : (std::vector<i32>{0, 1, 2, 3, 4}));
  }
}

TEST_P(Sort, Dtypes) {
  for (size_t n : {size_t{9}, size_t{interpreted() ? 270u : 700u}}) {
    const Shape s{static_cast<i64>(n)};
    std::vector<u32> u(n);
    std::vector<u8> b(n), t(n);
    const auto r =
        test::random_i32(5, n, std::numeric_limits<i32>::min(), std::numeric_limits<i32>::max());
    for (size_t i = 0; i < n; ++i) {
      u[i] = static_cast<u32>(r[i]);
      b[i] = static_cast<u8>(r[i]);
      t[i] = r[i] & 1;
    }
    EXPECT_EQ(argsort(from<i32>(s, r)).read<i32>(), order(r, n, false));
    EXPECT_EQ(argsort(from<u32>(s, u), 0, true).read<i32>(), order(u, n, true));
    EXPECT_EQ(argsort(from<u8>(s, b)).read<i32>(), order(b, n, false));
    EXPECT_EQ(argsort(bools(s, t), 0, true).read<i32>(), order(t, n, true));
    std::vector<f32> h(n);
    for (size_t i = 0; i < n; ++i) h[i] = static_cast<f32>(b[i]) / 4 - 20;
    EXPECT_EQ(argsort(cast(from<f32>(s, h), DType::F16)).read<i32>(), order(h, n, false));
    if (!engine().target().f64) continue;
    std::vector<f64> d(n);
    for (size_t i = 0; i < n; ++i) {
      d[i] = (i % 7 == 0 ? 1.0 : r[i]) + (i % 3 == 0 ? 1e-9 * static_cast<f64>(i % 5) : 0);
    }
    d[3] = std::nan("");
    EXPECT_EQ(argsort(from<f64>(s, d)).read<i32>(), order(d, n, false));
    EXPECT_EQ(argsort(from<f64>(s, d), 0, true).read<i32>(), order(d, n, true));
  }
}

TEST_P(Sort, OtherAxesAndEmptyRows) {
  const Matrix x = from<f32>({3, 2}, {3, 1, 2, 9, 1, 4});
  EXPECT_EQ(sort(x, 0).read_f32(), (std::vector<f32>{1, 1, 2, 4, 3, 9}));
  EXPECT_EQ(argsort(x, 0, true).read<i32>(), (std::vector<i32>{0, 1, 1, 2, 2, 0}));
  EXPECT_EQ(sort(from<f32>({2, 0}, {})).read_f32().size(), 0u);
  EXPECT_EQ(sort(from<f32>({0, 5}, {})).shape(), (Shape{0, 5}));
  EXPECT_EQ(sort(from<f32>({4, 1}, {4, 3, 2, 1})).read_f32(), (std::vector<f32>{4, 3, 2, 1}));
}

TEST_P(Sort, TopKIsTheFrontOfTheDescendingOrder) {
  for (i64 n : {1, 2, 8, 64, 130, 2000}) {
    const auto x = awkward(static_cast<u32>(n) + 9, static_cast<size_t>(4 * n));
    const auto want = order(x, static_cast<size_t>(n), true);
    for (i64 k : {i64{0}, i64{1}, i64{2}, n / 2, n, n + 3}) {
      if (stride(2) != 1 && k > 2 && k <= n) continue;
      const TopKResult r = top_k(from<f32>({4, n}, x), k);
      const i64 kept = std::min(k, n);
      ASSERT_EQ(r.values.shape(), (Shape{4, kept}));
      const auto indices = r.indices.read<i32>();
      for (i64 i = 0; i < 4 * kept; ++i) {
        ASSERT_EQ(indices[static_cast<size_t>(i)],
                  want[static_cast<size_t>(i / kept * n + i % kept)])
            << n << " " << k;
      }
      if (kept > 0) {
        const auto values = gather_last_dim(from<f32>({4, n}, x), r.indices).read_f32();
        EXPECT_TRUE(same_bits(r.values.read_f32(), values));
      }
    }
  }
}

TEST_P(Sort, NanWinsTopK) {
  const auto first = [&](const std::vector<f32>& x) {
    return top_k(from<f32>({static_cast<i64>(x.size())}, x), 1).indices.template read<i32>()[0];
  };
  EXPECT_EQ(first({3, kNan, 1, 5}), 1);
  EXPECT_EQ(first({1, 2, kNan}), 2);
  EXPECT_EQ(first({kInf, kNan, -kInf}), 1);
  EXPECT_EQ(first(std::vector<f32>(58, kNan)), 0);
  EXPECT_EQ(first({-kInf, -kInf}), 0);
  // A NaN with its sign bit set is a NaN.
  EXPECT_EQ(first({kInf, -kNan}), 1);
}

TEST_P(Sort, TopKMask) {
  EXPECT_EQ(top_k_mask(from<i32>({2, 2}, {2, 0, 1, 1}), 3).read_f32(),
            (std::vector<f32>{1, 0, 1, 0, 1, 0}));
  EXPECT_EQ(top_k_mask(from<i32>({2, 0}, {}), 2).read_f32(), (std::vector<f32>{0, 0, 0, 0}));
  EXPECT_EQ(error_of([&] { top_k_mask(from<i32>({2}, {1, 0}), 2); }),
            "top_k_mask: bad shape, got [2], expected [T, K]");
}

TEST_P(Sort, Rejects) {
  const Matrix x = from<f32>({2, 2}, {1, 2, 3, 4});
  EXPECT_EQ(error_of([&] { top_k(x, -1); }), "top_k: negative count, got -1, expected 0 or more");
  EXPECT_EQ(error_of([&] { sort(x, 2); }),
            "sort: axis out of range, got 2, expected -2 to 1 for rank 2");
  EXPECT_EQ(error_of([&] { argsort(from<f32>({}, {1})); }),
            "argsort: axis out of range, got -1, expected a value that has axes");
}

}  // namespace
}  // namespace oa::matrix
