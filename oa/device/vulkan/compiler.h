// Kernels to pipelines: lowering, threads, and the caches in memory and on disk.
#pragma once

#include <mutex>
#include <unordered_map>

#include "oa/codegen/cache.h"
#include "oa/codegen/spirv/lower.h"
#include "oa/device/vulkan/pipeline.h"
#include "oa/device/vulkan/trial.h"

namespace oa::device::vulkan {

class Compiler {
 public:
  // Starts with a target for trials: everything that is advertised, nothing corrected.
  Compiler(std::shared_ptr<Context> context, const DeviceOptions& options);

  // What later calls of compile() lower for; forgets the pipelines made so far.
  void use(const codegen::spirv::VulkanTarget& target);

  // One pipeline per kernel; equal kernels share one. Throws the first error in the kernels' order.
  std::vector<std::shared_ptr<Executable>> compile(std::span<const kernel::Kernel* const> kernels);

  u64 made() const { return made_; }

  codegen::CodeCache& disk() { return disk_; }

 private:
  std::shared_ptr<Pipeline> build(const kernel::Kernel& kernel, const Hash128& hash);

  std::shared_ptr<Context> context_;
  codegen::spirv::VulkanTarget target_;
  codegen::CodeCache disk_;
  bool use_disk_;
  std::unordered_map<Hash128, std::shared_ptr<Pipeline>> pipelines_;
  u64 made_ = 0;  // pipelines, from disk or by the driver
};

// What the lowering may use on this device.
codegen::spirv::VulkanTarget lowering_target(const Physical& physical, const Trust& trust);

}  // namespace oa::device::vulkan
