// The mathematical functions and random numbers on a Vulkan device.
#include "oa/core/random.h"
#include "oa/kernel/philox.h"
#include "tests/device/vulkan_run.h"
#include "tests/support/math_cases.h"

namespace oa::device::test {
namespace {

using namespace oa::kernel;

class VulkanMath : public VulkanTest {
 protected:
  // y[i] = f(x[i], z[i])
  template <class T>
  std::vector<T> map(const std::function<Value(const Value&, const Value&)>& f,
                     const std::vector<T>& x, const std::vector<T>& z) const {
    const Scalar s = sizeof(T) == 8 ? Scalar::F64 : Scalar::F32;
    const Kernel k = traced([&] {
      Buffer a = param_buffer(s), b = param_buffer(s), c = param_buffer(s);
      U32 n = param_u32();
      For(group() * width() + lane(), n, group_count() * width(),
          [&](U32 i) { c[i] = f(a[i], b[i]); });
    });
    Bytes in = bytes_of(x), second = bytes_of(z), out(in.size());
    run(k, 64, {&in, &second, &out}, {x.size()});
    return values_of<T>(out);
  }

  template <class T>
  oa::test::MathRun<T> unary() const {
    return [this](Value (*f)(const Value&), const std::vector<T>& x) {
      return this->map<T>([f](auto& a, auto&) { return f(a); }, x, x);
    };
  }

  template <class T>
  oa::test::PowRun<T> power() const {
    return [this](const std::vector<T>& x, const std::vector<T>& y) {
      return this->map<T>([](auto& a, auto& b) { return pow(a, b); }, x, y);
    };
  }

  // Whether fma rounds once here.
  template <class T>
  bool fused() const {
    const T h =
        std::ldexp(T(1), -(std::numeric_limits<T>::digits + 1) / 2);  // h^2 is lost beside 1
    return map<T>([](auto& a, auto& b) { return fma(a, a, b); }, {1 + h}, {-(1 + 2 * h)})[0] ==
           h * h;
  }
};

TEST_F(VulkanMath, IsWithinItsBounds) {
  oa::test::check_math<f32>("vulkan", oa::test::all_exponents<f32>(16), unary<f32>(), fused<f32>());
}

TEST_F(VulkanMath, IsWithinItsBoundsInDoublePrecision) {
  if (!target().f64) GTEST_SKIP() << "no f64";
  oa::test::check_math<f64>("vulkan", oa::test::all_exponents<f64>(4), unary<f64>(), fused<f64>());
}

TEST_F(VulkanMath, PowHasEverySpecialCaseOfC) {
  oa::test::check_pow_edges<f32>("vulkan", power<f32>(), 1.75);
  oa::test::check_pow<f32>("vulkan", power<f32>(), fused<f32>() ? 1.25 : 1.75);
}

TEST_F(VulkanMath, PhiloxGivesTheWordsOfTheHost) {
  const u32 n = 100;
  Bytes out(4 * n * sizeof(u32));
  run(traced([] {
        Buffer words = param_buffer(Scalar::U32);
        U32 count = param_u32(), k0 = param_u32(), k1 = param_u32();
        For(lane(), count, U32(width()), [&](U32 i) {
          const kernel::PhiloxCounter w = kernel::philox4x32({i, 1u, 2u, ~0u}, {k0, k1});
          for (u32 j = 0; j < 4; ++j) words[i * 4 + j] = w[j];
        });
      }),
      1, {&out}, {n, 0xdeadbeef, 0x12345678});
  const std::vector<u32> words = values_of<u32>(out);
  for (u32 i = 0; i < n; ++i) {
    const oa::PhiloxCounter expected = oa::philox4x32({i, 1, 2, ~0u}, {0xdeadbeef, 0x12345678});
    for (u32 j = 0; j < 4; ++j) ASSERT_EQ(words[4 * i + j], expected[j]) << i;
  }
}

TEST_F(VulkanMath, NormalValuesAreThoseOfTheHost) {
  const u32 n = 1000;
  Bytes out(2 * n * sizeof(f32));
  run(traced([] {
        Buffer values = param_buffer(Scalar::F32);
        U32 count = param_u32();
        For(lane(), count, U32(width()), [&](U32 i) {
          const kernel::PhiloxCounter w = kernel::philox4x32({i, 0u, 0u, 0u}, {3u, 4u});
          const auto [x, y] = kernel::normal_pair(w[0], w[1]);
          values[i * 2] = x;
          values[i * 2 + 1] = y;
        });
      }),
      1, {&out}, {n});
  const std::vector<f32> values = values_of<f32>(out);
  for (u32 i = 0; i < n; ++i) {
    const oa::PhiloxCounter w = oa::philox4x32({i, 0, 0, 0}, {3, 4});
    const auto [x, y] = oa::normal_pair(w[0], w[1]);
    ASSERT_NEAR(values[2 * i], x, 1e-14 + std::abs(x) * 6e-7);
    ASSERT_NEAR(values[2 * i + 1], y, 1e-14 + std::abs(y) * 6e-7);
  }
}

}  // namespace
}  // namespace oa::device::test
