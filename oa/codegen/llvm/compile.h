// Kernels to machine code of the CPU: compile_object() makes a relocatable object, ObjectLoader
// links it into the process.
//
// A workgroup becomes a gang: its lanes advance together as vectors of `width` elements. The code
// has the signature of CpuFunction and runs the groups first_group .. last_group-1 of group_count.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "oa/core/types.h"
#include "oa/kernel/ir.h"

namespace oa::codegen {

using CpuFunction = void (*)(const u64* params, u32 first_group, u32 last_group, u32 group_count);

struct CpuTarget {
  std::string cpu;       // LLVM's name, "znver4"
  std::string features;  // LLVM's feature list, "+avx2,+fma,..."
  u32 vector_bytes = 16;
  u32 vector_registers = 16;

  static CpuTarget host();
  bool has(const std::string& feature) const;  // by LLVM's name, "avx512f"
};

// Part of the key of cached objects: counts changes of the lowering.
inline constexpr u32 kLoweringVersion = 4;

// Workgroup memory that a kernel may use here.
inline constexpr u64 kMaxSharedBytes = 256 * 1024;

// Both throw Internal for a kernel that the verifier would refuse, and InvalidArgument when it
// needs more than kMaxSharedBytes. They may run in several threads at once.
std::vector<u8> compile_object(const kernel::Kernel& kernel, const CpuTarget& target,
                               const std::string& symbol);

// The same code as text for people and tests.
enum class CodeText : u8 { Ir, OptimisedIr, Assembly };
std::string compile_to_text(const kernel::Kernel& kernel, const CpuTarget& target, CodeText form);
inline std::string compile_to_ir(const kernel::Kernel& kernel, const CpuTarget& target) {
  return compile_to_text(kernel, target, CodeText::OptimisedIr);
}

// "19.1.7", for cache keys and reports.
std::string llvm_version();

// Code that stays callable while the handle lives.
class LoadedCode {
 public:
  virtual ~LoadedCode() = default;
  CpuFunction function() const { return function_; }

 protected:
  CpuFunction function_ = nullptr;
};

// Links objects into the process. Handles may outlive the loader; all calls are thread-safe.
class ObjectLoader {
 public:
  ObjectLoader();
  ~ObjectLoader();
  ObjectLoader(const ObjectLoader&) = delete;
  ObjectLoader& operator=(const ObjectLoader&) = delete;

  // Throws BackendFailure when the bytes are no object for this machine or lack the symbol.
  std::unique_ptr<LoadedCode> load(std::span<const u8> object, const std::string& symbol);

 private:
  class Jit;
  std::shared_ptr<Jit> jit_;
};

}  // namespace oa::codegen
