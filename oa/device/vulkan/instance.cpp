// Opening of the loader and creation of instances.
#include "oa/device/vulkan/instance.h"

#include <algorithm>
#include <cstring>

#include "oa/core/error.h"

namespace oa::device::vulkan {
namespace {

constexpr const char* kValidationLayer = "VK_LAYER_KHRONOS_validation";

// Guards volk's process-wide function table and the shared instance.
std::mutex& loader_mutex() {
  static std::mutex mutex;
  return mutex;
}

void open_loader() {
  if (volkGetInstanceVersion() == 0 && volkInitialize() != VK_SUCCESS) {
    fail(ErrorKind::BackendUnavailable, "open_vulkan",
         "no Vulkan loader was found, got no libvulkan.so.1, expected an installed Vulkan driver");
  }
  const u32 version = volkGetInstanceVersion();
  if (version < VK_API_VERSION_1_3) {
    fail(ErrorKind::UnsupportedBackendVersion, "open_vulkan",
         "the Vulkan loader is too old, got {}.{}, expected 1.3", VK_API_VERSION_MAJOR(version),
         VK_API_VERSION_MINOR(version));
  }
}

bool has_layer(const char* name) {
  u32 count = 0;
  vkEnumerateInstanceLayerProperties(&count, nullptr);
  std::vector<VkLayerProperties> layers(count);
  vkEnumerateInstanceLayerProperties(&count, layers.data());
  return std::any_of(layers.begin(), layers.begin() + count, [&](const VkLayerProperties& l) {
    return std::strcmp(l.layerName, name) == 0;
  });
}

template <class Function>
void load(VkInstance instance, Function& function, const char* name) {
  function = reinterpret_cast<Function>(vkGetInstanceProcAddr(instance, name));
}

InstanceApi load_api(VkInstance instance) {
  InstanceApi api;
  load(instance, api.destroy_instance, "vkDestroyInstance");
  load(instance, api.physical_devices, "vkEnumeratePhysicalDevices");
  load(instance, api.device_extensions, "vkEnumerateDeviceExtensionProperties");
  load(instance, api.properties, "vkGetPhysicalDeviceProperties2");
  load(instance, api.features, "vkGetPhysicalDeviceFeatures2");
  load(instance, api.memory_properties, "vkGetPhysicalDeviceMemoryProperties2");
  load(instance, api.queue_families, "vkGetPhysicalDeviceQueueFamilyProperties2");
  load(instance, api.create_device, "vkCreateDevice");
  load(instance, api.create_messenger, "vkCreateDebugUtilsMessengerEXT");
  load(instance, api.destroy_messenger, "vkDestroyDebugUtilsMessengerEXT");
  load(instance, api.submit_message, "vkSubmitDebugUtilsMessageEXT");
  load(instance, api.cooperative_matrix_shapes,
       "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR");
  return api;
}

}  // namespace

const char* result_name(VkResult result) {
  switch (result) {
    case VK_SUCCESS: return "VK_SUCCESS";
    case VK_NOT_READY: return "VK_NOT_READY";
    case VK_TIMEOUT: return "VK_TIMEOUT";
    case VK_INCOMPLETE: return "VK_INCOMPLETE";
    case VK_ERROR_OUT_OF_HOST_MEMORY: return "VK_ERROR_OUT_OF_HOST_MEMORY";
    case VK_ERROR_OUT_OF_DEVICE_MEMORY: return "VK_ERROR_OUT_OF_DEVICE_MEMORY";
    case VK_ERROR_INITIALIZATION_FAILED: return "VK_ERROR_INITIALIZATION_FAILED";
    case VK_ERROR_DEVICE_LOST: return "VK_ERROR_DEVICE_LOST";
    case VK_ERROR_MEMORY_MAP_FAILED: return "VK_ERROR_MEMORY_MAP_FAILED";
    case VK_ERROR_LAYER_NOT_PRESENT: return "VK_ERROR_LAYER_NOT_PRESENT";
    case VK_ERROR_EXTENSION_NOT_PRESENT: return "VK_ERROR_EXTENSION_NOT_PRESENT";
    case VK_ERROR_FEATURE_NOT_PRESENT: return "VK_ERROR_FEATURE_NOT_PRESENT";
    case VK_ERROR_INCOMPATIBLE_DRIVER: return "VK_ERROR_INCOMPATIBLE_DRIVER";
    case VK_ERROR_TOO_MANY_OBJECTS: return "VK_ERROR_TOO_MANY_OBJECTS";
    case VK_ERROR_UNKNOWN: return "VK_ERROR_UNKNOWN";
    case VK_ERROR_OUT_OF_POOL_MEMORY: return "VK_ERROR_OUT_OF_POOL_MEMORY";
    case VK_ERROR_INVALID_EXTERNAL_HANDLE: return "VK_ERROR_INVALID_EXTERNAL_HANDLE";
    case VK_ERROR_FRAGMENTATION: return "VK_ERROR_FRAGMENTATION";
    case VK_ERROR_INVALID_OPAQUE_CAPTURE_ADDRESS: return "VK_ERROR_INVALID_OPAQUE_CAPTURE_ADDRESS";
    case VK_ERROR_VALIDATION_FAILED_EXT: return "VK_ERROR_VALIDATION_FAILED_EXT";
    case VK_ERROR_INVALID_SHADER_NV: return "VK_ERROR_INVALID_SHADER_NV";
    default: return "an unknown VkResult";
  }
}

std::shared_ptr<Instance> Instance::open(bool validation) {
  static std::weak_ptr<Instance> shared;
  std::lock_guard lock(loader_mutex());
  if (validation) return std::shared_ptr<Instance>(new Instance(true));
  std::shared_ptr<Instance> instance = shared.lock();
  if (!instance) {
    instance.reset(new Instance(false));
    shared = instance;
  }
  return instance;
}

Instance::Instance(bool validation) {
  open_loader();
  create(validation);
}

void Instance::create(bool validation) {
  if (validation && !has_layer(kValidationLayer)) {
    fail(ErrorKind::BackendUnavailable, "open_vulkan",
         "validation was asked for, got no layer {}, expected it to be installed",
         kValidationLayer);
  }
  const VkApplicationInfo application{.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                      .pApplicationName = "oa",
                                      .pEngineName = "oa",
                                      .apiVersion = VK_API_VERSION_1_3};
  VkInstanceCreateInfo info{.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                            .pApplicationInfo = &application};

  const VkDebugUtilsMessengerCreateInfoEXT messenger{
      .sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
      .messageSeverity = VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
      .messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT,
      .pfnUserCallback = on_message,
      .pUserData = this};
  const VkValidationFeatureEnableEXT synchronization =
      VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT;
  const VkValidationFeaturesEXT features{.sType = VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT,
                                         .pNext = &messenger,
                                         .enabledValidationFeatureCount = 1,
                                         .pEnabledValidationFeatures = &synchronization};
  const char* const extension = VK_EXT_DEBUG_UTILS_EXTENSION_NAME;
  if (validation) {
    info.pNext = &features;
    info.enabledLayerCount = 1;
    info.ppEnabledLayerNames = &kValidationLayer;
    info.enabledExtensionCount = 1;
    info.ppEnabledExtensionNames = &extension;
  }

  const VkResult result = vkCreateInstance(&info, nullptr, &handle_);
  if (result == VK_ERROR_INCOMPATIBLE_DRIVER) {
    fail(ErrorKind::BackendUnavailable, "open_vulkan",
         "no Vulkan driver was found, got {}, expected an installed driver", result_name(result));
  }
  if (result != VK_SUCCESS) {
    fail(ErrorKind::BackendUnavailable, "open_vulkan",
         "no Vulkan instance could be created, got {}, expected VK_SUCCESS", result_name(result));
  }
  volkLoadInstanceOnly(handle_);
  api_ = load_api(handle_);
  if (validation) api_.create_messenger(handle_, &messenger, nullptr, &messenger_);
}

Instance::~Instance() {
  if (messenger_ != VK_NULL_HANDLE) api_.destroy_messenger(handle_, messenger_, nullptr);
  std::lock_guard lock(loader_mutex());
  // Destroying the last instance unloads the drivers, and loading one again and again ends in
  // failures (NVIDIA's after some thirty times). So the first instance that closes stays, unused.
  static VkInstance kept = VK_NULL_HANDLE;
  if (kept == VK_NULL_HANDLE && !validates()) {
    kept = handle_;
    return;
  }
  api_.destroy_instance(handle_, nullptr);
}

std::vector<VkPhysicalDevice> Instance::physical_devices() const {
  u32 count = 0;
  if (api_.physical_devices(handle_, &count, nullptr) != VK_SUCCESS) return {};
  std::vector<VkPhysicalDevice> devices(count);
  const VkResult result = api_.physical_devices(handle_, &count, devices.data());
  devices.resize(result == VK_SUCCESS || result == VK_INCOMPLETE ? count : 0);
  return devices;
}

VkResult Instance::create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo& create,
                                 VkDevice* device, VolkDeviceTable* table) const {
  std::lock_guard lock(loader_mutex());
  const VkResult result = api_.create_device(physical, &create, nullptr, device);
  if (result == VK_SUCCESS) volkLoadDeviceTable(table, *device);
  return result;
}

void Instance::inject_error(const char* message) const {
  const VkDebugUtilsMessengerCallbackDataEXT data{
      .sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CALLBACK_DATA_EXT, .pMessage = message};
  api_.submit_message(handle_, VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
                      VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT, &data);
}

std::vector<std::string> Instance::take_messages() {
  std::lock_guard lock(message_mutex_);
  return std::exchange(messages_, {});
}

VkBool32 VKAPI_PTR Instance::on_message(VkDebugUtilsMessageSeverityFlagBitsEXT,
                                        VkDebugUtilsMessageTypeFlagsEXT,
                                        const VkDebugUtilsMessengerCallbackDataEXT* data,
                                        void* instance) {
  Instance& self = *static_cast<Instance*>(instance);
  std::lock_guard lock(self.message_mutex_);
  if (self.messages_.size() < 100) self.messages_.emplace_back(data->pMessage);
  return VK_FALSE;
}

}  // namespace oa::device::vulkan
