// The Vulkan loader and an instance of it: driver discovery, and the messages of the validation
// layers where they are on.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "oa/device/vulkan/api.h"

namespace oa::device::vulkan {

class Instance {
 public:
  // Open devices share one instance; a validating device gets its own, so that its messages are
  // its own. Throws BackendUnavailable when there is no loader, no driver or no validation layer,
  // UnsupportedBackendVersion when the loader is older than Vulkan 1.3.
  static std::shared_ptr<Instance> open(bool validation);

  ~Instance();
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  const InstanceApi& api() const { return api_; }
  bool validates() const { return messenger_ != VK_NULL_HANDLE; }
  std::vector<VkPhysicalDevice> physical_devices() const;

  // Creates a device and fills its function table; serialised, as volk's loader state is shared.
  VkResult create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo& create,
                         VkDevice* device, VolkDeviceTable* table) const;

  // Error messages of the validation layers since the last call.
  std::vector<std::string> take_messages();
  // Reports an error as a layer would, for tests. Only with validation.
  void inject_error(const char* message) const;

 private:
  explicit Instance(bool validation);
  static VkBool32 VKAPI_PTR on_message(VkDebugUtilsMessageSeverityFlagBitsEXT severity,
                                       VkDebugUtilsMessageTypeFlagsEXT types,
                                       const VkDebugUtilsMessengerCallbackDataEXT* data,
                                       void* instance);
  void create(bool validation);

  VkInstance handle_ = VK_NULL_HANDLE;
  VkDebugUtilsMessengerEXT messenger_ = VK_NULL_HANDLE;
  InstanceApi api_;
  std::mutex message_mutex_;
  std::vector<std::string> messages_;
};

}  // namespace oa::device::vulkan
