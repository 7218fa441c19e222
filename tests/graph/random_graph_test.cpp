// Random graphs: the fused program, the program of one kernel per op and the GPU path give the same
// numbers, whatever is held, assigned and read in between.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "oa/matrix/create.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/matmul.h"
#include "oa/matrix/movement.h"
#include "oa/matrix/reduce.h"
#include "oa/matrix/transcendental.h"
#include "tests/support/vulkan_name.h"

namespace oa {
namespace {

using namespace matrix;

// One random program; run on an engine it yields everything that it holds at the end.
class RandomProgram {
 public:
  explicit RandomProgram(u32 seed) : seed_(seed) {}

  std::vector<std::vector<f32>> run(Engine& engine) {
    random_.seed(seed_);
    values_.clear();
    results_.clear();
    const u32 leaves = 2 + pick(3);
    for (u32 i = 0; i < leaves; ++i) values_.push_back(leaf(engine));
    const u32 steps = 5 + pick(30);
    for (u32 i = 0; i < steps; ++i) step(engine);
    for (const Matrix& m : values_) results_.push_back(cast(m, DType::F32).read_f32());
    return std::move(results_);
  }

 private:
  u32 pick(u32 n) { return n == 0 ? 0 : random_() % n; }

  Shape random_shape() {
    static constexpr i64 kExtents[] = {1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 33};
    Shape s;
    const u32 rank = pick(4);
    for (u32 i = 0; i < rank; ++i) s.push_back(kExtents[pick(11)]);
    return s;
  }

  Matrix leaf(Engine& engine) {
    const Shape s = random_shape();
    std::vector<f32> v(static_cast<size_t>(s.elements()));
    for (f32& x : v) x = static_cast<f32>(static_cast<i32>(random_() % 2001) - 1000) * 1e-3f;
    return Matrix::from_f32(engine, s, v);
  }

  const Matrix& any() { return values_[pick(static_cast<u32>(values_.size()))]; }

  // A value that broadcasts with x.
  Matrix partner(Engine& engine, const Matrix& x) {
    for (u32 tries = 0; tries < 8; ++tries) {
      const Matrix& y = any();
      try {
        const Shape s = broadcast_shapes("test", x.shape(), y.shape());
        if (s.elements() <= 20000) return y;
      } catch (const Error&) {
      }
    }
    if (pick(2) && x.rank() > 0) return mean(x, static_cast<i64>(pick(x.rank())), true);
    return full(engine, {}, 0.5);
  }

  void step(Engine& engine) {
    const Matrix x = any();
    Matrix y;
    switch (pick(18)) {
      case 0: y = x + partner(engine, x); break;
      case 1: y = x * partner(engine, x); break;
      case 2: y = x - partner(engine, x); break;
      case 3: y = maximum(x, partner(engine, x)); break;
      case 4: y = tanh(x); break;
      case 5: y = scale(x, 0.75) + 0.125; break;
      case 6: y = where(less(x, full_like(x, 0.1)), x, neg(x)); break;
      case 7:
        if (x.rank() == 0) return;
        y = sum_or_mean(x);
        break;
      case 8:
        if (x.rank() == 0) return;
        y = softmax(x, static_cast<i64>(pick(x.rank())));
        break;
      case 9: y = x.reshape(random_factorisation(x.num_elements())); break;
      case 10: {
        Dims order;
        for (u32 i = 0; i < x.rank(); ++i) order.insert(pick(i + 1), i);
        y = permute(x, order);
        break;
      }
      case 11: {
        if (x.rank() == 0) return;
        const u32 axis = pick(x.rank());
        const i64 extent = x.shape()[axis];
        const i64 begin = pick(static_cast<u32>(extent));
        y = slice(x, axis, begin, begin + 1 + pick(static_cast<u32>(extent - begin)));
        break;
      }
      case 12:
        if (x.rank() == 0) return;
        y = flip(x, static_cast<i64>(pick(x.rank())));
        break;
      case 13:
        if (x.rank() == 0 || x.num_elements() > 5000) return;
        y = pad(x, static_cast<i64>(pick(x.rank())), pick(3), 1 + pick(2), 0.25);
        break;
      case 14:
        if (x.rank() == 0 || x.num_elements() > 5000) return;
        y = concat({x, scale(x, 0.5), x}, static_cast<i64>(pick(x.rank())));
        break;
      case 15:
        if (x.rank() < 2 || x.num_elements() > 5000) return;
        y = scale(mat_mul_nt(x, x), 0.1);
        break;
      case 16: {  // in place, sometimes a swap
        const u32 i = pick(static_cast<u32>(values_.size()));
        const u32 j = pick(static_cast<u32>(values_.size()));
        const Matrix a = values_[i], b = values_[j];
        if (a.shape() == b.shape() && i != j) {
          const Matrix old = pick(2) ? copy(a) : a * 1.0;
          a.assign(b);
          b.assign(old);
        } else {
          a.assign(tanh(a) + sum(a) * 1e-3);
        }
        return;
      }
      case 17:
        if (pick(3) == 0) engine.flush();
        if (pick(3) == 0) results_.push_back(x.read_f32());
        if (pick(2) && values_.size() > 2)
          values_.erase(values_.begin() + pick(static_cast<u32>(values_.size())));
        return;
    }
    values_.push_back(y);
  }

