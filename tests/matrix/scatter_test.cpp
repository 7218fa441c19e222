#include <cmath>
#include <limits>

#include "oa/matrix/index.h"
#include "oa/matrix/movement.h"
#include "tests/matrix/devices.h"

namespace oa::matrix {
namespace {

using test::error_of;
using test::random_f32;
using test::random_i32;

class Scatter : public test::OnDevice {};
OA_ON_DEVICES(Scatter);

// Sums in F32 in the order of positions: the result is exact, not only close.
std::vector<f32> reference(i64 rows, const std::vector<i32>& at, const std::vector<f32>& u) {
  const size_t columns = at.empty() ? 0 : u.size() / at.size();
  std::vector<f32> y(static_cast<size_t>(rows) * columns);
  for (size_t i = 0; i < at.size(); ++i) {
    if (at[i] < 0 || at[i] >= rows) continue;
    for (size_t c = 0; c < columns; ++c) {
      y[static_cast<size_t>(at[i]) * columns + c] += u[i * columns + c];
    }
  }
  return y;
}

TEST_P(Scatter, AddsInTheOrderOfPositions) {
  struct Case {
    i64 rows, count, columns;
  };
  for (const Case& c : {Case{1, 1, 1}, Case{3, 17, 5}, Case{7, 40, 16}, Case{5, 31, 33},
                        Case{40, 1, 3}, Case{300, 70, 1}, Case{257, 1024, 32}, Case{1000, 3000, 7},
                        Case{2, 20000, 3}, Case{50000, 20011, 1}, Case{11, 2000, 300}}) {
    if (interpreted() && c.count * c.columns > 2000) continue;
    const auto at = random_i32(1, static_cast<size_t>(c.count), 0, static_cast<i32>(c.rows) - 1);
    const auto u = random_f32(2, static_cast<size_t>(c.count * c.columns));
    const Matrix indices = from<i32>({c.count}, at), updates = from<f32>({c.count, c.columns}, u);
    const Matrix y = scatter_add_rows(c.rows, indices, updates);
    ASSERT_EQ(y.shape(), (Shape{c.rows, c.columns}));
    const auto got = y.read_f32();
    ASSERT_EQ(got, reference(c.rows, at, u)) << c.rows << " " << c.count << " " << c.columns;
    ASSERT_EQ(scatter_add_rows(c.rows, indices, updates).read_f32(), got);
  }
}

TEST_P(Scatter, OneHotRow) {  // every update in one row, which the other rows must not feel
  const std::vector<i32> at(1000, 2);
  const auto u = random_f32(3, 4000);
  const auto got = scatter_add_rows(100, from<i32>({1000}, at), from<f32>({1000, 4}, u)).read_f32();
  EXPECT_EQ(got, reference(100, at, u));
}

TEST_P(Scatter, OutOfRangeIsReportedAndAddsNothing) {
  for (i64 rows : {3, 5000}) {  // both ways to find a row's positions
    std::vector<i32> at(12, 1);
    at[4] = 5999;
    at[9] = -1;
    const auto u = random_f32(4, 24);
    const Matrix y = scatter_add_rows(rows, from<i32>({12}, at), from<f32>({12, 2}, u));
    const std::string said = error_of([&] { y.read_f32(); });
    // Two indices are wrong; which one is reported is open.
    const auto text = [&](i32 row, i32 value) {
      return fmt::format("scatter_add_rows: index out of range at row {}, got {}, expected 0 to {}",
                         row, value, rows - 1);
    };
    EXPECT_TRUE(said == text(4, 5999) || said == text(9, -1)) << said;
    EXPECT_EQ(y.read_f32(), reference(rows, at, u));
  }
}

TEST_P(Scatter, ShapesAndDtypes) {
  const Matrix y = scatter_add_rows(3, from<u8>({2, 2}, {2, 0, 2, 2}),
                                    from<i32>({2, 2, 1, 2}, {1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(y.shape(), (Shape{3, 1, 2}));
  EXPECT_EQ(y.read<i32>(), (std::vector<i32>{3, 4, 0, 0, 13, 16}));
  EXPECT_EQ(scatter_add_rows(2, from<u32>({}, {1}), from<f32>({}, {5})).read_f32(),
            (std::vector<f32>{0, 5}));
  EXPECT_EQ(scatter_add_rows(2, from<i32>({0}, {}), from<f32>({0, 3}, {})).read_f32(),
            (std::vector<f32>{0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(scatter_add_rows(2, from<i32>({2}, {1, 0}), from<f32>({2, 0}, {})).shape(),
            (Shape{2, 0}));
  EXPECT_EQ(scatter_add_rows(0, from<i32>({0}, {}), from<f32>({0, 2}, {})).read_f32().size(), 0u);
  // 4096 ones reach 4096 in half precision too.
  const Matrix ones = cast(full(engine(), {4096}, 1), DType::F16);
  const Matrix zeros = full(engine(), {4096}, 0, DType::I32);
  EXPECT_EQ(cast(scatter_add_rows(2, zeros, ones), DType::F32).read_f32(),
            (std::vector<f32>{4096, 0}));
}

TEST_P(Scatter, IsTheAdjointOfGather) {
  const auto at = random_i32(5, 60, 0, 8);
  const Matrix indices = from<i32>({60}, at);
  const auto a = random_f32(6, 9 * 5), b = random_f32(7, 60 * 5);
  const auto picked = gather(from<f32>({9, 5}, a), indices).read_f32();
  const auto back = scatter_add_rows(9, indices, from<f32>({60, 5}, b)).read_f32();
  f64 left = 0, right = 0;
  for (size_t i = 0; i < picked.size(); ++i) left += static_cast<f64>(picked[i]) * b[i];
  for (size_t i = 0; i < a.size(); ++i) right += static_cast<f64>(a[i]) * back[i];
  EXPECT_NEAR(left, right, 1e-3);
}

TEST_P(Scatter, Rejects) {
  const Matrix at = from<i32>({2}, {0, 1});
  EXPECT_EQ(error_of([&] { scatter_add_rows(2, at, from<f32>({3, 1}, {1, 2, 3})); }),
            "scatter_add_rows: updates do not fit, got [3, 1] for indices [2], expected the "
            "indices' shape first");
  EXPECT_EQ(error_of([&] { scatter_add_rows(-1, at, from<f32>({2}, {1, 2})); }),
            "scatter_add_rows: bad number of rows, got -1, expected 0 to 2147483647");
  EXPECT_EQ(error_of([&] { scatter_add_rows(2, from<f32>({1}, {0}), from<f32>({1}, {1})); }),
            "scatter_add_rows: operand 0 has the wrong dtype, got f32, expected i32, u32 or u8");
  EXPECT_EQ(error_of([&] { scatter_add_rows(2, at, from<u8>({2}, {1, 2})); }),
            "scatter_add_rows: operand 1 has the wrong dtype, got u8, expected a float, i32 or "
            "u32");
}

}  // namespace
}  // namespace oa::matrix
