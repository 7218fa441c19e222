// Every arithmetic instruction on every type, varying and uniform, against plain C++.
#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <limits>

#include "oa/core/dtype.h"
#include "tests/codegen/gang.h"

namespace oa::codegen {
namespace {

using namespace oa::kernel;

template <class T>
constexpr Scalar scalar_of() {
  if constexpr (std::is_same_v<T, f32>) return Scalar::F32;
  if constexpr (std::is_same_v<T, f64>) return Scalar::F64;
  if constexpr (std::is_same_v<T, i32>) return Scalar::I32;
  if constexpr (std::is_same_v<T, u32>) return Scalar::U32;
  if constexpr (std::is_same_v<T, i64>) return Scalar::I64;
  if constexpr (std::is_same_v<T, u64>) return Scalar::U64;
  if constexpr (std::is_same_v<T, u8>) return Scalar::Bool;
}

template <class T>
std::vector<T> samples() {
  if constexpr (std::is_same_v<T, u8>) {
    return {0, 1};
  } else if constexpr (std::is_floating_point_v<T>) {
    using L = std::numeric_limits<T>;
    return {0,
            T(-0.0),
            1,
            -1,
            T(0.5),
            T(-0.5),
            T(1.5),
            T(2.5),
            T(-2.5),
            T(3.75),
            T(-1e10),
            T(1e10),
            T(2147483647),
            T(2147483648.0),
            T(-2147483648.0),
            T(4294967295.0),
            T(4294967296.0),
            T(1e30),
            T(-1e30),
            L::infinity(),
            -L::infinity(),
            L::quiet_NaN(),
            L::max(),
            L::lowest(),
            L::min(),
            T(0.1),
            T(7),
            T(-3)};
  } else {
    using L = std::numeric_limits<T>;
    return {0,
            1,
            2,
            3,
            7,
            10,
            31,
            100,
            12345,
            static_cast<T>(-1),
            static_cast<T>(-2),
            static_cast<T>(-7),
            L::max(),
            L::min(),
            static_cast<T>(L::max() - 1),
            static_cast<T>(L::min() + 1),
            static_cast<T>(0x80000000u),
            static_cast<T>(1u << 20)};
  }
}

template <class T>
bool same(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) && std::isnan(b)) return true;
    return a == b && std::signbit(a) == std::signbit(b);
  }
  return a == b;
}

// All widths on the host; one on the other targets, since code generation takes the test's time.
std::vector<u32> widths_on(const CpuTarget& target) {
  return target.cpu == host().cpu ? std::vector<u32>{1, 16} : std::vector<u32>{8};
}

// Whole gangs need no tail, which halves the code.
template <class T>
void pad(std::vector<T>& values) {
  while (values.size() % 32) values.push_back(values.front());
}

// Runs `op` over all pairs of samples: both operands varying, then each of them uniform.
template <class T, class R>
void check_binary(const char* what, const std::function<Value(Value, Value)>& op,
                  const std::function<R(T, T)>& want,
                  const std::function<bool(T, T)>& defined = {}) {
  std::vector<T> xs = samples<T>();
  pad(xs);
  std::vector<T> a, b;
  for (const T x : xs) {
    for (const T y : xs) a.push_back(x), b.push_back(y);
  }
  const u32 n = static_cast<u32>(a.size()), per = static_cast<u32>(xs.size());
  for (const CpuTarget& target : targets()) {
    for (const u32 width : widths_on(target)) {
      std::vector<R> out(n), left(n), right(n);
      const Kernel k = traced(width, [&] {
        const Buffer x = param_buffer(scalar_of<T>()), y = param_buffer(scalar_of<T>());
        const Buffer o = param_buffer(scalar_of<R>()), l = param_buffer(scalar_of<R>()),
                     r = param_buffer(scalar_of<R>());
        For(lane(), U32(n), U32(oa::kernel::width()), [&](U32 i) { o[i] = op(x[i], y[i]); });
        For(U32(0), U32(per), U32(1), [&](U32 j) {
          For(lane(), U32(per), U32(oa::kernel::width()), [&](U32 i) {
            l[j * per + i] = op(x[j * per], y[j * per + i]);  // uniform left side
            r[i * per + j] = op(x[i * per + j], y[j]);        // uniform right side
          });
        });
      });
      run_on(target, k, 1, {word(a), word(b), word(out), word(left), word(right)});
      for (u32 i = 0; i < n; ++i) {
        if (defined && !defined(a[i], b[i])) continue;
        const R expected = want(a[i], b[i]);
        ASSERT_TRUE(same(out[i], expected))
            << what << "(" << +a[i] << ", " << +b[i] << ") = " << +out[i] << ", expected "
            << +expected << ", width " << width << " " << target.cpu;
        ASSERT_TRUE(same(left[i], expected)) << what << " left uniform " << +a[i] << " " << +b[i];
        ASSERT_TRUE(same(right[i], expected)) << what << " right uniform " << +a[i] << " " << +b[i];
      }
    }
  }
}