  Matrix sum_or_mean(const Matrix& x) {
    const u32 axis = pick(x.rank());
    switch (pick(5)) {
      case 0: return mean(x, axis, pick(2) == 1);
      case 1: return max(x, axis, pick(2) == 1);
      case 2: return scale(sum(x, axis, pick(2) == 1), 0.1);
      case 3: return mean(x);
      default: {
        Dims axes;
        for (u32 i = 0; i < x.rank(); ++i) {
          if (pick(2)) axes.push_back(i);
        }
        return mean(x, axes, pick(2) == 1);
      }
    }
  }

  Shape random_factorisation(i64 n) {
    Shape s;
    while (n > 1) {
      std::vector<i64> divisors;
      for (i64 d = 2; d <= n; ++d) {
        if (n % d == 0) divisors.push_back(d);
      }
      const i64 d = divisors[pick(static_cast<u32>(divisors.size()))];
      s.push_back(d);
      n /= d;
      if (pick(4) == 0) s.push_back(1);
    }
    return s;
  }

  u32 seed_;
  std::mt19937 random_;
  std::vector<Matrix> values_;
  std::vector<std::vector<f32>> results_;
};

void compare(u32 first, u32 last, const std::string& device) {
  Engine plain = Engine::open({.device = "cpu", .fuse = false});
  EngineOptions options{.device = test::device_under_test(device), .guard_bands = true};
  std::optional<Engine> fused;
  try {
    fused.emplace(Engine::open(options));
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::NoSuitableDevice) throw;
    GTEST_SKIP() << e.what();
  }
  for (u32 seed = first; seed < last; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    RandomProgram program(seed);
    const auto expected = program.run(plain);
    const auto got = program.run(*fused);
    ASSERT_EQ(expected.size(), got.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(expected[i].size(), got[i].size());
      for (size_t k = 0; k < got[i].size(); ++k) {
        const f32 bound = 2e-4f * std::max(1.0f, std::abs(expected[i][k]));
        ASSERT_NEAR(got[i][k], expected[i][k], bound) << "result " << i << " element " << k;
      }
    }
    fused->check_guards();
  }
}

TEST(RandomGraph, FusedEqualsUnfused) { compare(0, 120, "cpu"); }
// No race within or between dispatches, no access out of bounds, in either shape of kernels.
TEST(RandomGraph, RunsCleanlyWhereEverythingIsChecked) {
  compare(0, 60, "checked");
  compare(60, 100, "checked_gpu");
}
TEST(RandomGraph, VulkanEqualsCpu) { compare(0, 4, "lavapipe"); }

}  // namespace
}  // namespace oa
