// Runs traced kernels on the CPU lowering, for the tests of this folder: on the host's own target,
// and on poorer ones that the host can run too.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "oa/codegen/llvm/compile.h"
#include "oa/kernel/check.h"
#include "oa/kernel/lang.h"

namespace oa::codegen {

inline const CpuTarget& host() {
  static const CpuTarget target = CpuTarget::host();
  return target;
}

// The host, then AVX2 without AVX-512, then the first 64-bit CPUs.
inline const std::vector<CpuTarget>& targets() {
  static const std::vector<CpuTarget> all = [] {
    std::vector<CpuTarget> list{host()};
    if (host().has("avx512f") && host().has("fma") && host().has("f16c")) {
      list.push_back({.cpu = "haswell",
                      .features = "+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+sse4.2,+popcnt",
                      .vector_bytes = 32});
    }
    list.push_back({.cpu = "x86-64", .features = "+sse2"});
    return list;
  }();
  return all;
}

inline kernel::Target cpu_target() {
  kernel::Target t;
  t.vector_bytes = host().vector_bytes;
  t.vector_registers = host().vector_registers;
  return t;
}

inline ObjectLoader& loader() {
  static ObjectLoader one;
  return one;
}

template <class T>
u64 word(const T& x) {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<u64>(x);
  } else if constexpr (std::is_same_v<T, f32>) {
    return std::bit_cast<u32>(x);
  } else {
    return static_cast<u64>(x);
  }
}

template <class T>
u64 word(std::vector<T>& x) {
  return reinterpret_cast<u64>(x.data());
}

inline void run_on(const CpuTarget& target, const kernel::Kernel& k, u32 groups,
                   const std::vector<u64>& params) {
  const auto code = loader().load(compile_object(k, target, "test_kernel"), "test_kernel");
  code->function()(params.data(), 0, groups, groups);
}

inline kernel::Kernel traced(u32 width, const std::function<void()>& body) {
  return kernel::trace("test", cpu_target(), width, body);
}

// Traces and runs on the host; arguments are numbers, pointers or vectors, one per parameter.
template <class... Args>
void run(u32 width, u32 groups, const std::function<void()>& body, Args&&... args) {
  run_on(host(), traced(width, body), groups, {word(args)...});
}

// Elements of a buffer, as bytes, for kernels that are run several times from the same start.
struct TestBuffer {
  kernel::Scalar elem;
  std::vector<u8> bytes;

  template <class T>
  static TestBuffer of(kernel::Scalar elem, const std::vector<T>& values) {
    TestBuffer b{elem, std::vector<u8>(values.size() * sizeof(T))};
    if (!values.empty()) std::memcpy(b.bytes.data(), values.data(), b.bytes.size());
    return b;
  }
  template <class T>
  std::vector<T> as() const {
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
    return values;
  }
};

// Text of the first difference, "" if there is none. All NaN count as equal.
inline std::string difference(const TestBuffer& got, const TestBuffer& want) {
  const u32 size = size_bytes(got.elem);
  for (size_t i = 0; i + size <= want.bytes.size(); i += size) {
    u64 a = 0, b = 0;
    std::memcpy(&a, &got.bytes[i], size);
    std::memcpy(&b, &want.bytes[i], size);
    if (a == b) continue;
    using kernel::Scalar;
    const auto nan = [&](u64 x) {
      if (got.elem == Scalar::F32) return (x & 0x7fffffff) > 0x7f800000;
      if (got.elem == Scalar::F64) return (x & ~0ull >> 1) > 0x7ff0000000000000;
      if (got.elem == Scalar::F16) return (x & 0x7fff) > 0x7c00;
      if (got.elem == Scalar::BF16) return (x & 0x7fff) > 0x7f80;
      return false;
    };
    if (nan(a) && nan(b)) continue;
    return fmt::format("element {}: got {:#x}, expected {:#x}", i / size, a, b);
  }
  return "";
}

// Runs the kernel (parameters: the buffers, then the numbers) in the reference interpreter and on
// every target, each from the same start, and compares every byte. Returns the interpreter's
// result.
inline std::vector<TestBuffer> same_everywhere(const kernel::Kernel& k, u32 groups,
                                               const std::vector<TestBuffer>& start,
                                               const std::vector<u64>& numbers = {},
                                               const kernel::InterpretOptions& options = {}) {
  const auto params = [&](std::vector<TestBuffer>& buffers) {
    std::vector<u64> p;
    for (TestBuffer& b : buffers) p.push_back(word(b.bytes));
    p.insert(p.end(), numbers.begin(), numbers.end());
    return p;
  };
  std::vector<TestBuffer> want = start;
  std::vector<kernel::BufferView> views;
  for (TestBuffer& b : want) {
    views.push_back({word(b.bytes), b.bytes.data(), b.bytes.size()});
  }
  kernel::run_checked(k, params(want), views, groups, options);
  for (const CpuTarget& target : targets()) {
    std::vector<TestBuffer> got = start;
    run_on(target, k, groups, params(got));
    for (size_t i = 0; i < got.size(); ++i) {
      const std::string diff = difference(got[i], want[i]);
      EXPECT_EQ(diff, "") << k.name << " width " << k.width << " on " << target.cpu << ", buffer "
                          << i;
    }
  }
  return want;
}

}  // namespace oa::codegen
