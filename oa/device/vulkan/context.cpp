// Creation of the logical device with exactly the features that we use, and the report of its loss.
#include "oa/device/vulkan/context.h"

#include <algorithm>

namespace oa::device::vulkan {
namespace {

// What is enabled follows from the probe alone, so that a feature that is listed is one in use.
void enable(Features& f, const Physical& p) {
  f.link(p.fault, p.cooperative_matrix, p.bfloat16);
  f.core.features.shaderInt64 = VK_TRUE;
  f.core.features.shaderInt16 = p.has_i16;
  f.core.features.shaderFloat64 = p.has_f64;
  f.v11.storageBuffer16BitAccess = p.storage16;
  f.v12.storageBuffer8BitAccess = p.storage8;
  f.v12.shaderFloat16 = p.has_f16;
  f.v12.shaderInt8 = p.has_i8;
  f.v12.timelineSemaphore = VK_TRUE;
  f.v12.bufferDeviceAddress = VK_TRUE;
  f.v12.vulkanMemoryModel = p.memory_model;
  f.v12.vulkanMemoryModelDeviceScope = p.memory_model;
  f.v13.synchronization2 = VK_TRUE;
  f.v13.subgroupSizeControl = VK_TRUE;
  f.v13.computeFullSubgroups = p.full_subgroups;
  f.v13.maintenance4 = VK_TRUE;  // part of every Vulkan 1.3 device
  f.fault.deviceFault = p.fault;
  f.matrix.matrix = p.cooperative_matrix;
  f.bfloat16.type = p.bfloat16;
  f.bfloat16.cooperative_matrix = p.bfloat16;
}

}  // namespace

Context::Context(std::shared_ptr<Instance> instance, Physical physical)
    : instance_(std::move(instance)), physical_(std::move(physical)) {
  const Physical& p = physical_;
  std::vector<const char*> extensions;
  if (p.memory_budget) extensions.push_back(VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
  if (p.fault) extensions.push_back(VK_EXT_DEVICE_FAULT_EXTENSION_NAME);
  if (p.cooperative_matrix) extensions.push_back(kCooperativeMatrixExtension);
  if (p.bfloat16) extensions.push_back(kBfloat16Extension);

  Features features;
  enable(features, p);
  const float priority = 1.0f;
  const VkDeviceQueueCreateInfo queue{.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                      .queueFamilyIndex = p.queue_family,
                                      .queueCount = 1,
                                      .pQueuePriorities = &priority};
  const VkDeviceCreateInfo create{.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                  .pNext = &features.core,
                                  .queueCreateInfoCount = 1,
                                  .pQueueCreateInfos = &queue,
                                  .enabledExtensionCount = static_cast<u32>(extensions.size()),
                                  .ppEnabledExtensionNames = extensions.data()};
  const VkResult created = instance_->create_device(p.handle, create, &device_, &api);
  if (created != VK_SUCCESS) {
    fail(ErrorKind::BackendFailure, "open_vulkan", "'{}' could not be opened, got {}", p.info.name,
         result_name(created));
  }
  api.vkGetDeviceQueue(device_, p.queue_family, 0, &queue_);

  const VkPushConstantRange range{VK_SHADER_STAGE_COMPUTE_BIT, 0, p.push_bytes};
  const VkPipelineLayoutCreateInfo layout{.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                          .pushConstantRangeCount = 1,
                                          .pPushConstantRanges = &range};
  const VkResult laid_out = api.vkCreatePipelineLayout(device_, &layout, nullptr, &layout_);
  if (laid_out != VK_SUCCESS) {
    api.vkDestroyDevice(device_, nullptr);
    fail(ErrorKind::BackendFailure, "open_vulkan", "no pipeline layout, got {}",
         result_name(laid_out));
  }
}

Context::~Context() {
  api.vkDestroyPipelineLayout(device_, layout_, nullptr);
  api.vkDestroyDevice(device_, nullptr);
}

void Context::check(VkResult result, const char* op) {
  if (result >= VK_SUCCESS) return;
  if (lost_) throw *lost_;
  if (result == VK_ERROR_DEVICE_LOST) lose(op);
  const bool exhausted =
      result == VK_ERROR_OUT_OF_DEVICE_MEMORY || result == VK_ERROR_OUT_OF_HOST_MEMORY;
  fail(exhausted ? ErrorKind::ResourceExhausted : ErrorKind::BackendFailure, op,
       "the driver of '{}' failed, got {}", physical_.info.name, result_name(result));
}

void Context::require_sound() {
  if (lost_) throw *lost_;
  if (!instance_->validates()) return;
  const std::vector<std::string> messages = instance_->take_messages();
  if (messages.empty()) return;
  fail(ErrorKind::BackendFailure, "vulkan", "the validation layers report {} error{}: {}",
       messages.size(), messages.size() == 1 ? "" : "s", messages.front());
}

void Context::note_submission(u64 value, std::span<const Label> last_kernels) {
  Submission& entry = log_[next_log_++ % kLogged];
  entry.value = value;
  entry.kernels.assign(last_kernels.begin(), last_kernels.end());
}

std::string Context::running_kernels() const {
  std::vector<const Submission*> open;
  for (const Submission& s : log_) {
    if (s.value > completed_ && !s.kernels.empty()) open.push_back(&s);
  }
  std::sort(open.begin(), open.end(),
            [](const Submission* a, const Submission* b) { return a->value < b->value; });
  std::string names;
  for (const Submission* s : open) {
    for (const Label& label : s->kernels) names += (names.empty() ? "" : ", ") + *label;
  }
  return names.empty() ? "none" : names;
}

std::string Context::fault_text() {
  if (!physical_.fault || api.vkGetDeviceFaultInfoEXT == nullptr) return {};
  VkDeviceFaultCountsEXT counts{.sType = VK_STRUCTURE_TYPE_DEVICE_FAULT_COUNTS_EXT};
  if (api.vkGetDeviceFaultInfoEXT(device_, &counts, nullptr) != VK_SUCCESS) return {};
  counts.vendorBinarySize = 0;  // of no use to people
  std::vector<VkDeviceFaultAddressInfoEXT> addresses(counts.addressInfoCount);
  std::vector<VkDeviceFaultVendorInfoEXT> vendor(counts.vendorInfoCount);
  VkDeviceFaultInfoEXT info{.sType = VK_STRUCTURE_TYPE_DEVICE_FAULT_INFO_EXT,
                            .pAddressInfos = addresses.data(),
                            .pVendorInfos = vendor.data()};
  if (api.vkGetDeviceFaultInfoEXT(device_, &counts, &info) < VK_SUCCESS) return {};
  std::string text = fmt::format("; fault: {}", info.description);
  for (u32 i = 0; i < counts.addressInfoCount; ++i) {
    text += fmt::format(", address {:#x} (type {})", addresses[i].reportedAddress,
                        static_cast<int>(addresses[i].addressType));
  }
  for (u32 i = 0; i < counts.vendorInfoCount; ++i) {
    text += fmt::format(", {} ({:#x}, {:#x})", vendor[i].description, vendor[i].vendorFaultCode,
                        vendor[i].vendorFaultData);
  }
  return text;
}

void Context::lose(const char* op) {
  lost_.emplace(ErrorKind::BackendFailure, op,
                fmt::format("the device '{}' was lost, got VK_ERROR_DEVICE_LOST; last submitted "
                            "kernels: {}{}; open a new device to go on",
                            physical_.info.name, running_kernels(), fault_text()));
  throw *lost_;
}

}  // namespace oa::device::vulkan
