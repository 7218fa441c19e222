// A physical device: what it is, what it can do, and whether we can use it.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "oa/device/device.h"
#include "oa/device/vulkan/instance.h"

namespace oa::device::vulkan {

// The chain of feature structs, used both to ask and to enable.
struct Features {
  VkPhysicalDeviceFeatures2 core{.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2};
  VkPhysicalDeviceVulkan11Features v11{.sType =
                                           VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES};
  VkPhysicalDeviceVulkan12Features v12{.sType =
                                           VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES};
  VkPhysicalDeviceVulkan13Features v13{.sType =
                                           VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES};
  VkPhysicalDeviceFaultFeaturesEXT fault{.sType =
                                             VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FAULT_FEATURES_EXT};
  CooperativeMatrixFeatures matrix;
  Bfloat16Features bfloat16;

  // Links the structs of core Vulkan and of the extensions that are there; the address of `core`
  // is the chain. The object must not move afterwards.
  void link(bool with_fault, bool with_matrix, bool with_bfloat16);
};

// Device memory that the host can use without staging.
inline constexpr VkMemoryPropertyFlags kMappedMemory = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT |
                                                       VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
                                                       VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;

struct Physical {
  VkPhysicalDevice handle = VK_NULL_HANDLE;
  DeviceInfo info;
  kernel::Target target;
  std::string unfit;  // why the device cannot be used; empty when it can

  // Extensions that exist and are enabled when the device is opened.
  bool memory_budget = false;
  bool fault = false;
  bool cooperative_matrix = false;
  bool bfloat16 = false;

  // Features beyond the required ones.
  bool has_f64 = false;
  bool has_f16 = false;
  bool has_i8 = false;
  bool has_i16 = false;
  bool storage16 = false;
  bool storage8 = false;
  bool subgroup_shuffle = false;
  bool full_subgroups = false;
  bool required_subgroup = false;  // a compute pipeline may ask for its subgroup size
  bool memory_model = false;
  bool preserve_specials_f32 = false;  // signed zero, infinity, NaN
  bool preserve_specials_f64 = false;
  bool round_even_f16 = false;
  bool round_even_f32 = false;

  u32 queue_family = 0;
  u32 timestamp_bits = 0;
  f64 timestamp_seconds = 0;  // per tick
  u32 min_subgroup = 0;
  u32 max_subgroup = 0;
  u32 push_bytes = 0;  // push constants that we use
  u32 max_group_lanes = 0;
  u64 max_buffer_bytes = 0;
  u32 max_groups = 0;        // of one grid
  f64 flops_per_second = 0;  // a cautious guess, to keep submissions short
  bool mapped = false;       // device memory is mapped for the host
  std::array<u8, VK_UUID_SIZE> cache_uuid{};
  VkPhysicalDeviceMemoryProperties memory{};
  std::vector<CooperativeMatrixShape> shapes;

  bool is_software() const { return info.kind == DeviceKind::SoftwareGpu; }
  // The memory type with all of `wanted` and most of `liked` (never protected or lazy), in the
  // largest heap; VK_MAX_MEMORY_TYPES if there is none.
  u32 memory_type(u32 allowed_bits, VkMemoryPropertyFlags wanted,
                  VkMemoryPropertyFlags liked) const;
  // Bytes that the heaps of the device's own memory still have; 0 where the driver does not say.
  u64 memory_left(const InstanceApi& api) const;
};

Physical probe(const Instance& instance, VkPhysicalDevice device);

// All devices, those that fit first, best kind first, and otherwise in the loader's order. Devices
// that fit have their `info.id`.
std::vector<Physical> probe_all(const Instance& instance);

}  // namespace oa::device::vulkan
