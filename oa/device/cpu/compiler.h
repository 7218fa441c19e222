// Kernels to executables of the CPU: the caches in memory and on disk, and compilation in parallel.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "oa/codegen/cache.h"
#include "oa/codegen/llvm/compile.h"
#include "oa/core/hash.h"
#include "oa/device/cpu/estimate.h"
#include "oa/device/cpu/schedule.h"
#include "oa/device/cpu/thread_pool.h"
#include "oa/device/device.h"

namespace oa::device {

class CpuExecutable : public Executable {
 public:
  CpuExecutable(std::string name, std::shared_ptr<const codegen::LoadedCode> code, u32 params,
                GroupCost cost, std::shared_ptr<const void> owner);

  KernelFn function() const { return code_->function(); }
  u32 params() const { return params_; }
  // Estimated time of a group, in which `flops` helps where the kernel's IR does not tell.
  f32 group_ns(u32 groups, f64 flops) const;
  const std::shared_ptr<const void>& owner() const { return owner_; }  // of the device

 private:
  std::shared_ptr<const codegen::LoadedCode> code_;
  u32 params_;
  GroupCost cost_;
  std::shared_ptr<const void> owner_;
};

struct CompileStatistics {
  u64 compiled = 0;  // by LLVM
  u64 from_disk = 0;
  u64 from_memory = 0;  // equal to a kernel of this device, in the same batch or before
};

class CpuCompiler {
 public:
  CpuCompiler(const kernel::Target& target, codegen::CpuTarget cpu, const std::string& cache_dir,
              ThreadPool& pool, std::shared_ptr<const void> owner);

  std::vector<std::shared_ptr<Executable>> compile(std::span<const kernel::Kernel* const> kernels);

  const CompileStatistics& statistics() const { return statistics_; }
  codegen::CacheStatistics disk_statistics() const { return disk_.statistics(); }

 private:
  struct Code {
    std::shared_ptr<const codegen::LoadedCode> loaded;
    GroupCost cost;
  };
  struct Job {
    const kernel::Kernel* kernel;
    Hash128 key;
    Code code = {};
    bool from_disk = false;
    std::exception_ptr error = nullptr;
  };

  Hash128 key_of(const kernel::Kernel& kernel) const;
  void build(Job& job);

  kernel::Target target_;
  codegen::CpuTarget cpu_;
  ThreadPool& pool_;
  std::shared_ptr<const void> owner_;
  Hash128 machine_;  // of everything but the kernel that decides about the code
  codegen::CodeCache disk_;
  codegen::ObjectLoader loader_;
  std::unordered_map<Hash128, Code> memory_;
  CompileStatistics statistics_;
};

}  // namespace oa::device