template <class T, class R>
void check_unary(const char* what, const std::function<Value(Value)>& op,
                 const std::function<R(T)>& want) {
  std::vector<T> xs = samples<T>();
  pad(xs);
  const u32 n = static_cast<u32>(xs.size());
  for (const CpuTarget& target : targets()) {
    for (const u32 width : widths_on(target)) {
      std::vector<T> in = xs;
      std::vector<R> out(n), one(n);
      const Kernel k = traced(width, [&] {
        const Buffer x = param_buffer(scalar_of<T>()), o = param_buffer(scalar_of<R>()),
                     u = param_buffer(scalar_of<R>());
        For(lane(), U32(n), U32(oa::kernel::width()), [&](U32 i) { o[i] = op(x[i]); });
        For(U32(0), U32(n), U32(1), [&](U32 i) { u[i] = op(x[i]); });
      });
      run_on(target, k, 1, {word(in), word(out), word(one)});
      for (u32 i = 0; i < n; ++i) {
        const R expected = want(xs[i]);
        ASSERT_TRUE(same(out[i], expected))
            << what << "(" << +xs[i] << ") = " << +out[i] << ", expected " << +expected
            << ", width " << width << " " << target.cpu;
        ASSERT_TRUE(same(one[i], expected)) << what << " uniform (" << +xs[i] << ") = " << +one[i]
                                            << ", expected " << +expected << " " << target.cpu;
      }
    }
  }
}

template <class T>
class Numbers : public testing::Test {};
using NumberTypes = testing::Types<f32, f64, i32, u32, i64, u64>;
TYPED_TEST_SUITE(Numbers, NumberTypes);

template <class T>
T wrap(u64 x) {
  return static_cast<T>(x);
}

TYPED_TEST(Numbers, AddSubMul) {
  using T = TypeParam;
  const auto number = [](auto f) {
    return [f](T a, T b) -> T {
      if constexpr (std::is_floating_point_v<T>)
        return static_cast<T>(f(a, b));
      else
        return wrap<T>(f(static_cast<u64>(a), static_cast<u64>(b)));
    };
  };
  check_binary<T, T>(
      "add", [](Value a, Value b) { return a + b; }, number([](auto a, auto b) { return a + b; }));
  check_binary<T, T>(
      "sub", [](Value a, Value b) { return a - b; }, number([](auto a, auto b) { return a - b; }));
  check_binary<T, T>(
      "mul", [](Value a, Value b) { return a * b; }, number([](auto a, auto b) { return a * b; }));
}

TYPED_TEST(Numbers, Division) {
  using T = TypeParam;
  if constexpr (std::is_floating_point_v<T>) {
    check_binary<T, T>(
        "div", [](Value a, Value b) { return a / b; }, [](T a, T b) { return a / b; });
    check_binary<T, T>(
        "rem", [](Value a, Value b) { return a % b; }, [](T a, T b) { return std::fmod(a, b); });
  } else {
    // Division by zero and INT_MIN / -1 must not trap; the latter wraps.
    const auto defined = [](T, T b) { return b != 0; };
    const auto overflow = [](T a, T b) {
      return std::is_signed_v<T> && a == std::numeric_limits<T>::min() && b == static_cast<T>(-1);
    };
    check_binary<T, T>(
        "div", [](Value a, Value b) { return a / b; },
        [&](T a, T b) -> T { return overflow(a, b) ? a : static_cast<T>(a / b); }, defined);
    check_binary<T, T>(
        "rem", [](Value a, Value b) { return a % b; },
        [&](T a, T b) -> T { return overflow(a, b) ? T{0} : static_cast<T>(a % b); }, defined);
  }
}

