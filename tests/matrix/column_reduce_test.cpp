// Reductions over leading axes: lanes own columns, several lanes share one on GPUs, long columns
// are cut into slices.
#include <algorithm>
#include <cmath>

#include "oa/matrix/elementwise.h"
#include "oa/matrix/reduce.h"
#include "tests/matrix/devices.h"

namespace oa::matrix {
namespace {

using test::random_f32;

class ColumnReduce : public test::OnDevice {};
OA_ON_DEVICES(ColumnReduce);

TEST_P(ColumnReduce, SumsExtremesAndVariancesOfEveryColumn) {
  struct Case {
    i64 rows, columns;
  };
  for (const Case& c : {Case{1, 3}, Case{17, 3}, Case{100, 40}, Case{1024, 32}, Case{4095, 5},
                        Case{4096, 33}, Case{5001, 70}, Case{9000, 1}}) {
    if (interpreted() && c.rows * c.columns > 40000) continue;
    const auto v = random_f32(1, static_cast<size_t>(c.rows * c.columns));
    const Matrix x = from<f32>({c.rows, c.columns}, v);
    const auto total = sum(x, 0).read_f32(), spread = variance(x, 0).read_f32();
    const auto largest = argmax(x, 0).read<i32>();
    // A pointwise function in front, and another dtype's states.
    const auto squares = sum(x * x, 0).read_f32();
    for (i64 column = 0; column < c.columns; ++column) {
      f64 s = 0, q = 0;
      i64 best = 0;
      const auto at = [&](i64 row) {
        return static_cast<f64>(v[static_cast<size_t>(row * c.columns + column)]);
      };
      for (i64 row = 0; row < c.rows; ++row) {
        s += at(row);
        q += at(row) * at(row);
        if (at(row) > at(best)) best = row;
      }
      const auto i = static_cast<size_t>(column);
      const f64 n = static_cast<f64>(c.rows), mean = s / n;
      EXPECT_NEAR(total[i], s, 1e-5 * std::max(1.0, std::sqrt(n))) << c.rows << " " << column;
      EXPECT_NEAR(squares[i], q, 1e-5 * std::max(1.0, q)) << c.rows << " " << column;
      EXPECT_NEAR(spread[i], q / n - mean * mean, 1e-5) << c.rows << " " << column;
      EXPECT_EQ(largest[i], static_cast<i32>(best)) << c.rows << " " << column;
    }
    EXPECT_EQ(sum(x, 0).read_f32(), total);
  }
}

TEST_P(ColumnReduce, ResultsPerElement) {
  for (const Shape& shape : {Shape{9, 5}, Shape{130, 37}, Shape{3, 40, 33}}) {
    const auto v = random_f32(2, static_cast<size_t>(shape.elements()));
    const i64 axis = static_cast<i64>(shape.rank()) - 2;
    const auto y = softmax(from<f32>(shape, v), axis).read_f32();
    const i64 columns = shape.back(), rows = shape[shape.rank() - 2];
    for (i64 block = 0; block < shape.elements() / (rows * columns); ++block) {
      for (i64 column = 0; column < columns; ++column) {
        const auto at = [&](i64 row) {
          return static_cast<size_t>((block * rows + row) * columns + column);
        };
        f64 total = 0;
        for (i64 row = 0; row < rows; ++row) total += std::exp(static_cast<f64>(v[at(row)]));
        for (i64 row = 0; row < rows; ++row) {
          ASSERT_NEAR(y[at(row)], std::exp(static_cast<f64>(v[at(row)])) / total, 1e-6);
        }
      }
    }
  }
}

}  // namespace
}  // namespace oa::matrix
