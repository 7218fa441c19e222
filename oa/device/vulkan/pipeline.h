// Compute pipelines: from SPIR-V words to something that a command buffer can run.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "oa/device/vulkan/context.h"

namespace oa::device::vulkan {

// What a pipeline needs to know about its module.
struct PipelineSource {
  std::string name;
  std::span<const u32> words;
  u32 width = 0;
  u32 subgroup = 0;  // lanes that the module was made for
  u32 params = 0;
  u64 shared_bytes = 0;
};

class Pipeline final : public Executable {
 public:
  // Safe in several threads at once. Throws MissingCapability for what the device cannot run
  // (drivers accept too much workgroup memory, and then lose the device).
  Pipeline(std::shared_ptr<Context> context, VkPipelineCache cache, const PipelineSource& source);
  ~Pipeline() override;

  const Context* context() const { return context_.get(); }
  VkPipeline handle() const { return handle_; }
  u32 params() const { return params_; }
  const Label& label() const { return label_; }

 private:
  std::shared_ptr<Context> context_;
  VkPipeline handle_ = VK_NULL_HANDLE;
  u32 params_ = 0;
  Label label_;
};

}  // namespace oa::device::vulkan
