// SPIR-V numbers that the packaged headers do not know yet: SPV_KHR_cooperative_matrix and
// SPV_KHR_bfloat16.
#pragma once

#include <spirv/unified1/spirv.hpp11>

namespace oa::codegen::spirv {

inline constexpr auto kOpTypeCooperativeMatrixKHR = static_cast<spv::Op>(4456);
inline constexpr auto kOpCooperativeMatrixLoadKHR = static_cast<spv::Op>(4457);
inline constexpr auto kOpCooperativeMatrixStoreKHR = static_cast<spv::Op>(4458);
inline constexpr auto kOpCooperativeMatrixMulAddKHR = static_cast<spv::Op>(4459);
inline constexpr auto kOpCooperativeMatrixLengthKHR = static_cast<spv::Op>(4460);

inline constexpr auto kCapabilityCooperativeMatrixKHR = static_cast<spv::Capability>(6022);
inline constexpr auto kCapabilityBFloat16TypeKHR = static_cast<spv::Capability>(5116);
inline constexpr auto kCapabilityBFloat16CooperativeMatrixKHR = static_cast<spv::Capability>(5118);

inline constexpr unsigned kFpEncodingBFloat16KHR = 0;

inline constexpr char kExtensionCooperativeMatrix[] = "SPV_KHR_cooperative_matrix";
inline constexpr char kExtensionBFloat16[] = "SPV_KHR_bfloat16";

}  // namespace oa::codegen::spirv
