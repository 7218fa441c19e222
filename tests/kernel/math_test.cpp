// The mathematical functions: every exponent against libm, on the interpreter and as native code
// with and without flushed subnormals; special values; symmetries.
#include "oa/kernel/math.h"

#include <gtest/gtest.h>

#include <map>
#if defined(__SSE__)
#include <immintrin.h>
#endif

#include "oa/codegen/llvm/compile.h"
#include "oa/core/error.h"
#include "oa/kernel/interpret.h"
#include "oa/kernel/verify.h"
#include "tests/support/math_cases.h"

namespace oa::kernel {
namespace {

using test::all_exponents;

constexpr f32 kInf = std::numeric_limits<f32>::infinity();
constexpr f32 kNaN = std::numeric_limits<f32>::quiet_NaN();
constexpr f32 kMax = std::numeric_limits<f32>::max();
constexpr f32 kMin = std::numeric_limits<f32>::min();

using Unary = Value (*)(const Value&);
using Binary = Value (*)(const Value&, const Value&);

template <class T>
constexpr Scalar kScalar = sizeof(T) == 8 ? Scalar::F64 : Scalar::F32;

// y[i] = f(x[i], z[i]) for i < n.
template <class T>
Kernel elementwise(const Target& target,
                   const std::function<Value(const Value&, const Value&)>& f) {
  return trace("elementwise", target, 16, [&] {
    Buffer x = param_buffer(kScalar<T>), z = param_buffer(kScalar<T>), y = param_buffer(kScalar<T>);
    U32 n = param_u32();
    For(group() * kernel::width() + lane(), n, group_count() * kernel::width(),
        [&](U32 i) { y[i] = f(x[i], z[i]); });
  });
}

template <class T>
struct Data {
  std::vector<T> x, z, y;
  std::vector<u64> args() {
    z.resize(x.size());
    y.resize(x.size());
    return {reinterpret_cast<u64>(x.data()), reinterpret_cast<u64>(z.data()),
            reinterpret_cast<u64>(y.data()), x.size()};
  }
};

template <class T>
void interpreted(const Kernel& k, Data<T>& run) {
  verify(k);
  const std::vector<u64> args = run.args();
  const u64 bytes = run.x.size() * sizeof(T);
  const BufferView views[] = {{args[0], run.x.data(), bytes},
                              {args[1], run.z.data(), bytes},
                              {args[2], run.y.data(), bytes}};
  interpret(k, args, views, 1, {.check_races = false, .check_group_races = false});
}

// Subnormal numbers count as zero in the scope of this, as in the threads of the CPU device.
class FlushSubnormals {
 public:
#if defined(__SSE__)
  explicit FlushSubnormals(bool flush) : saved_(_mm_getcsr()) {
    if (flush) _mm_setcsr(saved_ | 0x8040);
  }
  ~FlushSubnormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#else
  explicit FlushSubnormals(bool) {}
#endif
};

std::unique_ptr<codegen::LoadedCode> load(const Kernel& k) {
  static codegen::ObjectLoader loader;
  static const codegen::CpuTarget host = codegen::CpuTarget::host();
  return loader.load(codegen::compile_object(k, host, "elementwise"), "elementwise");
}

template <class T>
void call(const codegen::LoadedCode& code, Data<T>& run, bool flush) {
  const std::vector<u64> args = run.args();
  FlushSubnormals scope(flush);
  code.function()(args.data(), 0, 1, 1);
}

template <class T>
void compiled(const Kernel& k, Data<T>& run, bool flush) {
  call(*load(k), run, flush);
}

// Each function is compiled once for all tests.
template <class T>
void compiled(Unary f, Data<T>& run, bool flush) {
  static std::map<Unary, std::unique_ptr<codegen::LoadedCode>> codes;
  auto& code = codes[f];
  if (!code) code = load(elementwise<T>(Target{}, [&](auto& a, auto&) { return f(a); }));
  call(*code, run, flush);
}

template <class T>
test::MathRun<T> on_interpreter() {
  return [](Unary f, const std::vector<T>& x) {
    Data<T> run{.x = x};
    interpreted(elementwise<T>(Target{}, [&](auto& a, auto&) { return f(a); }), run);
    return run.y;
  };
}

template <class T>
test::MathRun<T> on_cpu(bool flush) {
  return [flush](Unary f, const std::vector<T>& x) {
    Data<T> run{.x = x};
    compiled(f, run, flush);
    return run.y;
  };
}

f32 once(Unary f, f32 x) {
  Data<f32> run{.x = {x}};
  compiled(f, run, true);
  return run.y[0];
}

TEST(Math, IsWithinItsBoundsOnTheInterpreter) {
  test::check_math<f32>("interpreter", all_exponents<f32>(8), on_interpreter<f32>());
}

TEST(Math, IsWithinItsBoundsAsNativeCode) {
  test::check_math<f32>("cpu", all_exponents<f32>(128), on_cpu<f32>(false));
  test::check_math<f32>("cpu, flushing", all_exponents<f32>(128), on_cpu<f32>(true));
}

// Where most arguments are: all of them between 2^-12 and 2^7 in steps.
TEST(Math, IsWithinItsBoundsAtCommonArguments) {
  std::vector<f32> x;
  for (u32 bits = 0x39800000; bits < 0x43000000; bits += 1531) {
    x.push_back(std::bit_cast<f32>(bits));
    x.push_back(-x.back());
  }
  test::check_math<f32>("cpu", x, on_cpu<f32>(true));
}

TEST(Math, IsWithinItsBoundsInDoublePrecision) {
  test::check_math<f64>("cpu", all_exponents<f64>(8), on_cpu<f64>(true));
  std::vector<f64> x;
  u64 state = 1;
  for (int i = 0; i < 20000; ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    x.push_back(
        std::ldexp(1 + static_cast<f64>(state >> 12) * 0x1p-52, static_cast<int>(state % 23) - 13));
    if (state & 0x100000) x.back() = -x.back();
  }
  test::check_math<f64>("cpu", x, on_cpu<f64>(false));
}

TEST(Math, HasTheSpecialValuesOfC) {
  struct Special {
    Unary f;
    f32 x, y;
  };
  const f32 sub = kMin / 2;
  const std::vector<Special> specials = {
      {exp, 0, 1},
      {exp, -0.0f, 1},
      {exp, kInf, kInf},
      {exp, -kInf, 0},
      {exp, 88.8f, kInf},
      {exp, -88, 0},
      {exp, -1e30f, 0},
      {exp, 1e30f, kInf},
      {exp, kMax, kInf},
      {exp, -kMax, 0},
      {exp2, 0, 1},
      {exp2, 127, 0x1p127f},
      {exp2, 128, kInf},
      {exp2, -126, kMin},
      {exp2, -127.5f, 0},
      {exp2, -kInf, 0},
      {exp2, kInf, kInf},
      {exp2, -kMax, 0},
      {exp2, 10, 1024},
      {expm1, 0, 0},
      {expm1, -0.0f, -0.0f},
      {expm1, -kInf, -1},
      {expm1, -50, -1},
      {expm1, kInf, kInf},
      {expm1, 89, kInf},
      {expm1, 1e-20f, 1e-20f},
      {expm1, -kMax, -1},
      {log, 1, 0},
      {log, 0, -kInf},
      {log, -0.0f, -kInf},
      {log, kInf, kInf},
      {log, -1, kNaN},
      {log, -kInf, kNaN},
      {log, sub, -kInf},
      {log2, 1, 0},
      {log2, 8, 3},
      {log2, kMin, -126},
      {log2, 0, -kInf},
      {log2, -1, kNaN},
      {log2, kInf, kInf},
      {log2, 0x1p127f, 127},
      {log1p, 0, 0},
      {log1p, -0.0f, -0.0f},
      {log1p, -1, -kInf},
      {log1p, -2, kNaN},
      {log1p, kInf, kInf},
      {log1p, -kInf, kNaN},
      {log1p, 1e-20f, 1e-20f},
      {sin, 0, 0},
      {sin, -0.0f, -0.0f},
      {sin, kInf, kNaN},
      {sin, -kInf, kNaN},
      {cos, 0, 1},
      {cos, -0.0f, 1},
      {cos, kInf, kNaN},
      {cos, -kInf, kNaN},
      {tanh, 0, 0},
      {tanh, -0.0f, -0.0f},
      {tanh, kInf, 1},
      {tanh, -kInf, -1},
      {tanh, 10, 1},
      {tanh, -10, -1},
      {tanh, 1e30f, 1},
      {tanh, kMax, 1},
      {tanh, -kMax, -1},
      {tanh, 1e-20f, 1e-20f},
      {sigmoid, 0, 0.5f},
      {sigmoid, kInf, 1},
      {sigmoid, -kInf, 0},
      {sigmoid, 100, 1},
      {sigmoid, -100, 0},
      {sigmoid, kMax, 1},
      {sigmoid, -kMax, 0},
      {softplus, kInf, kInf},
      {softplus, -kInf, 0},
      {softplus, 100, 100},
      {softplus, -100, 0},
      {softplus, kMax, kMax},
      {softplus, -kMax, 0},
      {log_sigmoid, kInf, 0},
      {log_sigmoid, -kInf, -kInf},
      {log_sigmoid, -100, -100},
      {log_sigmoid, -kMax, -kMax},
      {erf, 0, 0},
      {erf, -0.0f, -0.0f},
      {erf, kInf, 1},
      {erf, -kInf, -1},
      {erf, 4, 1},
      {erf, -4, -1},
      {erf, kMax, 1},
      {erf, -1e4f, -1},
      {rsqrt, 0, kInf},
      {rsqrt, -0.0f, -kInf},
      {rsqrt, kInf, 0},
      {rsqrt, -1, kNaN},
      {rsqrt, -kInf, kNaN},
      {rsqrt, 4, 0.5f},
      {rsqrt, 0x1p126f, 0x1p-63f},
      {rsqrt, kMin, 0x1p63f},
  };
  for (const Special& s : specials) {
    const f32 y = once(s.f, s.x);
    const auto index = &s - specials.data();
    if (std::isnan(s.y)) {
      EXPECT_TRUE(std::isnan(y)) << index << ": f(" << s.x << ") = " << y;
    } else {
      EXPECT_EQ(std::bit_cast<u32>(y), std::bit_cast<u32>(s.y))
          << index << ": f(" << s.x << ") = " << y << ", expected " << s.y;
    }
  }
}

TEST(Math, KeepsNaNWithAnyPayload) {
  const std::vector<f32> nans = {kNaN,
                                 -kNaN,
                                 std::bit_cast<f32>(0x7fffffffu),
                                 std::bit_cast<f32>(0xffffffffu),
                                 std::bit_cast<f32>(0x7f800001u),
                                 std::bit_cast<f32>(0x7fc001ffu),
                                 std::bit_cast<f32>(0xff812345u)};
  for (const test::MathCase& c : test::math_cases()) {
    for (const f32 y : on_cpu<f32>(true)(c.record, nans)) EXPECT_TRUE(std::isnan(y)) << c.name;
    for (const f32 y : on_interpreter<f32>()(c.record, nans)) EXPECT_TRUE(std::isnan(y)) << c.name;
  }
}

TEST(Math, KeepsSymmetriesAndRanges) {
  const std::vector<f32> x = all_exponents<f32>(64);
  std::vector<f32> minus(x);
  for (f32& v : minus) v = -v;
  const auto run = on_cpu<f32>(true);
  for (Unary f : {Unary(sin), Unary(tanh), Unary(erf), Unary(cos)}) {
    const std::vector<f32> a = run(f, x), b = run(f, minus);
    for (size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(a[i])) continue;
      ASSERT_LE(std::abs(a[i]), 1) << x[i];
      if ((f == Unary(sin) || f == Unary(cos)) && std::abs(x[i]) > 4e6f) continue;
      const f32 mirrored = f == Unary(cos) ? b[i] : -b[i];
      ASSERT_EQ(std::bit_cast<u32>(a[i]), std::bit_cast<u32>(mirrored)) << x[i];
    }
  }
}

TEST(Math, GivesSineAndCosineOfTurnsTogether) {
  Data<f32> run;
  for (int i = -64; i <= 64; ++i)
    run.x.push_back(static_cast<f32>(i) / 16 + (i % 3 == 0 ? 0.01f : 0));
  for (bool sine : {true, false}) {
    compiled(elementwise<f32>(Target{},
                              [&](auto& a, auto&) {
                                const auto [s, c] = sin_cos_turns(a);
                                return sine ? s : c;
                              }),
             run, true);
    for (size_t i = 0; i < run.x.size(); ++i) {
      const long double angle = 2 * 3.14159265358979323846264L * run.x[i];
      const long double exact = sine ? std::sin(angle) : std::cos(angle);
      EXPECT_LE(test::ulps(run.y[i], exact, 0x1p-40), 1.6) << run.x[i] << " " << run.y[i];
    }
  }
}

template <class T>
test::PowRun<T> pow_on_cpu(bool flush) {
  return [flush](const std::vector<T>& x, const std::vector<T>& y) {
    static const auto code =
        load(elementwise<T>(Target{}, [](auto& a, auto& b) { return pow(a, b); }));
    Data<T> run{.x = x, .z = y};
    call(*code, run, flush);
    return run.y;
  };
}

TEST(Math, PowHasEverySpecialCaseOfC) {
  test::check_pow_edges<f32>("cpu", pow_on_cpu<f32>(false), 1.25);
  test::check_pow_edges<f32>("cpu, flushing", pow_on_cpu<f32>(true), 1.25);
  test::check_pow_edges<f64>("cpu", pow_on_cpu<f64>(true), 1.25);
  const test::PowRun<f32> on_interpreter = [](auto& x, auto& y) {
    Data<f32> run{.x = x, .z = y};
    interpreted(elementwise<f32>(Target{}, [](auto& a, auto& b) { return pow(a, b); }), run);
    return run.y;
  };
  test::check_pow_edges<f32>("interpreter", on_interpreter, 1.25);
}

TEST(Math, PowIsWithinItsBound) {
  test::check_pow<f32>("cpu", pow_on_cpu<f32>(true), 1.25);
  test::check_pow<f64>("cpu", pow_on_cpu<f64>(true), 1.25);
}

TEST(Math, RefusesOtherTypes) {
  auto message = [](const std::function<void()>& f) -> std::string {
    try {
      trace("bad", Target{}, 16, f);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_EQ(message([] { exp(constant(Scalar::I32, 1)); }),
            "kernel::exp: operand has the wrong type, got i32 of 1 lanes, expected f32 or f64");
  EXPECT_EQ(message([] {
              const Value x = constant(Scalar::F32, 1);
              tanh(vec({x, x}));
            }),
            "kernel::tanh: operand has the wrong type, got f32 of 2 lanes, expected f32 or f64");
  EXPECT_EQ(message([] { pow(constant(Scalar::F32, 1), constant(Scalar::F64, 1)); }),
            "kernel::pow: exponent has the wrong type, got f64, expected f32");
}

}  // namespace
}  // namespace oa::kernel
