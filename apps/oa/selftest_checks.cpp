#include "apps/oa/selftest_checks.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "oa/core/error.h"
#include "oa/core/random.h"
#include "oa/matrix/create.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/index.h"
#include "oa/matrix/matmul.h"
#include "oa/matrix/movement.h"
#include "oa/matrix/random.h"
#include "oa/matrix/reduce.h"
#include "oa/matrix/transcendental.h"

namespace oa::command {
namespace {

// Extents that fill no vector and no workgroup evenly.
constexpr i64 kRows = 37, kColumns = 113, kInner = 53;

std::vector<f32> wave(i64 count, f64 step) {
  std::vector<f32> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<f32>(2 * std::sin(step * static_cast<f64>(i)));
  }
  return values;
}

// Compares element by element; the tolerance is relative to `scale`.
template <class Expected>
std::string differs(const std::vector<f32>& got, f64 scale, f64 tolerance, Expected expected) {
  for (size_t i = 0; i < got.size(); ++i) {
    const f64 want = expected(i);
    if (!(std::abs(got[i] - want) <= tolerance * scale)) {
      return fmt::format("element {}, got {}, expected {}", i, got[i], want);
    }
  }
  return {};
}

template <class T>
std::string round_trip(Engine& engine, T low, T step) {
  std::vector<T> values(1000);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<T>(low + step * static_cast<T>(i));
  }
  const Matrix m = Matrix::from_slice<T>(engine, {1000}, values);
  return m.read<T>() == values ? std::string() : fmt::format("{} changed", token(m.dtype()));
}

std::string transfers(Engine& engine) {
  for (const std::string& wrong :
       {round_trip<f32>(engine, -3.5f, 0.25f), round_trip<i32>(engine, -500, 7),
        round_trip<u32>(engine, 0, 4000000), round_trip<u8>(engine, 0, 1)}) {
    if (!wrong.empty()) return wrong;
  }
  return {};
}

std::string elementwise(Engine& engine) {
  const std::vector<f32> a = wave(kRows * kColumns, 0.37), b = wave(kColumns, 0.11);
  const Matrix x = Matrix::from_f32(engine, {kRows, kColumns}, a);
  const Matrix y = Matrix::from_f32(engine, {kColumns}, b);
  const std::vector<f32> got = (x * y + matrix::tanh(x) - matrix::exp(y)).read_f32();
  return differs(got, 10, 1e-6, [&](size_t i) {
    const f64 u = a[i], v = b[i % kColumns];
    return u * v + std::tanh(u) - std::exp(v);
  });
}

std::string integers(Engine& engine) {
  std::vector<u32> a(1000), b(1000);
  for (u32 i = 0; i < 1000; ++i) {
    a[i] = i * 2654435761u;
    b[i] = i * 40503u + 1;
  }
  const Matrix x = Matrix::from_slice<u32>(engine, {1000}, a);
  const Matrix y = Matrix::from_slice<u32>(engine, {1000}, b);
  const std::vector<u32> got = (x * y + x / y).read<u32>();
  for (size_t i = 0; i < got.size(); ++i) {
    const u32 want = a[i] * b[i] + a[i] / b[i];
    if (got[i] != want) return fmt::format("element {}, got {}, expected {}", i, got[i], want);
  }
  return {};
}

std::string reductions(Engine& engine) {
  const std::vector<f32> a = wave(kRows * kColumns, 0.37);
  const Matrix x = Matrix::from_f32(engine, {kRows, kColumns}, a);
  const auto row = [&](size_t r, auto&& f) {
    for (size_t c = 0; c < kColumns; ++c) f(static_cast<f64>(a[r * kColumns + c]));
  };
  std::string wrong = differs(matrix::sum(x, -1).read_f32(), kColumns, 1e-6, [&](size_t r) {
    f64 total = 0;
    row(r, [&](f64 v) { total += v; });
    return total;
  });
  if (!wrong.empty()) return "sum: " + wrong;
  wrong = differs(matrix::max(x, -1).read_f32(), 1, 0, [&](size_t r) {
    f64 best = -INFINITY;
    row(r, [&](f64 v) { best = std::max(best, v); });
    return best;
  });
  if (!wrong.empty()) return "max: " + wrong;
  wrong = differs(matrix::softmax(x).read_f32(), 1, 1e-6, [&](size_t i) {
    f64 total = 0;
    row(i / kColumns, [&](f64 v) { total += std::exp(v); });
    return std::exp(static_cast<f64>(a[i])) / total;
  });
  return wrong.empty() ? wrong : "softmax: " + wrong;
}