TYPED_TEST(Numbers, MinMaxKeepNaN) {
  using T = TypeParam;
  const auto nan = [](T a, T b) { return a != a || b != b; };
  // The sign of a zero result is unspecified.
  const auto defined = [](T a, T b) { return !(a == 0 && b == 0); };
  const T quiet = std::numeric_limits<T>::quiet_NaN();
  check_binary<T, T>(
      "min", [](Value a, Value b) { return min(a, b); },
      [&](T a, T b) { return nan(a, b) ? quiet : std::min(a, b); }, defined);
  check_binary<T, T>(
      "max", [](Value a, Value b) { return max(a, b); },
      [&](T a, T b) { return nan(a, b) ? quiet : std::max(a, b); }, defined);
}

TYPED_TEST(Numbers, MinMaxWithConstantsKeepNaN) {
  using T = TypeParam;
  if constexpr (std::is_floating_point_v<T>) {
    const Scalar s = scalar_of<T>();
    const T quiet = std::numeric_limits<T>::quiet_NaN();
    check_unary<T, T>(
        "max(x, 1)", [&](Value a) { return max(a, constant(s, 1)); },
        [](T a) { return a != a ? a : std::max(a, T(1)); });
    check_unary<T, T>(
        "min(1, x)", [&](Value a) { return min(constant(s, 1), a); },
        [](T a) { return a != a ? a : std::min(a, T(1)); });
    check_unary<T, T>(
        "max(x, nan)", [&](Value a) { return max(a, constant(s, NAN)); }, [&](T) { return quiet; });
    check_unary<T, T>(
        "min(nan, x)", [&](Value a) { return min(constant(s, NAN), a); }, [&](T) { return quiet; });
  }
}

TYPED_TEST(Numbers, Comparisons) {
  using T = TypeParam;
  check_binary<T, u8>(
      "eq", [](Value a, Value b) { return a == b; }, [](T a, T b) { return a == b; });
  check_binary<T, u8>(
      "ne", [](Value a, Value b) { return a != b; }, [](T a, T b) { return a != b; });
  check_binary<T, u8>("lt", [](Value a, Value b) { return a < b; }, [](T a, T b) { return a < b; });
  check_binary<T, u8>(
      "le", [](Value a, Value b) { return a <= b; }, [](T a, T b) { return a <= b; });
  check_binary<T, u8>("gt", [](Value a, Value b) { return a > b; }, [](T a, T b) { return a > b; });
  check_binary<T, u8>(
      "ge", [](Value a, Value b) { return a >= b; }, [](T a, T b) { return a >= b; });
}

TYPED_TEST(Numbers, BitsAndShifts) {
  using T = TypeParam;
  if constexpr (std::is_integral_v<T>) {
    check_binary<T, T>(
        "and", [](Value a, Value b) { return a & b; }, [](T a, T b) { return T(a & b); });
    check_binary<T, T>(
        "or", [](Value a, Value b) { return a | b; }, [](T a, T b) { return T(a | b); });
    check_binary<T, T>(
        "xor", [](Value a, Value b) { return a ^ b; }, [](T a, T b) { return T(a ^ b); });
    check_unary<T, T>("not", [](Value a) { return ~a; }, [](T a) { return T(~a); });
    const auto defined = [](T, T b) { return b >= 0 && b < T(8 * sizeof(T)); };
    using U = std::make_unsigned_t<T>;
    check_binary<T, T>(
        "shl", [](Value a, Value b) { return a << b; }, [](T a, T b) { return T(U(a) << b); },
        defined);
    check_binary<T, T>(
        "shr", [](Value a, Value b) { return a >> b; }, [](T a, T b) { return T(a >> b); },
        defined);
  }
}

