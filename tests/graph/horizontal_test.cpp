// Equal kernels on different memory run as one dispatch.
#include <gtest/gtest.h>

#include "oa/matrix/elementwise.h"
#include "oa/matrix/reduce.h"

namespace oa {
namespace {

std::vector<f32> ramp(i64 n) {
  std::vector<f32> v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<f32>(i % 97);
  return v;
}

TEST(Horizontal, UpdatesOfManyValuesAreOneDispatch) {
  Engine e = Engine::open({.device = "cpu", .guard_bands = true});
  std::vector<Matrix> values, slopes;
  for (i64 n : {2, 7, 64, 1000, 8192, 8193, 30000}) {
    values.push_back(Matrix::from_f32(e, {n}, ramp(n)));
    slopes.push_back(Matrix::from_f32(e, {n}, ramp(n)));
  }
  const ExecutionPlan plan = e.capture([&] {
    for (size_t i = 0; i < values.size(); ++i) values[i].assign(values[i] - slopes[i] * 0.5);
    return std::vector<Matrix>{};
  });
  EXPECT_EQ(plan.dispatch_count(), 1u);
  for (int i = 0; i < 2; ++i) e.submit(plan);
  for (size_t i = 0; i < values.size(); ++i) {
    const std::vector<f32> got = values[i].read_f32();
    for (size_t k = 0; k < got.size(); ++k) ASSERT_EQ(got[k], 0.0f) << "value " << i << " at " << k;
  }
  e.check_guards();
}

TEST(Horizontal, DependentUpdatesStayInOrder) {
  Engine e = Engine::open({.device = "cpu"});
  const Matrix a = Matrix::from_f32(e, {50}, ramp(50)), b = Matrix::from_f32(e, {60}, ramp(60));
  const Matrix c = matrix::sum(a * 2.0), d = matrix::sum(b * 2.0);
  const Matrix x = a + c, y = b + d;  // equal kernels, each after its own sum
  const f32 total = 50.0f * 49 / 2 * 2;
  EXPECT_EQ(x.read_f32()[3], 3 + total);
  EXPECT_EQ(y.read_f32()[3], 3 + 60.0f * 59 / 2 * 2);
}

TEST(Horizontal, OneKernelServesEverySize) {
  Engine e = Engine::open({.device = "cpu"});
  for (i64 n : {100, 37, 1, 5000}) {
    const std::vector<f32> y = (Matrix::from_f32(e, {n}, ramp(n)) * 3.0).read_f32();
    for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], 3.0f * static_cast<f32>(i % 97));
  }
}

}  // namespace
}  // namespace oa