std::string products(Engine& engine) {
  const std::vector<f32> a = wave(kRows * kInner, 0.31), b = wave(kInner * kColumns, 0.17);
  const Matrix x = Matrix::from_f32(engine, {kRows, kInner}, a);
  const Matrix y = Matrix::from_f32(engine, {kInner, kColumns}, b);
  const Matrix results[] = {matrix::mat_mul(x, y),
                            matrix::mat_mul_nt(x, matrix::copy(y.transpose())),
                            matrix::mat_mul_tn(matrix::copy(x.transpose()), y)};
  for (const Matrix& result : results) {
    const std::string wrong = differs(result.read_f32(), kInner, 1e-6, [&](size_t i) {
      const size_t r = i / kColumns, c = i % kColumns;
      f64 total = 0;
      for (size_t k = 0; k < kInner; ++k) {
        total += static_cast<f64>(a[r * kInner + k]) * b[k * kColumns + c];
      }
      return total;
    });
    if (!wrong.empty()) return wrong;
  }
  return {};
}

std::string indices(Engine& engine) {
  const std::vector<f32> table = wave(20 * 7, 0.3);
  const std::vector<i32> chosen = {19, 0, 7, 7, 3};
  const Matrix t = Matrix::from_f32(engine, {20, 7}, table);
  const Matrix rows = matrix::gather(t, Matrix::from_slice<i32>(engine, {5}, chosen));
  const std::string wrong = differs(rows.read_f32(), 1, 0, [&](size_t i) {
    return table[static_cast<size_t>(chosen[i / 7]) * 7 + i % 7];
  });
  if (!wrong.empty()) return wrong;
  const std::vector<i32> outside = {20};
  try {
    matrix::gather(t, Matrix::from_slice<i32>(engine, {1}, outside)).read_f32();
  } catch (const Error& error) {
    return error.kind() == ErrorKind::OutOfRange ? std::string() : error.what();
  }
  return "an index out of range raised no error";
}

std::string random_numbers(Engine& engine) {
  const std::vector<f32> got = matrix::uniform(engine, {1000}, 0, 1, 42).read_f32();
  return differs(got, 1, 0, [&](size_t i) {
    const PhiloxCounter block = philox4x32({static_cast<u32>(i / 4), 0, 0, 0}, philox_key(42));
    return static_cast<f64>(unit_from_word(block[i % 4]));
  });
}

std::string replays(Engine& engine) {
  const Matrix counter = matrix::zeros(engine, {1});
  const ExecutionPlan plan = engine.capture([&] {
    counter.assign(counter + 1.0);
    return std::vector<Matrix>{counter * 2.0};
  });
  for (int i = 0; i < 5; ++i) engine.submit(plan);
  const f32 count = counter.item();
  return count == 5 ? std::string()
                    : fmt::format("counter after 5 runs, got {}, expected 5", count);
}

std::string repeatability(Engine& engine) {
  const std::vector<f32> a = wave(100000, 0.37);
  const Matrix x = Matrix::from_f32(engine, {100000}, a);
  const f32 first = matrix::sum(x).item(), second = matrix::sum(x + 0.0).item();
  return first == second ? std::string() : fmt::format("two sums differ, {} and {}", first, second);
}

constexpr Check kChecks[] = {
    {"transfers", transfers},   {"elementwise", elementwise}, {"integers", integers},
    {"reductions", reductions}, {"products", products},       {"indices", indices},
    {"random", random_numbers}, {"replays", replays},         {"repeatability", repeatability},
};

}  // namespace

std::span<const Check> selftest_checks() { return kChecks; }

}  // namespace oa::command