TYPED_TEST(Numbers, SignAndRounding) {
  using T = TypeParam;
  check_unary<T, T>(
      "neg", [](Value a) { return -a; },
      [](T a) -> T {
        if constexpr (std::is_floating_point_v<T>)
          return -a;
        else
          return wrap<T>(0 - static_cast<u64>(a));
      });
  check_unary<T, T>(
      "abs", [](Value a) { return abs(a); },
      [](T a) -> T {
        if constexpr (std::is_floating_point_v<T>)
          return std::fabs(a);
        else
          return std::is_signed_v<T> && a < T(0) ? wrap<T>(0 - static_cast<u64>(a)) : a;
      });
  if constexpr (std::is_floating_point_v<T>) {
    check_unary<T, T>("floor", [](Value a) { return floor(a); }, [](T a) { return std::floor(a); });
    check_unary<T, T>("ceil", [](Value a) { return ceil(a); }, [](T a) { return std::ceil(a); });
    check_unary<T, T>("trunc", [](Value a) { return trunc(a); }, [](T a) { return std::trunc(a); });
    check_unary<T, T>(
        "round_even", [](Value a) { return round_even(a); }, [](T a) { return std::nearbyint(a); });
    check_unary<T, T>("sqrt", [](Value a) { return sqrt(a); }, [](T a) { return std::sqrt(a); });
    check_unary<T, u8>(
        "is_nan", [](Value a) { return is_nan(a); }, [](T a) { return std::isnan(a); });
  }
}

template <class From, class To>
To converted(From x) {
  if constexpr (std::is_same_v<To, u8>) {
    return x != From(0);
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    using L = std::numeric_limits<To>;
    if (std::isnan(x)) return 0;
    const long double t = std::trunc(static_cast<long double>(x));
    if (t <= static_cast<long double>(L::min())) return L::min();
    if (t >= static_cast<long double>(L::max())) return L::max();
    return static_cast<To>(t);
  } else {
    return static_cast<To>(x);
  }
}

template <class From, class To>
void check_cast() {
  if constexpr (!std::is_same_v<From, To>) {
    check_unary<From, To>(
        "cast", [](Value a) { return cast(a, scalar_of<To>()); }, converted<From, To>);
  }
}

TYPED_TEST(Numbers, CastsSaturate) {
  using T = TypeParam;
  check_cast<T, f32>();
  check_cast<T, f64>();
  check_cast<T, i32>();
  check_cast<T, u32>();
  check_cast<T, i64>();
  check_cast<T, u64>();
  check_cast<T, u8>();
  check_cast<u8, T>();
}

TEST(LlvmArithmetic, Bitcasts) {
  check_unary<f32, u32>(
      "bits", [](Value a) { return bitcast(a, Scalar::U32); },
      [](f32 a) {
        return std::isnan(a) ? std::bit_cast<u32>(std::numeric_limits<f32>::quiet_NaN())
                             : std::bit_cast<u32>(a);
      });
  check_unary<u32, f32>(
      "float", [](Value a) { return bitcast(a, Scalar::F32); },
      [](u32 a) { return std::bit_cast<f32>(a); });
  check_unary<i64, f64>(
      "double", [](Value a) { return bitcast(a, Scalar::F64); },
      [](i64 a) { return std::bit_cast<f64>(a); });
  check_unary<u32, i32>(
      "signed", [](Value a) { return bitcast(a, Scalar::I32); },
      [](u32 a) { return static_cast<i32>(a); });
}

