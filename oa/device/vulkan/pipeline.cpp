// Checks of the device's limits, then shader module and pipeline.
#include "oa/device/vulkan/pipeline.h"

#include <algorithm>

namespace oa::device::vulkan {
namespace {

constexpr const char* kOp = "vulkan::compile";

void check_limits(const Physical& p, const PipelineSource& source) {
  if (source.shared_bytes > p.target.shared_bytes) {
    fail(ErrorKind::MissingCapability, kOp,
         "kernel '{}' uses too much workgroup memory, got {} bytes, expected at most {}",
         source.name, source.shared_bytes, p.target.shared_bytes);
  }
  if (source.width > p.max_group_lanes) {
    fail(ErrorKind::MissingCapability, kOp,
         "kernel '{}' has too many lanes, got {}, expected at most {}", source.name, source.width,
         p.max_group_lanes);
  }
}

}  // namespace

Pipeline::Pipeline(std::shared_ptr<Context> context, VkPipelineCache cache,
                   const PipelineSource& source)
    : Executable(source.name),
      context_(std::move(context)),
      params_(source.params),
      label_(std::make_shared<const std::string>(source.name)) {
  const Physical& p = context_->physical();
  check_limits(p, source);

  const VkShaderModuleCreateInfo module_info{.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                             .codeSize = source.words.size_bytes(),
                                             .pCode = source.words.data()};
  VkShaderModule module = VK_NULL_HANDLE;
  const VolkDeviceTable& api = context_->api;
  VkResult result = api.vkCreateShaderModule(context_->device(), &module_info, nullptr, &module);
  if (result == VK_SUCCESS) {
    // A kernel narrower than every subgroup runs in part of one, and is made not to notice.
    const VkPipelineShaderStageRequiredSubgroupSizeCreateInfo subgroup{
        .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO,
        .requiredSubgroupSize = std::clamp(source.subgroup, p.min_subgroup, p.max_subgroup)};
    VkPipelineShaderStageCreateFlags flags = 0;
    if (p.full_subgroups && source.width % subgroup.requiredSubgroupSize == 0) {
      flags = VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT;
    }
    const VkComputePipelineCreateInfo info{
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .pNext = p.required_subgroup ? &subgroup : nullptr,
                  .flags = flags,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = module,
                  .pName = "main"},
        .layout = context_->layout()};
    result = api.vkCreateComputePipelines(context_->device(), cache, 1, &info, nullptr, &handle_);
    api.vkDestroyShaderModule(context_->device(), module, nullptr);
  }
  if (result != VK_SUCCESS) {
    fail(ErrorKind::BackendFailure, kOp, "the driver refused kernel '{}', got {}", source.name,
         result_name(result));
  }
}

Pipeline::~Pipeline() { context_->api.vkDestroyPipeline(context_->device(), handle_, nullptr); }

}  // namespace oa::device::vulkan
