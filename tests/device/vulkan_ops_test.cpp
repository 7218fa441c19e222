// Every arithmetic instruction on a Vulkan device against its host definition.
#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "oa/device/vulkan/device.h"
#include "oa/kernel/evaluate.h"
#include "tests/device/vulkan_run.h"

namespace oa::device::test {
namespace {

using namespace oa::kernel;

u64 bits(Scalar s, f64 x) {
  return s == Scalar::F64 ? std::bit_cast<u64>(x) : std::bit_cast<u32>(static_cast<f32>(x));
}

f64 number(Scalar s, u64 b) {
  return s == Scalar::F64 ? std::bit_cast<f64>(b)
                          : static_cast<f64>(std::bit_cast<f32>(static_cast<u32>(b)));
}

bool is_subnormal(Scalar s, u64 b) {
  if (s == Scalar::F64) return std::fpclassify(std::bit_cast<f64>(b)) == FP_SUBNORMAL;
  return std::fpclassify(std::bit_cast<f32>(static_cast<u32>(b))) == FP_SUBNORMAL;
}

// Corner cases of a type, and random bit patterns.
std::vector<u64> samples(Scalar s, u32 random_count) {
  std::vector<u64> v;
  if (s == Scalar::Bool) return {0, 1};
  if (is_float(s)) {
    const bool wide = s == Scalar::F64;
    const f64 tiny = wide ? std::numeric_limits<f64>::min() : std::numeric_limits<f32>::min();
    const f64 huge = wide ? std::numeric_limits<f64>::max() : std::numeric_limits<f32>::max();
    const f64 inf = std::numeric_limits<f64>::infinity();
    for (f64 x : {0.0,
                  0.5,
                  1.0,
                  1.5,
                  2.0,
                  2.5,
                  3.0,
                  7.0,
                  0.49999997,
                  1e-3,
                  1e9,
                  65504.0,
                  8388609.0,
                  2147483647.0,
                  2147483648.0,
                  4294967295.0,
                  4294967296.0,
                  9223372036854775808.0,
                  18446744073709551616.0,
                  tiny,
                  huge,
                  inf}) {
      v.push_back(bits(s, x));
      v.push_back(bits(s, -x));
    }
    v.push_back(bits(s, std::numeric_limits<f64>::quiet_NaN()));
    v.push_back(wide ? 0xfff8000000000123ull : 0xffc00123u);
  } else {
    const u64 top = size_bytes(s) == 8 ? 1ull << 63 : 1ull << 31;
    const u64 mask = size_bytes(s) == 8 ? ~0ull : 0xffffffffu;
    for (u64 x : {u64{0}, u64{1}, u64{2}, u64{3}, u64{7}, u64{100}, top, top - 1, top + 1}) {
      v.push_back(x & mask);
      v.push_back((~x + 1) & mask);
    }
  }
  std::mt19937_64 random(static_cast<u64>(s) + 1);
  for (u32 i = 0; i < random_count; ++i) {
    u64 x = random();
    if (size_bytes(s) == 4) x = static_cast<u32>(x);
    v.push_back(x);
  }
  return v;
}

Bytes packed(Scalar s, const std::vector<u64>& values) {
  Bytes bytes(values.size() * size_bytes(s));
  for (size_t i = 0; i < values.size(); ++i) {
    std::memcpy(&bytes[i * size_bytes(s)], &values[i], size_bytes(s));
  }
  return bytes;
}

std::vector<u64> unpacked(Scalar s, const Bytes& bytes) {
  std::vector<u64> values(bytes.size() / size_bytes(s), 0);
  for (size_t i = 0; i < values.size(); ++i) {
    std::memcpy(&values[i], &bytes[i * size_bytes(s)], size_bytes(s));
  }
  return values;
}

// Types of values in buffers: Bool travels as U32.
Scalar carrier(Scalar s) { return s == Scalar::Bool ? Scalar::U32 : s; }

class VulkanOps : public VulkanTest {
 protected:
  // Applies `op` to columns of operands and compares each result with evaluate(). Where the device
  // may flush subnormals, results from or to subnormals only need to be as if flushed.
  void check(Op op, Scalar result, Scalar operand, const std::vector<std::vector<u64>>& columns) {
    SCOPED_TRACE(fmt::format("{} {} -> {}", name(op), name(operand), name(result)));
    if (!target().f64 && (result == Scalar::F64 || operand == Scalar::F64)) return;
    const u32 n = static_cast<u32>(columns[0].size());
    const Kernel k = traced([&] {
      std::vector<Buffer> in;
      for (size_t i = 0; i < columns.size(); ++i) in.push_back(param_buffer(carrier(operand)));
      Buffer out = param_buffer(carrier(result));
      const U32 count = param_u32();
      const U32 i = group() * U32(width()) + lane();
      If(i < count, [&] {
        std::vector<Value> a;
        for (const Buffer& b : in) a.push_back(cast(Value(b[i]), operand));
        Value r;
        if (a.size() == 1) r = emit(op, Type{result}, {a[0]});
        if (a.size() == 2) r = emit(op, Type{result}, {a[0], a[1]});
        if (a.size() == 3) r = emit(op, Type{result}, {a[0], a[1], a[2]});
        out[i] = cast(r, carrier(result));
      });
    });
    std::vector<Bytes> buffers;
    for (const auto& c : columns) buffers.push_back(packed(carrier(operand), c));
    buffers.emplace_back(static_cast<size_t>(n) * size_bytes(carrier(result)));
    std::vector<Bytes*> pointers;
    for (Bytes& b : buffers) pointers.push_back(&b);
    run(k, (n + target().width - 1) / target().width, pointers, {n});
    const auto got = unpacked(carrier(result), buffers.back());
    u32 shown = 0;
    for (u32 i = 0; i < n && shown < 5; ++i) {
      u64 args[3] = {};
      bool tiny = false;
      for (size_t c = 0; c < columns.size(); ++c) {
        args[c] = columns[c][i];
        tiny |= is_float(operand) && is_subnormal(operand, args[c]);
      }
      if (is_unspecified(op, result, args)) continue;
      const u64 expected = evaluate(op, result, operand, args);
      tiny |= is_float(result) && is_subnormal(result, expected);
      if (tiny || agree(op, result, args, expected, got[i])) continue;
      ++shown;
      ADD_FAILURE() << fmt::format("args {:#x} {:#x} {:#x}: got {:#x}, expected {:#x}", args[0],
                                   args[1], args[2], got[i], expected);
    }
  }

