// The mathematical functions of the kernel language with their references and stated error bounds
// (docs/math.md), and the check of results against them.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "oa/kernel/math.h"

namespace oa::test {

// Bounds in ulp of the exact result. `unfused` holds where fma rounds its product.
struct MathCase {
  const char* name;
  kernel::Value (*record)(const kernel::Value&);
  long double (*exact)(long double);
  f64 bound_f32;
  f64 bound_f64;
  f64 bound_unfused;
  f64 limit = std::numeric_limits<f64>::infinity();  // the bounds hold for |x| <= limit
  f64 least_unit = 0;  // without fma: the error is absolute below this result
};

inline const std::vector<MathCase>& math_cases() {
  using L = long double;
  static const std::vector<MathCase> cases = {
      {"exp", kernel::exp, [](L x) { return std::exp(x); }, 0.9, 0.9, 1.25},
      {"exp2", kernel::exp2, [](L x) { return std::exp2(x); }, 0.8, 0.8, 1.1},
      {"expm1", kernel::expm1, [](L x) { return std::expm1(x); }, 1.5, 1.8, 1.6},
      {"log", kernel::log, [](L x) { return std::log(x); }, 0.95, 0.95, 0.95},
      {"log2", kernel::log2, [](L x) { return std::log2(x); }, 1.1, 1.1, 1.9},
      {"log1p", kernel::log1p, [](L x) { return std::log1p(x); }, 1.6, 1.6, 1.6},
      {"sin", kernel::sin, [](L x) { return std::sin(x); }, 1.6, 1.6, 1.5, 1e5, 1},
      {"cos", kernel::cos, [](L x) { return std::cos(x); }, 1.6, 1.6, 1.5, 1e5, 1},
      {"tanh", kernel::tanh, [](L x) { return std::tanh(x); }, 2, 2, 2},
      {"sigmoid", kernel::sigmoid, [](L x) { return 1 / (1 + std::exp(-x)); }, 2, 2, 2.25},
      {"log_sigmoid", kernel::log_sigmoid,
       [](L x) { return x < 0 ? x - std::log1p(std::exp(x)) : -std::log1p(std::exp(-x)); }, 1.9,
       1.9, 2.5},
      {"softplus", kernel::softplus,
       [](L x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }, 1.9, 1.9,
       2.5},
      {"erf", kernel::erf, [](L x) { return std::erf(x); }, 1.8, 1.8, 2.5},
      {"rsqrt", kernel::rsqrt, [](L x) { return 1 / std::sqrt(x); }, 0.55, 0.55, 1},
  };
  return cases;
}

template <class T>
bool subnormal(T x) {
  return x != 0 && std::abs(x) < std::numeric_limits<T>::min();
}

// Error of y in units of the last place of the exact value r, which is never taken as subnormal.
template <class T>
f64 ulps(T y, long double r, f64 least_unit = 0) {
  int e;
  std::frexp(std::max<long double>(std::abs(r), std::numeric_limits<T>::min()), &e);
  const long double unit = std::ldexp(1.0L, e - std::numeric_limits<T>::digits);
  return static_cast<f64>(std::abs(y - r) / std::max<long double>(unit, least_unit));
}

// Whether y is a correct result for the exact value r within the bound.
template <class T>
bool is_close(T y, long double r, f64 bound, f64 least_unit = 0) {
  using Limits = std::numeric_limits<T>;
  if (std::isnan(r)) return std::isnan(y);
  if (std::isnan(y)) return false;
  if (std::isinf(y)) {
    return y * r > 0 &&
           std::abs(r) > Limits::max() * (1 - 2 * static_cast<long double>(Limits::epsilon()));
  }
  if (std::isinf(static_cast<T>(r))) {
    return y == static_cast<T>(std::copysign(Limits::max(), r)) && !std::isinf(r);
  }
  // Subnormal results may be 0 or inexact; exp and what rests on it gives 0 up to twice that size.
  const long double least = Limits::min();
  if (y == 0 && std::abs(r) < 2 * least) return true;
  if (std::abs(r) < least && std::abs(y) <= least && y * r > 0) return true;
  return ulps(y, r, least_unit) <= bound;
}

// Subnormal arguments may count as zero.
template <class T>
bool is_right(const MathCase& c, T x, T y, f64 bound, f64 least_unit = 0) {
  if (x == 0 && c.exact(x) == 0 && std::signbit(y) != std::signbit(c.exact(x))) return false;
  if (is_close(y, c.exact(x), bound, least_unit)) return true;
  return subnormal(x) && is_close(y, c.exact(std::copysign(T(0), x)), bound, least_unit);
}

// Every exponent and sign with `mantissas` mantissas each: both ends, and the rest spread unevenly.
template <class T>
std::vector<T> all_exponents(u32 mantissas) {
  using Word = std::conditional_t<sizeof(T) == 8, u64, u32>;
  constexpr int kBits = std::numeric_limits<T>::digits - 1;
  constexpr u32 kExponents = sizeof(T) == 8 ? 2048 : 256;
  const Word all = (Word{1} << kBits) - 1;
  std::vector<T> x;
  u64 state = 12345;
  for (u32 sign = 0; sign < 2; ++sign) {
    for (u32 e = 0; e < kExponents; ++e) {
      for (u32 m = 0; m < mantissas; ++m) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        Word mantissa = static_cast<Word>(state >> (64 - kBits));
        if (m == 0) mantissa = 0;
        if (m == 1) mantissa = all;
        if (m == 2) mantissa = 1;
        if (m == 3) mantissa = all / 2 + 1;
        x.push_back(
            std::bit_cast<T>(static_cast<Word>((static_cast<Word>(sign) << (sizeof(T) * 8 - 1)) |
                                               (static_cast<Word>(e) << kBits) | mantissa)));
      }
    }
  }
  return x;
}

