// The Vulkan API as this folder sees it: volk's declarations, the instance functions that we call,
// and the extensions that are newer than the distribution's headers.
#pragma once

#include <volk.h>

#include "oa/core/types.h"

namespace oa::device::vulkan {

// VK_KHR_cooperative_matrix and VK_KHR_shader_bfloat16 under names of our own, so that newer
// headers do not collide. Values and layouts are those of the Vulkan registry.
inline constexpr const char* kCooperativeMatrixExtension = "VK_KHR_cooperative_matrix";
inline constexpr const char* kBfloat16Extension = "VK_KHR_shader_bfloat16";

inline constexpr auto kCooperativeMatrixFeaturesType = static_cast<VkStructureType>(1000506000);
inline constexpr auto kCooperativeMatrixShapeType = static_cast<VkStructureType>(1000506001);
inline constexpr auto kBfloat16FeaturesType = static_cast<VkStructureType>(1000141000);

enum class Component : u32 {
  F16 = 0,
  F32 = 1,
  F64 = 2,
  I8 = 3,
  I16 = 4,
  I32 = 5,
  I64 = 6,
  U8 = 7,
  U16 = 8,
  U32 = 9,
  U64 = 10,
  BF16 = 1000141000,
};
inline constexpr u32 kSubgroupScope = 3;

struct CooperativeMatrixFeatures {
  VkStructureType sType = kCooperativeMatrixFeaturesType;
  void* pNext = nullptr;
  VkBool32 matrix = VK_FALSE;
  VkBool32 robust_access = VK_FALSE;
};

struct CooperativeMatrixShape {
  VkStructureType sType = kCooperativeMatrixShapeType;
  void* pNext = nullptr;
  u32 m = 0;
  u32 n = 0;
  u32 k = 0;
  Component a = Component::F16;
  Component b = Component::F16;
  Component c = Component::F16;
  Component result = Component::F16;
  VkBool32 saturating = VK_FALSE;
  u32 scope = 0;
};

struct Bfloat16Features {
  VkStructureType sType = kBfloat16FeaturesType;
  void* pNext = nullptr;
  VkBool32 type = VK_FALSE;
  VkBool32 dot_product = VK_FALSE;
  VkBool32 cooperative_matrix = VK_FALSE;
};

using GetCooperativeMatrixShapes = VkResult(VKAPI_PTR*)(VkPhysicalDevice, u32*,
                                                        CooperativeMatrixShape*);

// Functions of one instance; held per instance because volk's own table is shared by the process.
struct InstanceApi {
  PFN_vkDestroyInstance destroy_instance = nullptr;
  PFN_vkEnumeratePhysicalDevices physical_devices = nullptr;
  PFN_vkEnumerateDeviceExtensionProperties device_extensions = nullptr;
  PFN_vkGetPhysicalDeviceProperties2 properties = nullptr;
  PFN_vkGetPhysicalDeviceFeatures2 features = nullptr;
  PFN_vkGetPhysicalDeviceMemoryProperties2 memory_properties = nullptr;
  PFN_vkGetPhysicalDeviceQueueFamilyProperties2 queue_families = nullptr;
  PFN_vkCreateDevice create_device = nullptr;
  PFN_vkCreateDebugUtilsMessengerEXT create_messenger = nullptr;    // only with validation
  PFN_vkDestroyDebugUtilsMessengerEXT destroy_messenger = nullptr;  // only with validation
  PFN_vkSubmitDebugUtilsMessageEXT submit_message = nullptr;        // only with validation
  GetCooperativeMatrixShapes cooperative_matrix_shapes = nullptr;   // may be absent
};

// "VK_ERROR_OUT_OF_DEVICE_MEMORY", or the number of a code unknown to us.
const char* result_name(VkResult result);

}  // namespace oa::device::vulkan
