// Lowers a kernel to SPIR-V words for a Vulkan 1.3 compute pipeline.
//
// Module: SPIR-V 1.5, entry point "main" (GLCompute), LocalSize (width, 1, 1), no descriptors, and
// push constants as PushConstants says. The pipeline must run with subgroups of
// VulkanTarget::subgroup lanes, full where width is a multiple of it. The words depend on the
// kernel and the target alone; names never enter them.
#pragma once

#include <vector>

#include "oa/core/types.h"
#include "oa/kernel/ir.h"

namespace oa::codegen::spirv {

// What the device has. A kernel that needs what is absent is refused with MissingCapability.
struct VulkanTarget {
  u32 subgroup = 32;              // lanes of a subgroup
  u32 push_constant_bytes = 128;  // maxPushConstantsSize
  bool int64 = true;              // shaderInt64; every kernel needs it for addresses
  bool int16 = false;             // shaderInt16: BF16 cells in workgroup memory (else 4 bytes each)
  bool int8 = false;        // shaderInt8: U8 and Bool cells in workgroup memory (else 4 bytes each)
  bool f16 = false;         // shaderFloat16: F16 in workgroup memory and fragments
  bool f64 = false;         // shaderFloat64
  bool u8_storage = false;  // storageBuffer8BitAccess
  bool f16_storage = false;          // storageBuffer16BitAccess
  bool coop_matrix = false;          // VK_KHR_cooperative_matrix, 16x16x16
  bool bf16 = false;                 // VK_KHR_shader_bfloat16 with cooperative matrices
  bool vulkan_memory_model = false;  // for fragments, and barriers on device memory if it is there
  // shaderSignedZeroInfNanPreserveFloat32 / 64
  bool preserve_specials_f32 = false;
  bool preserve_specials_f64 = false;
  bool round_even_f16 = false;  // shaderRoundingModeRTEFloat16
  bool round_even_f32 = false;  // shaderRoundingModeRTEFloat32
  // What the device's arithmetic is known to do, else division and roots cost more instructions:
  bool fused_fma = false;       // Fma rounds once
  bool exact_division = false;  // FDiv and Sqrt round correctly without our correction

  bool operator==(const VulkanTarget&) const = default;
};

// Push constants of a kernel with `params` parameters.
//   offset 0   u32 group_count   workgroups of the whole dispatch (Op::GroupCount)
//   offset 4   u32 base_group    GroupId = base_group + wg.x; grids have one dimension, and their
//                                workgroups with GroupId >= group_count return at once
//   offset 8   u64 slots[params]           if everything fits into push_constant_bytes, otherwise
//   offset 8   u64 address of a block in device memory that holds the slots (aligned to 8 bytes)
struct PushConstants {
  bool in_block = false;  // the slots are in device memory
  u32 bytes = 8;          // size of the push constant range
};

constexpr PushConstants push_constants(u32 params, u32 push_constant_bytes) {
  const u64 direct = 8 + 8 * static_cast<u64>(params);
  if (direct <= push_constant_bytes) return {.in_block = false, .bytes = static_cast<u32>(direct)};
  return {.in_block = true, .bytes = 16};
}

// Bytes of workgroup memory that the module declares (cells may be wider than in the kernel).
u64 shared_bytes(const kernel::Kernel& kernel, const VulkanTarget& target);

// Throws MissingCapability naming the kernel if the target lacks something, Internal if the kernel
// is malformed.
std::vector<u32> compile_spirv(const kernel::Kernel& kernel, const VulkanTarget& target);

}  // namespace oa::codegen::spirv