// Runs y[i] = f(x[i]) somewhere.
template <class T>
using MathRun =
    std::function<std::vector<T>(kernel::Value (*)(const kernel::Value&), const std::vector<T>&)>;

// Every case over `x` (skipping what lies beyond a case's limit); tells the largest errors.
template <class T>
void check_math(const std::string& where, const std::vector<T>& x, const MathRun<T>& run,
                bool fused = true) {
  for (const MathCase& c : math_cases()) {
    const std::vector<T> y = run(c.record, x);
    ASSERT_EQ(y.size(), x.size());
    const f64 bound = !fused ? c.bound_unfused : sizeof(T) == 8 ? c.bound_f64 : c.bound_f32;
    const f64 unit = fused ? 0 : c.least_unit * std::numeric_limits<T>::epsilon() / 2;
    f64 worst = 0;
    int shown = 0;
    for (size_t i = 0; i < x.size() && shown < 5; ++i) {
      if (std::abs(x[i]) > c.limit && !std::isinf(x[i])) {
        if (!(std::abs(y[i]) <= 1)) {
          ADD_FAILURE() << where << " " << c.name << "(" << x[i] << ") = " << y[i];
          ++shown;
        }
        continue;
      }
      if (!is_right(c, x[i], y[i], bound, unit)) {
        ADD_FAILURE() << where << " " << c.name << "(" << std::hexfloat << x[i] << ") = " << y[i]
                      << std::defaultfloat << ", " << ulps(y[i], c.exact(x[i]), unit) << " ulp";
        ++shown;
      }
      const long double r = c.exact(x[i]);
      if (std::isfinite(y[i]) && y[i] != 0 && std::isfinite(r) && !subnormal(x[i])) {
        worst = std::max(worst, ulps(y[i], r, unit));
      }
    }
    testing::Test::RecordProperty(where + " " + c.name, std::to_string(worst));
    EXPECT_GT(worst, 0.3) << where << " " << c.name << ": nothing was measured";
  }
}

template <class T>
using PowRun = std::function<std::vector<T>(const std::vector<T>& x, const std::vector<T>& y)>;

// Every pair of edge values, with both signs, against the C library, whose special cases are those
// of IEEE 754.
template <class T>
void check_pow_edges(const std::string& where, const PowRun<T>& run, f64 bound) {
  using Limits = std::numeric_limits<T>;
  const T e = Limits::epsilon(), whole = 2 / e;  // from 2 / e on all numbers are even
  const std::vector<T> values = {0,
                                 1,
                                 2,
                                 3,
                                 T(0.5),
                                 T(2.5),
                                 1 + e,
                                 1 - e / 2,
                                 33,
                                 whole,
                                 whole - 1,
                                 whole + 2,
                                 Limits::max(),
                                 Limits::min(),
                                 Limits::infinity(),
                                 Limits::quiet_NaN(),
                                 T(1e-20),
                                 T(1e20),
                                 127,
                                 128,
                                 T(1.5)};
  std::vector<T> x, y;
  for (T a : values) {
    for (T b : values) {
      for (int signs = 0; signs < 4; ++signs) {
        x.push_back(signs & 1 ? -a : a);
        y.push_back(signs & 2 ? -b : b);
      }
    }
  }
  const std::vector<T> got = run(x, y);
  for (size_t i = 0; i < x.size(); ++i) {
    const long double exact =
        std::pow(static_cast<long double>(x[i]), static_cast<long double>(y[i]));
    EXPECT_TRUE(is_close(got[i], exact, bound))
        << where << ": pow(" << x[i] << ", " << y[i] << ") = " << got[i] << ", expected " << exact;
    if (got[i] == 0 || std::isinf(got[i])) {
      EXPECT_EQ(std::signbit(got[i]), std::signbit(exact))
          << where << ": pow(" << x[i] << ", " << y[i] << ") = " << got[i];
    }
  }
}

// Results over the whole range, of bases near 1, around 1 and anywhere.
template <class T>
void check_pow(const std::string& where, const PowRun<T>& run, f64 bound) {
  const f64 range = std::numeric_limits<T>::max_exponent;
  std::vector<T> x, y;
  u64 state = 7;
  auto next = [&] {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<f64>(state >> 11) * 0x1p-53;
  };
  while (x.size() < 30000) {
    const f64 spread[] = {0.5, 5e-4, range};
    const T base = static_cast<T>(std::exp2((next() * 2 - 1) * spread[x.size() % 3]));
    const T power =
        static_cast<T>((next() * 2 - 1) * range * 1.02 / std::log2(static_cast<f64>(base)));
    if (!std::isfinite(power) || subnormal(base)) continue;
    x.push_back(base);
    y.push_back(power);
  }
  const std::vector<T> got = run(x, y);
  for (size_t i = 0; i < x.size(); ++i) {
    const long double exact =
        std::pow(static_cast<long double>(x[i]), static_cast<long double>(y[i]));
    ASSERT_TRUE(is_close(got[i], exact, bound))
        << where << ": pow(" << x[i] << ", " << y[i] << ") = " << got[i] << ", "
        << ulps(got[i], exact) << " ulp";
  }
}

}  // namespace oa::test