TEST(LlvmArithmetic, FmaRoundsOnce) {
  // 1 + 2^-12 squared less its rounded square is the rounding error, which two roundings lose.
  const f32 x = 1.0f + 0x1p-12f;
  for (const CpuTarget& target : targets()) {
    for (const u32 width : {1u, 8u, 16u}) {
      std::vector<f32> in(width, x), out(width), plain(width);
      const Kernel k = traced(width, [] {
        const Buffer a = param_buffer(Scalar::F32), o = param_buffer(Scalar::F32),
                     p = param_buffer(Scalar::F32);
        const F32 v(a[lane()]);
        o[lane()] = fma(v, v, -(v * v));
        p[lane()] = v * v - v * v;
      });
      run_on(target, k, 1, {word(in), word(out), word(plain)});
      for (u32 i = 0; i < width; ++i) {
        EXPECT_EQ(out[i], std::fma(x, x, -(x * x)));
        EXPECT_NE(out[i], 0.0f);
        EXPECT_EQ(plain[i], 0.0f);
      }
    }
  }
}

TEST(LlvmArithmetic, ProductsAndSumsAreNotContracted) {
  const f32 x = 1.0f + 0x1p-12f;
  std::vector<f32> in(16, x), out(16);
  run(
      16, 1,
      [] {
        const Buffer a = param_buffer(Scalar::F32), o = param_buffer(Scalar::F32);
        const F32 v(a[lane()]);
        o[lane()] = v * v + F32(-1.0f);
      },
      in, out);
  volatile f32 square = x * x;
  for (const f32 v : out) EXPECT_EQ(v, square - 1.0f);
}

TEST(LlvmArithmetic, MulHiGivesTheUpperHalf) {
  check_binary<u32, u32>(
      "mul_hi", [](Value a, Value b) { return binary(Op::MulHi, a, b); },
      [](u32 a, u32 b) { return static_cast<u32>((u64{a} * b) >> 32); });
}

TEST(LlvmArithmetic, BoolLogic) {
  check_binary<u8, u8>(
      "and", [](Value a, Value b) { return a & b; }, [](u8 a, u8 b) { return u8(a & b); });
  check_binary<u8, u8>(
      "or", [](Value a, Value b) { return a | b; }, [](u8 a, u8 b) { return u8(a | b); });
  check_binary<u8, u8>(
      "xor", [](Value a, Value b) { return a ^ b; }, [](u8 a, u8 b) { return u8(a ^ b); });
  check_binary<u8, u8>(
      "eq", [](Value a, Value b) { return a == b; }, [](u8 a, u8 b) { return u8(a == b); });
  check_unary<u8, u8>("not", [](Value a) { return !a; }, [](u8 a) { return u8(!a); });
}

TEST(LlvmArithmetic, VectorDivisionOf32BitIntegersIsExact) {
  constexpr u32 kCount = 4096;
  std::vector<u32> a(kCount), b(kCount), q(kCount), r(kCount);
  u64 seed = 1;
  const auto next = [&] {
    return static_cast<u32>((seed = seed * 6364136223846793005ull + 1442695040888963407ull) >> 32);
  };
  for (u32 i = 0; i < kCount; ++i) {
    b[i] = ((next() >> (next() % 31)) | 1) + 1;
    a[i] = i % 3 == 0 ? next() : b[i] * (next() % (~0u / b[i])) - i % 2;  // just below a multiple
  }
  for (const CpuTarget& target : targets()) {
    for (const Scalar s : {Scalar::U32, Scalar::I32}) {
      const Kernel k = traced(16, [&] {
        const Buffer x = param_buffer(s), y = param_buffer(s), o = param_buffer(s),
                     m = param_buffer(s);
        For(lane(), U32(kCount), U32(16), [&](U32 i) {
          o[i] = Value(x[i]) / Value(y[i]);
          m[i] = Value(x[i]) % Value(y[i]);
        });
      });
      run_on(target, k, 1, {word(a), word(b), word(q), word(r)});
      for (u32 i = 0; i < kCount; ++i) {
        if (s == Scalar::U32) {
          ASSERT_EQ(q[i], a[i] / b[i]) << a[i] << " / " << b[i];
          ASSERT_EQ(r[i], a[i] % b[i]);
        } else {
          const i64 x = static_cast<i32>(a[i]), y = static_cast<i32>(b[i]);
          ASSERT_EQ(q[i], static_cast<u32>(x / y)) << x << " / " << y;
          ASSERT_EQ(r[i], static_cast<u32>(x % y));
        }
      }
    }
  }
}

}  // namespace
}  // namespace oa::codegen