  static bool agree(Op op, Scalar s, const u64* args, u64 expected, u64 got) {
    if (got == expected) return true;
    if (!is_float(s)) return false;
    const f64 e = number(s, expected), g = number(s, got);
    if (std::isnan(e)) return std::isnan(g);
    if ((op == Op::Min || op == Op::Max) && e == 0) return g == 0;
    if (op == Op::Fma) {  // two roundings are allowed
      u64 parts[2] = {args[0], args[1]};
      u64 sum[2] = {evaluate(Op::Mul, s, s, parts), args[2]};
      const u64 twice = evaluate(Op::Add, s, s, sum);
      return twice == got || (std::isnan(number(s, twice)) && std::isnan(g));
    }
    return false;
  }

  // Every pair of corner cases, and random pairs.
  static std::vector<std::vector<u64>> pairs(Scalar s, u32 random_count) {
    const auto corners = samples(s, 0);
    std::vector<std::vector<u64>> columns(2);
    for (u64 a : corners) {
      for (u64 b : corners) {
        columns[0].push_back(a);
        columns[1].push_back(b);
      }
    }
    const auto random = samples(s, 2 * random_count);
    for (size_t i = corners.size(); i + 1 < random.size(); i += 2) {
      columns[0].push_back(random[i]);
      columns[1].push_back(random[i + 1]);
    }
    return columns;
  }
};

constexpr Scalar kScalars[] = {Scalar::I32, Scalar::U32, Scalar::I64,
                               Scalar::U64, Scalar::F32, Scalar::F64};

TEST_F(VulkanOps, Unary) {
  for (Scalar s : kScalars) {
    for (Op op : {Op::Neg, Op::Abs}) check(op, s, s, {samples(s, 500)});
    if (is_float(s)) {
      for (Op op : {Op::Floor, Op::Ceil, Op::Trunc, Op::RoundEven}) {
        check(op, s, s, {samples(s, 500)});
      }
    } else {
      check(Op::Not, s, s, {samples(s, 100)});
    }
  }
  check(Op::Not, Scalar::Bool, Scalar::Bool, {{0, 1}});
}

TEST_F(VulkanOps, Binary) {
  for (Scalar s : kScalars) {
    for (Op op : {Op::Add, Op::Sub, Op::Mul, Op::Min, Op::Max}) check(op, s, s, pairs(s, 500));
    if (is_float(s)) continue;
    for (Op op : {Op::Div, Op::Rem, Op::And, Op::Or, Op::Xor}) check(op, s, s, pairs(s, 500));
    auto shifts = pairs(s, 500);
    for (u64& count : shifts[1]) count %= 8 * size_bytes(s);
    for (Op op : {Op::Shl, Op::Shr}) check(op, s, s, shifts);
  }
  check(Op::MulHi, Scalar::U32, Scalar::U32, pairs(Scalar::U32, 500));
  for (Op op : {Op::And, Op::Or, Op::Xor}) {
    check(op, Scalar::Bool, Scalar::Bool, pairs(Scalar::Bool, 0));
  }
}

TEST_F(VulkanOps, Comparisons) {
  for (Scalar s : kScalars) {
    for (Op op : {Op::Eq, Op::Ne, Op::Lt, Op::Le, Op::Gt, Op::Ge}) {
      check(op, Scalar::Bool, s, pairs(s, 200));
    }
  }
}

TEST_F(VulkanOps, Fma) {
  for (Scalar s : {Scalar::F32, Scalar::F64}) {
    auto columns = pairs(s, 500);
    columns.push_back(columns[0]);
    std::reverse(columns[2].begin(), columns[2].end());
    check(Op::Fma, s, s, columns);
  }
}

TEST_F(VulkanOps, Casts) {
  std::vector<Scalar> all(std::begin(kScalars), std::end(kScalars));
  all.push_back(Scalar::Bool);
  for (Scalar from : all) {
    for (Scalar to : all) {
      if (from != to) check(Op::Cast, to, from, {samples(from, 500)});
      if (from != to && from != Scalar::Bool && to != Scalar::Bool &&
          size_bytes(from) == size_bytes(to)) {
        check(Op::Bitcast, to, from, {samples(from, 500)});
      }
    }
  }
}

// Quotients and roots that single out wrong roundings.
class VulkanRounding : public VulkanOps {
 protected:
  void check_division() {
    for (Scalar s : {Scalar::F32, Scalar::F64}) {
      check(Op::Div, s, s, pairs(s, 100000));
      // Significands only, and divisors just below a power of two, whose reciprocals lie next to
      // midpoints.
      auto near = pairs(s, 50000);
      const u32 stored = s == Scalar::F64 ? 52 : 23;
      const u64 mask = (1ull << stored) - 1;
      const u64 one = bits(s, 1.0);
      for (auto& column : near) {
        for (u64& x : column) x = (x & mask) | one;
      }
      for (size_t i = 0; i < near[1].size(); i += 2) near[1][i] = (one | mask) - i % 7;
      check(Op::Div, s, s, near);
    }
  }
  void check_roots() {
    for (Scalar s : {Scalar::F32, Scalar::F64}) {
      auto x = samples(s, 100000);
      // Just below and above powers of two and of four.
      const u32 stored = s == Scalar::F64 ? 52 : 23;
      for (u64 e = bits(s, 1.0) - (64ull << stored); e < bits(s, 1e18); e += 1ull << stored) {
        for (u64 d = 0; d < 8; ++d) {
          x.push_back(e - d);
          x.push_back(e + d);
        }
      }
      check(Op::Sqrt, s, s, {x});
    }
  }
};

TEST_F(VulkanRounding, DivisionOfTheDevice) { check_division(); }
TEST_F(VulkanRounding, RootsOfTheDevice) { check_roots(); }

// The same with corrections, though the device may do without.
TEST_F(VulkanRounding, Corrections) {
  auto& device = dynamic_cast<vulkan::VulkanDevice&>(*device_);
  for (bool fused : {false, true}) {
    if (fused && !device.trust().fused_fma) continue;
    SCOPED_TRACE(fused ? "fused" : "not fused");
    vulkan::Compiler compiler(device.context(), {.cache_dir = "-"});
    compiler.use(lowering_target(device.context()->physical(), {.fused_fma = fused}));
    compile_ = [&](const Kernel& k) {
      const Kernel* kernels[] = {&k};
      return compiler.compile(kernels)[0];
    };
    check_division();
    check_roots();
    compile_ = nullptr;
  }
}

TEST_F(VulkanOps, FloatRemainderIsExact) {
  for (Scalar s : {Scalar::F32, Scalar::F64}) {
    check(Op::Rem, s, s, pairs(s, 5000));
    // Close exponents, where whole quotients are small.
    auto near = pairs(s, 5000);
    for (size_t i = 0; i < near[0].size(); ++i) {
      const u32 shift = s == Scalar::F64 ? 52 : 23;
      near[1][i] = (near[1][i] & ((1ull << shift) - 1)) | (near[0][i] >> shift << shift);
    }
    check(Op::Rem, s, s, near);
  }
}

}  // namespace
}  // namespace oa::device::test
