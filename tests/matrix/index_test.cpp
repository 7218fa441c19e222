#include "oa/matrix/index.h"

#include <cmath>
#include <limits>

#include "oa/matrix/movement.h"
#include "oa/matrix/reduce.h"
#include "tests/matrix/devices.h"

namespace oa::matrix {
namespace {

using test::error_of;
using test::random_f32;
using test::random_i32;

class Index : public test::OnDevice {};
OA_ON_DEVICES(Index);

constexpr f32 kNan = std::numeric_limits<f32>::quiet_NaN();

TEST_P(Index, GatherRows) {
  for (i64 rows : {1, 2, 7, 40}) {
    for (i64 width : {1, 3, 12, 17, 33}) {
      const auto table = random_f32(1, static_cast<size_t>(rows * width));
      const auto at = random_i32(2, 13, 0, static_cast<i32>(rows) - 1);
      const Matrix y = gather(from<f32>({rows, width}, table), from<i32>({13}, at));
      ASSERT_EQ(y.shape(), (Shape{13, width}));
      const auto got = y.read_f32();
      for (size_t i = 0; i < 13; ++i) {
        for (i64 c = 0; c < width; ++c) {
          ASSERT_EQ(got[i * static_cast<size_t>(width) + static_cast<size_t>(c)],
                    table[static_cast<size_t>(at[i] * width + c)]);
        }
      }
    }
  }
}

TEST_P(Index, GatherOfAnyShapeAndDtype) {
  const Matrix table = from<i32>({4, 2, 3}, [] {
    std::vector<i32> v(24);
    std::iota(v.begin(), v.end(), 100);
    return v;
  }());
  const Matrix by_u8 = gather(table, from<u8>({2, 2}, {3, 0, 1, 1}));
  EXPECT_EQ(by_u8.shape(), (Shape{2, 2, 2, 3}));
  EXPECT_EQ(slice(by_u8.reshape({4, 6}), 1, 0, 1).read<i32>(),
            (std::vector<i32>{118, 100, 106, 106}));
  const Matrix one = gather(table, from<u32>({}, {2}));
  EXPECT_EQ(one.shape(), (Shape{2, 3}));
  EXPECT_EQ(one.read<i32>(), (std::vector<i32>{112, 113, 114, 115, 116, 117}));
  EXPECT_EQ(gather(table, from<i32>({0}, {})).shape(), (Shape{0, 2, 3}));
  EXPECT_EQ(gather(from<f32>({3}, {5, 6, 7}), from<i32>({2}, {2, 0})).read_f32(),
            (std::vector<f32>{7, 5}));
  EXPECT_EQ(gather(bools({3}, {0, 1, 1}), from<i32>({3}, {2, 0, 1})).read<bool>(),
            (std::vector<bool>{true, false, true}));
  EXPECT_EQ(gather(from<u8>({3}, {250, 251, 252}), from<i32>({3}, {2, 0, 1})).read<u8>(),
            (std::vector<u8>{252, 250, 251}));
}

TEST_P(Index, GatherThatFusesWithNeighbours) {
  const Matrix table = from<f32>({3, 2}, {1, 2, 3, 4, 5, 6});
  const Matrix at = from<i32>({2, 2}, {0, 1, 2, 0});
  // The indices and the table are themselves computed, and the rows are transposed afterwards.
  const Matrix y = gather(table * 10.0, permute(at, {1, 0})) + 1.0;
  EXPECT_EQ(permute(y, {2, 0, 1}).read_f32(), (std::vector<f32>{11, 51, 31, 11, 21, 61, 41, 21}));
  EXPECT_EQ(sum(gather(table, at)).item(), 1 + 2 + 3 + 4 + 5 + 6 + 1 + 2);
}

TEST_P(Index, GatherOutOfRangeIsReportedAndHarmless) {
  const Matrix table = from<f32>({3, 12}, random_f32(3, 36));
  for (i32 bad : {999, -1, 3, std::numeric_limits<i32>::min()}) {
    const Matrix y = gather(table, from<i32>({4}, {0, 2, bad, 1}));
    EXPECT_EQ(error_of([&] { y.read_f32(); }),
              fmt::format("gather: index out of range at row 2, got {}, expected 0 to 2", bad));
    const auto got = y.read_f32();  // reported once; the elements are there
    for (size_t i = 0; i < 48; ++i) EXPECT_EQ(std::isnan(got[i]), i / 12 == 2) << i;
  }
  const Matrix words = gather(from<i32>({2}, {5, 6}), from<u32>({3}, {1, 2, 0}));
  EXPECT_EQ(error_of([&] { engine().wait(); }),
            "gather: index out of range at row 1, got 2, expected 0 to 1");
  EXPECT_EQ(words.read<i32>(), (std::vector<i32>{6, 0, 5}));
  const Matrix empty = gather(from<f32>({0, 2}, {}), from<i32>({1}, {0}));
  EXPECT_EQ(error_of([&] { empty.read_f32(); }),
            "gather: index out of range at row 0, got 0, expected 0 to -1");
  EXPECT_TRUE(std::isnan(empty.read_f32()[1]));
}

TEST_P(Index, UncheckedIndicesStayInBounds) {
  Engine fast = Engine::open(
      {.device = test::device_under_test(GetParam()), .check_indices = false, .guard_bands = true});
  const std::vector<f32> table = {1, 2, 3};
  const std::vector<i32> at = {2, 999, -1};
  const Matrix indices = Matrix::from_slice<i32>(fast, {3}, at);
  const auto got = gather(Matrix::from_f32(fast, {3}, table), indices).read_f32();
  EXPECT_EQ(got[0], 3);
  EXPECT_TRUE(std::isnan(got[1]) && std::isnan(got[2]));
  const auto back = scatter_add_rows(3, indices, Matrix::from_f32(fast, {3}, table)).read_f32();
  EXPECT_EQ(back, (std::vector<f32>{0, 0, 1}));
  fast.check_guards();
}

TEST_P(Index, GatherRejects) {
  const Matrix table = from<f32>({2, 2}, {1, 2, 3, 4});
  EXPECT_EQ(error_of([&] { gather(table, table); }),
            "gather: operand 1 has the wrong dtype, got f32, expected i32, u32 or u8");
  EXPECT_EQ(error_of([&] { gather(from<f32>({}, {1}), from<i32>({1}, {0})); }),
            "gather: operand 0 has no rows, got shape [], expected rank 1 or more");
}

TEST_P(Index, SelectAlongAnyAxis) {
  const auto x = random_f32(4, 3 * 5 * 2);
  const std::vector<i32> at = {4, 0, 4, 1};
  const Matrix y = index_select(from<f32>({3, 5, 2}, x), from<i32>({2, 2}, at), -2);
  ASSERT_EQ(y.shape(), (Shape{3, 2, 2, 2}));
  const auto got = y.read_f32();
  for (size_t b = 0; b < 3; ++b) {
    for (size_t i = 0; i < 4; ++i) {
      for (size_t c = 0; c < 2; ++c) {
        EXPECT_EQ(got[(b * 4 + i) * 2 + c], x[(b * 5 + static_cast<size_t>(at[i])) * 2 + c]);
      }
    }
  }
  const Matrix bad = index_select(from<f32>({3, 5, 2}, x), from<i32>({2}, {0, 5}), 1);
  EXPECT_EQ(error_of([&] { bad.read_f32(); }),
            "index_select: index out of range at row 1, got 5, expected 0 to 4");
  EXPECT_EQ(error_of([&] { index_select(bad, from<i32>({1}, {0}), 3); }),
            "index_select: axis out of range, got 3, expected -3 to 2 for rank 3");
}

TEST_P(Index, GatherLastDim) {
  for (i64 c : {1, 2, 5, 31, 40}) {
    const auto x = random_f32(5, static_cast<size_t>(6 * c));
    const auto at = random_i32(6, 6 * 3, 0, static_cast<i32>(c) - 1);
    const Matrix y = gather_last_dim(from<f32>({2, 3, c}, x), from<i32>({2, 3, 3}, at));
    ASSERT_EQ(y.shape(), (Shape{2, 3, 3}));
    const auto got = y.read_f32();
    for (size_t i = 0; i < 18; ++i) {
      EXPECT_EQ(got[i], x[i / 3 * static_cast<size_t>(c) + static_cast<size_t>(at[i])]);
    }
  }
  const Matrix bad =
      gather_last_dim(from<f32>({2, 2}, {1, 2, 3, 4}), from<i32>({2, 2}, {1, 0, -5, 1}));
  EXPECT_EQ(error_of([&] { bad.read_f32(); }),
            "gather_last_dim: index out of range at row 1, got -5, expected 0 to 1");
  EXPECT_EQ(bad.read_f32(), (std::vector<f32>{2, 1, 0, 4}));
  EXPECT_EQ(error_of([&] { gather_last_dim(bad, from<i32>({3, 2}, std::vector<i32>(6))); }),
            "gather_last_dim: leading axes differ, got [2, 2] and [3, 2], expected equal ones "
            "before the last");
}

TEST_P(Index, OneHot) {
  EXPECT_EQ(one_hot(from<i32>({2, 2}, {0, 2, -1, 3}), 3).read_f32(),
            (std::vector<f32>{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(one_hot(from<u8>({1}, {1}), 2, DType::Bool).read<bool>(),
            (std::vector<bool>{false, true}));
  EXPECT_EQ(one_hot(from<u8>({2}, {1, 0}), 0).shape(), (Shape{2, 0}));
  EXPECT_EQ(error_of([&] { one_hot(from<i32>({1}, {0}), -1); }),
            "one_hot: bad number of classes, got -1, expected 0 to 2147483647");
}

TEST_P(Index, ScatterAddLastDim) {
  const Matrix at = from<i32>({2, 3}, {1, 1, 0, 3, -1, 2});
  const Matrix updates = from<f32>({2, 3}, {1, 2, 4, 8, 16, 32});
  EXPECT_EQ(scatter_add_last_dim(4, at, updates).read_f32(),
            (std::vector<f32>{4, 3, 0, 0, 0, 0, 32, 8}));
  // An update that is not finite stays at its own index.
  EXPECT_EQ(scatter_add_last_dim(3, from<i32>({1, 2}, {0, 2}),
                                 from<f32>({1, 2}, {std::numeric_limits<f32>::infinity(), 1}))
                .read_f32(),
            (std::vector<f32>{std::numeric_limits<f32>::infinity(), 0, 1}));
  EXPECT_EQ(scatter_add_last_dim(2, from<i32>({2, 0}, {}), from<f32>({2, 0}, {})).read_f32(),
            (std::vector<f32>{0, 0, 0, 0}));
}

TEST_P(Index, AccuracyCount) {
  const Matrix logits = from<f32>({5, 3}, {1, 3, 3, 0, 0, 0, 5, kNan, 9, -1, -2, -3, 2, 1, 0});
  const auto count = [&](const Matrix& labels) {
    const Matrix n = categorical_accuracy_count(logits, labels);
    EXPECT_EQ(n.shape(), (Shape{1}));
    return n.read<u32>()[0];
  };
  EXPECT_EQ(count(from<i32>({5}, {1, 0, 1, 0, 0})), 5u);  // first maximum; NaN wins
  EXPECT_EQ(count(from<i32>({5}, {2, 1, 2, -1, 7})), 0u);
  EXPECT_EQ(count(from<u32>({5}, {1, 0xffffffffu, 0x80000000u, 0, 1})), 2u);
  EXPECT_EQ(count(from<u8>({5}, {1, 255, 1, 1, 0})), 3u);
  const Matrix labels = from<i32>({5}, {1, 0, 1, 0, 0});
  const Matrix mask = from<f32>({5}, {1, 0, -0.5f, -0.0f, 1});
  EXPECT_EQ(masked_categorical_accuracy_count(logits, labels, mask).read<u32>()[0], 3u);
  EXPECT_EQ(categorical_accuracy_count(from<f32>({0, 3}, {}), from<i32>({0}, {})).read<u32>()[0],
            0u);
  EXPECT_EQ(error_of([&] { categorical_accuracy_count(logits, from<i32>({4}, {0, 0, 0, 0})); }),
            "categorical_accuracy_count: labels do not fit, got shape [4], expected [5]");
  EXPECT_EQ(
      error_of([&] { categorical_accuracy_count(from<f32>({2, 0}, {}), from<i32>({2}, {0, 0})); }),
      "categorical_accuracy_count: operand 0 has no classes, got shape [2, 0], expected "
      "[..., C] with C of 1 or more");
  EXPECT_EQ(error_of([&] { masked_categorical_accuracy_count(logits, labels, labels); }),
            "masked_categorical_accuracy_count: mask does not fit, got i32 [5], expected f32 [5]");
}

TEST_P(Index, IntegerScalarsArriveExactly) {
  EXPECT_EQ(full(engine(), {2}, 2147483647.0, DType::I32).read<i32>()[1], 2147483647);
  EXPECT_EQ(full(engine(), {1}, 16777217, DType::I32).read<i32>()[0], 16777217);
  EXPECT_EQ(full(engine(), {1}, -2147483648.0, DType::I32).read<i32>()[0],
            std::numeric_limits<i32>::min());
  EXPECT_EQ(full(engine(), {1}, 4294967295.0, DType::U32).read<u32>()[0], 0xffffffffu);
  EXPECT_EQ(full(engine(), {1}, 1e20, DType::U32).read<u32>()[0], 0xffffffffu);
  EXPECT_EQ(full(engine(), {1}, -3, DType::U32).read<u32>()[0], 0u);
  EXPECT_EQ(arange(engine(), 3, 100000007, DType::I32).read<i32>(),
            (std::vector<i32>{100000007, 100000008, 100000009}));
  EXPECT_EQ(pad(from<i32>({1}, {1}), 0, 1, 0, 16777217).read<i32>(),
            (std::vector<i32>{16777217, 1}));
}

}  // namespace
}  // namespace oa::matrix
