#include "oa/matrix/scan.h"

#include <cmath>
#include <limits>

#include "oa/matrix/movement.h"
#include "tests/matrix/devices.h"

namespace oa::matrix {
namespace {

using test::error_of;

class Scan : public test::OnDevice {};
OA_ON_DEVICES(Scan);

// Running sums of [outer, count, inner] in double precision.
template <class T>
std::vector<f64> reference(const std::vector<T>& x, i64 outer, i64 count, i64 inner,
                           CumsumOptions o) {
  std::vector<f64> y(x.size());
  for (i64 a = 0; a < outer; ++a) {
    for (i64 c = 0; c < inner; ++c) {
      f64 sum = 0;
      for (i64 i = 0; i < count; ++i) {
        const auto at =
            static_cast<size_t>((a * count + (o.reverse ? count - 1 - i : i)) * inner + c);
        if (o.exclusive) y[at] = sum;
        sum += static_cast<f64>(x[at]);
        if (!o.exclusive) y[at] = sum;
      }
    }
  }
  return y;
}

constexpr CumsumOptions kForms[] = {{false, false}, {true, false}, {false, true}, {true, true}};

TEST_P(Scan, EveryFormOfOddShapes) {
  i64 turn = 0;
  for (const Shape& s : {Shape{1, 1, 1}, Shape{2, 7, 1}, Shape{3, 40, 1}, Shape{1, 257, 1},
                         Shape{2, 5, 3}, Shape{1, 130, 17}, Shape{4, 1, 5}, Shape{1, 9001, 1},
                         Shape{2, 20000, 1}, Shape{1, 3000, 2}}) {
    const auto x = test::random_i32(7, static_cast<size_t>(s.elements()), -1000, 1000);
    for (const CumsumOptions& o : kForms) {
      if (turn++ % stride(3) != 0) continue;
      const auto want = reference(x, s[0], s[1], s[2], o);
      const auto got = cumsum(from<i32>(s, x), 1, o).read<i32>();
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(got[i], want[i]) << to_string(s) << " " << o.exclusive << o.reverse << " " << i;
      }
    }
  }
}

TEST_P(Scan, FloatsAgreeWithDoubles) {
  for (const Shape& s : {Shape{3, 1000, 1}, Shape{1, 30011, 1}, Shape{2, 700, 3}}) {
    const auto x = test::random_f32(8, static_cast<size_t>(s.elements()), -1, 1);
    for (const CumsumOptions& o : kForms) {
      const auto want = reference(x, s[0], s[1], s[2], o);
      const Matrix y = cumsum(from<f32>(s, x), 1, o);
      const auto got = y.read_f32();
      for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-4) << to_string(s) << i;
      EXPECT_EQ(cumsum(from<f32>(s, x), 1, o).read_f32(), got);  // the same bits in every run
    }
  }
}

TEST_P(Scan, DtypesAndSpecialValues) {
  EXPECT_EQ(cumsum(from<u32>({3}, {0xffffffffu, 2, 5}), 0).read<u32>(),
            (std::vector<u32>{0xffffffffu, 1, 6}));
  EXPECT_EQ(cumsum(from<u8>({3}, {200, 100, 1}), 0).read<u32>(), (std::vector<u32>{200, 300, 301}));
  EXPECT_EQ(cumsum(bools({4}, {1, 0, 1, 1}), -1, {.exclusive = true}).read<u32>(),
            (std::vector<u32>{0, 1, 1, 2}));
  const f32 inf = std::numeric_limits<f32>::infinity();
  const auto y = cumsum(from<f32>({5}, {1, inf, 2, -inf, 3}), 0).read_f32();
  EXPECT_EQ(y[0], 1);
  EXPECT_EQ(y[1], inf);
  EXPECT_EQ(y[2], inf);
  EXPECT_TRUE(std::isnan(y[3]) && std::isnan(y[4]));
  // Sums are held in 32 bits: 4096 ones reach 4096, though half floats stop counting at 2048.
  const Matrix halves = cast(full(engine(), {4096}, 1), DType::F16);
  EXPECT_EQ(slice(cast(cumsum(halves, 0), DType::F32), 0, 4095, 4096).read_f32()[0], 4096);
  EXPECT_EQ(cumsum(from<f32>({2, 0}, {}), 1).shape(), (Shape{2, 0}));
  EXPECT_EQ(cumsum(from<f32>({0, 2}, {}), 0).read_f32().size(), 0u);
}

TEST_P(Scan, WorksInsideAGraph) {
  const Matrix x = from<f32>({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ((cumsum(permute(x, {1, 0}) * 2.0, 0) + 1.0).read_f32(),
            (std::vector<f32>{3, 9, 7, 19, 13, 31}));
  EXPECT_EQ(error_of([&] { cumsum(x, 2); }),
            "cumsum: axis out of range, got 2, expected -2 to 1 for rank 2");
}

}  // namespace
}  // namespace oa::matrix
