// Asks drivers what they can do, and derives from it what kernels may know.
#include "oa/device/vulkan/physical.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <thread>

#include "oa/core/error.h"

namespace oa::device::vulkan {
namespace {

constexpr u32 kSubgroupWanted = 32;
constexpr u32 kGroupWidth = 256;
constexpr u32 kSoftwareGroupWidth = 32;
constexpr u32 kMaxPushBytes = 256;

std::set<std::string> extensions_of(const InstanceApi& api, VkPhysicalDevice device) {
  u32 count = 0;
  api.device_extensions(device, nullptr, &count, nullptr);
  std::vector<VkExtensionProperties> list(count);
  api.device_extensions(device, nullptr, &count, list.data());
  std::set<std::string> names;
  for (u32 i = 0; i < count; ++i) names.insert(list[i].extensionName);
  return names;
}

template <class Struct>
void put_before(VkPhysicalDeviceFeatures2& head, Struct& item) {
  item.pNext = head.pNext;
  head.pNext = &item;
}

struct Properties {
  VkPhysicalDeviceProperties2 core{.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
  VkPhysicalDeviceVulkan11Properties v11{
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES};
  VkPhysicalDeviceVulkan12Properties v12{
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES};
  VkPhysicalDeviceVulkan13Properties v13{
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES};
  VkPhysicalDeviceShaderSMBuiltinsPropertiesNV nvidia{
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SM_BUILTINS_PROPERTIES_NV};
  VkPhysicalDeviceShaderCorePropertiesAMD amd{
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_PROPERTIES_AMD};

  Properties(bool with_nvidia, bool with_amd) {
    core.pNext = &v11;
    v11.pNext = &v12;
    v12.pNext = &v13;
    if (with_nvidia) v13.pNext = &nvidia;
    if (with_amd) v13.pNext = &amd;
  }
  Properties(const Properties&) = delete;

  const VkPhysicalDeviceLimits& limits() const { return core.properties.limits; }
};

DeviceKind kind_of(const Properties& p) {
  if (p.v12.driverID == VK_DRIVER_ID_MESA_LLVMPIPE ||
      p.v12.driverID == VK_DRIVER_ID_GOOGLE_SWIFTSHADER) {
    return DeviceKind::SoftwareGpu;
  }
  switch (p.core.properties.deviceType) {
    case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU:
    case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU: return DeviceKind::DiscreteGpu;
    case VK_PHYSICAL_DEVICE_TYPE_CPU: return DeviceKind::SoftwareGpu;
    default: return DeviceKind::IntegratedGpu;
  }
}

// Processors that each hold several workgroups; a guess where no vendor extension tells.
u32 core_count(DeviceKind kind, const Properties& p) {
  if (p.nvidia.shaderSMCount > 0) return p.nvidia.shaderSMCount;
  if (p.amd.shaderEngineCount > 0) {
    return p.amd.shaderEngineCount * p.amd.shaderArraysPerEngineCount *
           p.amd.computeUnitsPerShaderArray;
  }
  switch (kind) {
    case DeviceKind::DiscreteGpu: return 40;
    case DeviceKind::IntegratedGpu: return 8;
    default: return std::max(1u, std::thread::hardware_concurrency());
  }
}

std::string missing_requirements(const Features& f) {
  std::string missing;
  auto need = [&](VkBool32 present, const char* name) {
    if (!present) missing += (missing.empty() ? "" : ", ") + std::string(name);
  };
  need(f.v12.timelineSemaphore, "timelineSemaphore");
  need(f.v13.synchronization2, "synchronization2");
  need(f.v12.bufferDeviceAddress, "bufferDeviceAddress");
  need(f.v13.subgroupSizeControl, "subgroupSizeControl");
  need(f.core.features.shaderInt64, "shaderInt64");
  return missing;
}

bool has_shape(const std::vector<CooperativeMatrixShape>& shapes, Component ab, Component c) {
  return std::any_of(shapes.begin(), shapes.end(), [&](const CooperativeMatrixShape& s) {
    return s.scope == kSubgroupScope && s.m == 16 && s.n == 16 && s.k == 16 && s.a == ab &&
           s.b == ab && s.c == c && s.result == c && !s.saturating;
  });
}

std::vector<CooperativeMatrixShape> shapes_of(const InstanceApi& api, VkPhysicalDevice device) {
  u32 count = 0;
  if (api.cooperative_matrix_shapes == nullptr ||
      api.cooperative_matrix_shapes(device, &count, nullptr) != VK_SUCCESS) {
    return {};
  }
  std::vector<CooperativeMatrixShape> shapes(count);
  if (api.cooperative_matrix_shapes(device, &count, shapes.data()) != VK_SUCCESS) return {};
  shapes.resize(count);
  return shapes;
}

const char* component_name(Component c) {
  switch (c) {
    case Component::F16: return "f16";
    case Component::F32: return "f32";
    case Component::F64: return "f64";
    case Component::I8: return "i8";
    case Component::I16: return "i16";
    case Component::I32: return "i32";
    case Component::I64: return "i64";
    case Component::U8: return "u8";
    case Component::U16: return "u16";
    case Component::U32: return "u32";
    case Component::U64: return "u64";
    case Component::BF16: return "bf16";
  }
  return "?";
}

std::string shape_text(const std::vector<CooperativeMatrixShape>& shapes) {
  std::set<std::string> texts;
  for (const CooperativeMatrixShape& s : shapes) {
    if (s.scope != kSubgroupScope) continue;
    texts.insert(fmt::format("{}->{} {}x{}x{}", component_name(s.a), component_name(s.result), s.m,
                             s.n, s.k));
  }
  std::string all;
  for (const std::string& t : texts) all += (all.empty() ? "" : ", ") + t;
  return all.empty() ? "no" : all;
}

// Chooses the queue family: timestamps count most, then the absence of graphics, whose queues take
// 5 us longer to switch between submissions on NVIDIA.
bool choose_queue(const InstanceApi& api, Physical& p) {
  u32 count = 0;
  api.queue_families(p.handle, &count, nullptr);
  std::vector<VkQueueFamilyProperties2> families(
      count, {.sType = VK_STRUCTURE_TYPE_QUEUE_FAMILY_PROPERTIES_2});
  api.queue_families(p.handle, &count, families.data());
  int best = -1;
  for (u32 i = 0; i < count; ++i) {
    const VkQueueFamilyProperties& family = families[i].queueFamilyProperties;
    if (!(family.queueFlags & VK_QUEUE_COMPUTE_BIT) || family.queueCount == 0) continue;
    const int score =
        2 * (family.timestampValidBits != 0) + ((family.queueFlags & VK_QUEUE_GRAPHICS_BIT) == 0);
    if (score <= best) continue;
    best = score;
    p.queue_family = i;
    p.timestamp_bits = family.timestampValidBits;
  }
  return best >= 0;
}

void describe(Physical& p, const Properties& props, u32 cores) {
  auto yes_no = [](bool b) { return std::string(b ? "yes" : "no"); };
  const u32 api = props.core.properties.apiVersion;
  p.info.capabilities = {
      {"vulkan", fmt::format("{}.{}.{}", VK_API_VERSION_MAJOR(api), VK_API_VERSION_MINOR(api),
                             VK_API_VERSION_PATCH(api))},
      {"processors", fmt::format("{}", cores)},
      {"subgroup", p.min_subgroup == p.max_subgroup ? fmt::format("{}", p.min_subgroup)
                                                    : fmt::format("{} of {}-{}", p.target.subgroup,
                                                                  p.min_subgroup, p.max_subgroup)},
      {"subgroup shuffle", yes_no(p.subgroup_shuffle)},
      {"workgroup lanes", fmt::format("{} of at most {}", p.target.width, p.max_group_lanes)},
      {"workgroup memory", fmt::format("{} bytes", p.target.shared_bytes)},
      {"push constants", fmt::format("{} bytes", props.limits().maxPushConstantsSize)},
      {"f64", yes_no(p.has_f64)},
      {"f16 arithmetic", yes_no(p.has_f16)},
      {"i8 arithmetic", yes_no(p.has_i8)},
      {"16-bit storage", yes_no(p.storage16)},
      {"8-bit storage", yes_no(p.storage8)},
      {"bfloat16", yes_no(p.bfloat16)},
      {"cooperative matrix", shape_text(p.shapes)},
      {"memory mapped", yes_no(p.mapped)},
      {"memory budget", yes_no(p.memory_budget)},
      {"fault report", yes_no(p.fault)},
      {"timestamps", p.timestamp_bits == 0 ? "no"
                                           : fmt::format("{} bits, {} ns", p.timestamp_bits,
                                                         props.limits().timestampPeriod)},
  };
}

}  // namespace

void Features::link(bool with_fault, bool with_matrix, bool with_bfloat16) {
  core.pNext = nullptr;
  put_before(core, v11);
  put_before(core, v12);
  put_before(core, v13);
  if (with_fault) put_before(core, fault);
  if (with_matrix) put_before(core, matrix);
  if (with_bfloat16) put_before(core, bfloat16);
}

Physical probe(const Instance& instance, VkPhysicalDevice device) {
  const InstanceApi& api = instance.api();
  Physical p;
  p.handle = device;

  // Structs of Vulkan 1.3 may only be chained for a device that has it.
  VkPhysicalDeviceProperties2 basic{.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
  api.properties(device, &basic);
  p.info.name = basic.properties.deviceName;
  const u32 version = basic.properties.apiVersion;
  if (version < VK_API_VERSION_1_3) {
    p.unfit = fmt::format("it has Vulkan {}.{}, expected 1.3", VK_API_VERSION_MAJOR(version),
                          VK_API_VERSION_MINOR(version));
    return p;
  }

  const std::set<std::string> extensions = extensions_of(api, device);
  p.memory_budget = extensions.contains(VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
  p.fault = extensions.contains(VK_EXT_DEVICE_FAULT_EXTENSION_NAME);
  p.cooperative_matrix = extensions.contains(kCooperativeMatrixExtension);
  p.bfloat16 = extensions.contains(kBfloat16Extension);

  Features features;
  features.link(p.fault, p.cooperative_matrix, p.bfloat16);
  api.features(device, &features.core);
  if (std::string missing = missing_requirements(features); !missing.empty()) {
    p.unfit = "it lacks " + missing;
    return p;
  }
  Properties props(extensions.contains(VK_NV_SHADER_SM_BUILTINS_EXTENSION_NAME),
                   extensions.contains(VK_AMD_SHADER_CORE_PROPERTIES_EXTENSION_NAME));
  api.properties(device, &props.core);
  VkPhysicalDeviceMemoryProperties2 memory{
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2};
  api.memory_properties(device, &memory);
  p.memory = memory.memoryProperties;
  if (!choose_queue(api, p)) {
    p.unfit = "it has no compute queue";
    return p;
  }

  const VkSubgroupFeatureFlags shuffles = VK_SUBGROUP_FEATURE_SHUFFLE_BIT;
  const VkPhysicalDeviceLimits& limits = props.limits();
  p.fault = p.fault && features.fault.deviceFault;
  p.memory_model = features.v12.vulkanMemoryModel && features.v12.vulkanMemoryModelDeviceScope;
  p.has_f64 = features.core.features.shaderFloat64;
  p.has_i16 = features.core.features.shaderInt16;
  p.has_f16 = features.v12.shaderFloat16;
  p.has_i8 = features.v12.shaderInt8;
  p.storage16 = features.v11.storageBuffer16BitAccess;
  p.storage8 = features.v12.storageBuffer8BitAccess;
  p.subgroup_shuffle = (props.v11.subgroupSupportedOperations & shuffles) == shuffles &&
                       (props.v11.subgroupSupportedStages & VK_SHADER_STAGE_COMPUTE_BIT);
  p.full_subgroups = features.v13.computeFullSubgroups;
  p.required_subgroup = props.v13.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT;
  p.preserve_specials_f32 = props.v12.shaderSignedZeroInfNanPreserveFloat32;
  p.preserve_specials_f64 = props.v12.shaderSignedZeroInfNanPreserveFloat64;
  // A module that asks for the mode of some widths only needs them to be independent.
  const bool free_rounding =
      props.v12.roundingModeIndependence == VK_SHADER_FLOAT_CONTROLS_INDEPENDENCE_ALL;
  p.round_even_f16 = free_rounding && props.v12.shaderRoundingModeRTEFloat16;
  p.round_even_f32 = free_rounding && props.v12.shaderRoundingModeRTEFloat32;
  p.cooperative_matrix = p.cooperative_matrix && features.matrix.matrix && p.memory_model;
  p.bfloat16 = p.bfloat16 && features.bfloat16.type && features.bfloat16.cooperative_matrix;
  if (p.cooperative_matrix) p.shapes = shapes_of(api, device);

  p.timestamp_seconds = static_cast<f64>(limits.timestampPeriod) * 1e-9;
  p.min_subgroup = props.v13.minSubgroupSize;
  p.max_subgroup = props.v13.maxSubgroupSize;
  p.push_bytes = std::min(limits.maxPushConstantsSize, kMaxPushBytes);
  p.max_group_lanes =
      std::min(limits.maxComputeWorkGroupInvocations, limits.maxComputeWorkGroupSize[0]);
  p.max_buffer_bytes = props.v13.maxBufferSize;
  p.max_groups = limits.maxComputeWorkGroupCount[0];
  std::memcpy(p.cache_uuid.data(), basic.properties.pipelineCacheUUID, VK_UUID_SIZE);

  DeviceInfo& info = p.info;
  info.kind = kind_of(props);
  info.driver = fmt::format("{} {}", props.v12.driverName, props.v12.driverInfo);
  for (u32 h = 0; h < p.memory.memoryHeapCount; ++h) {
    if (p.memory.memoryHeaps[h].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) {
      info.memory_bytes = std::max<u64>(info.memory_bytes, p.memory.memoryHeaps[h].size);
    }
  }
  // maxMemoryAllocationSize is only what is sure to work; NVIDIA says 4 GiB and grants far more.
  info.max_allocation = std::min<u64>(props.v13.maxBufferSize, info.memory_bytes);
  p.mapped = info.kind != DeviceKind::DiscreteGpu &&
             p.memory_type(~0u, kMappedMemory, 0) != VK_MAX_MEMORY_TYPES;

  const u32 cores = core_count(info.kind, props);
  p.flops_per_second = p.is_software() ? 0.5e9 : cores * 10e9;
  kernel::Target& target = p.target;
  target.kind = kernel::Target::Kind::Vulkan;
  target.subgroup = std::clamp(kSubgroupWanted, p.min_subgroup, p.max_subgroup);
  target.width = std::min(p.is_software() ? kSoftwareGroupWidth : kGroupWidth,
                          std::bit_floor(p.max_group_lanes));
  target.vector_registers = 0;
  target.vector_bytes = 0;
  target.shared_bytes = limits.maxComputeSharedMemorySize;
  target.threads = cores * (p.is_software() ? 2 : 8);
  target.f64 = p.has_f64;
  target.fragments =
      p.has_f16 && p.storage16 && has_shape(p.shapes, Component::F16, Component::F32);
  target.fragments_bf16 =
      target.fragments && p.bfloat16 && has_shape(p.shapes, Component::BF16, Component::F32);
  describe(p, props, cores);
  return p;
}

std::vector<Physical> probe_all(const Instance& instance) {
  std::vector<Physical> all;
  for (VkPhysicalDevice device : instance.physical_devices()) {
    all.push_back(probe(instance, device));
  }
  auto rank = [](const Physical& p) {
    return p.unfit.empty() ? static_cast<int>(p.info.kind) : 100;
  };
  std::stable_sort(all.begin(), all.end(),
                   [&](const Physical& a, const Physical& b) { return rank(a) < rank(b); });
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].unfit.empty()) all[i].info.id = fmt::format("vulkan:{}", i);
  }
  return all;
}

u32 Physical::memory_type(u32 allowed_bits, VkMemoryPropertyFlags wanted,
                          VkMemoryPropertyFlags liked) const {
  constexpr VkMemoryPropertyFlags kUnusable =
      VK_MEMORY_PROPERTY_PROTECTED_BIT | VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT |
      VK_MEMORY_PROPERTY_DEVICE_COHERENT_BIT_AMD | VK_MEMORY_PROPERTY_DEVICE_UNCACHED_BIT_AMD;
  u32 best = VK_MAX_MEMORY_TYPES;
  auto score = [&](u32 type) {
    const VkMemoryType& t = memory.memoryTypes[type];
    return std::pair(std::popcount(t.propertyFlags & liked), memory.memoryHeaps[t.heapIndex].size);
  };
  for (u32 type = 0; type < memory.memoryTypeCount; ++type) {
    const VkMemoryPropertyFlags flags = memory.memoryTypes[type].propertyFlags;
    if (!(allowed_bits >> type & 1) || (flags & wanted) != wanted || (flags & kUnusable)) continue;
    if (best == VK_MAX_MEMORY_TYPES || score(type) > score(best)) best = type;
  }
  return best;
}

u64 Physical::memory_left(const InstanceApi& api) const {
  if (!memory_budget) return 0;
  VkPhysicalDeviceMemoryBudgetPropertiesEXT budget{
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
  VkPhysicalDeviceMemoryProperties2 properties{
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2, .pNext = &budget};
  api.memory_properties(handle, &properties);
  u64 left = 0;
  for (u32 h = 0; h < memory.memoryHeapCount; ++h) {
    if (!(memory.memoryHeaps[h].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT)) continue;
    left += budget.heapBudget[h] - std::min(budget.heapBudget[h], budget.heapUsage[h]);
  }
  return left;
}

}  // namespace oa::device::vulkan
