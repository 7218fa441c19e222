// Runs traced kernels on the CPU lowering, for the tests of this folder.
#pragma once

#include <bit>
#include <memory>
#include <string>
#include <vector>

#include "oa/codegen/llvm/compile.h"
#include "oa/kernel/lang.h"

namespace oa::codegen {

inline kernel::Target cpu_target() {
  static const CpuTarget host = CpuTarget::host();
  kernel::Target t;
  t.vector_bytes = host.vector_bytes;
  t.vector_registers = host.vector_registers;
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

// Traces and runs; arguments are numbers, pointers or vectors, one per parameter of the kernel.
template <class... Args>
void run(u32 width, u32 groups, const std::function<void()>& body, Args&&... args) {
  const kernel::Kernel k = kernel::trace("test", cpu_target(), width, body);
  static const CpuTarget host = CpuTarget::host();
  run_on(host, k, groups, {word(args)...});
}

}  // namespace oa::codegen
