// Kernels to pipelines: lowering, threads, and the caches in memory and on disk.
#pragma once

#include <mutex>
#include <unordered_map>

#include "oa/codegen/cache.h"
#include "oa/codegen/spirv/lower.h"
#include "oa/device/vulkan/pipeline.h"

namespace oa::device::vulkan {

class Compiler {
 public:
  Compiler(std::shared_ptr<Context> context, const DeviceOptions& options);

  // One pipeline per kernel; equal kernels share one. Throws the first error in the kernels' order.
  std::vector<std::shared_ptr<Executable>> compile(std::span<const kernel::Kernel* const> kernels);

 private:
  std::shared_ptr<Pipeline> build(const kernel::Kernel& kernel, const Hash128& hash);

  std::shared_ptr<Context> context_;
  codegen::spirv::VulkanTarget target_;
  codegen::CodeCache disk_;
  bool use_disk_;
  std::unordered_map<Hash128, std::shared_ptr<Pipeline>> pipelines_;
};

// What the lowering may use on this device.
codegen::spirv::VulkanTarget lowering_target(const Physical& physical);

}  // namespace oa::device::vulkan
