// Helpers of the SPIR-V tests: the validator of SPIRV-Tools, and a walker over the words for what
// it does not know (cooperative matrices).
#pragma once

#include <gtest/gtest.h>
#include <spirv-tools/libspirv.h>

#include <functional>
#include <string>
#include <vector>

#include "oa/codegen/spirv/lower.h"
#include "oa/kernel/lang.h"

namespace oa::codegen::spirv::test {

// A device that has everything.
inline VulkanTarget full_target() {
  VulkanTarget t;
  t.subgroup = 32;
  t.int16 = t.int8 = t.f16 = t.f64 = t.u8_storage = t.f16_storage = true;
  t.coop_matrix = t.bf16 = t.vulkan_memory_model = true;
  t.preserve_specials_f32 = t.preserve_specials_f64 = true;
  t.round_even_f16 = t.round_even_f32 = t.fused_fma = true;
  return t;
}

// A device that has what Vulkan 1.3 promises, and 64-bit integers.
inline VulkanTarget bare_target() { return {}; }

inline kernel::Kernel traced(const std::function<void()>& body, u32 width = 64,
                             std::string name = "test") {
  kernel::Target target;
  target.kind = kernel::Target::Kind::Vulkan;
  target.width = width;
  target.subgroup = 32;
  target.fragments = target.fragments_bf16 = true;
  return kernel::trace(std::move(name), target, width, body);
}

// Empty if the words are valid for Vulkan 1.3, else what the validator says, and the listing.
inline std::string validate(const std::vector<u32>& words) {
  spv_context context = spvContextCreate(SPV_ENV_VULKAN_1_3);
  spv_diagnostic diagnostic = nullptr;
  const spv_result_t result = spvValidateBinary(context, words.data(), words.size(), &diagnostic);
  std::string message;
  if (result != SPV_SUCCESS) {
    message = diagnostic ? diagnostic->error : "invalid";
    spv_text text = nullptr;
    if (spvBinaryToText(context, words.data(), words.size(), SPV_BINARY_TO_TEXT_OPTION_INDENT,
                        &text, nullptr) == SPV_SUCCESS) {
      message += "\n" + std::string(text->str, text->length);
    }
    spvTextDestroy(text);
  }
  spvDiagnosticDestroy(diagnostic);
  spvContextDestroy(context);
  return message;
}

struct Word {
  u32 op = 0;
  std::vector<u32> operands;
};

// The instructions of a module; fails the test if the word counts do not add up.
inline std::vector<Word> walk(const std::vector<u32>& words) {
  std::vector<Word> all;
  for (size_t at = 5; at < words.size();) {
    const u32 count = words[at] >> 16;
    if (count == 0 || at + count > words.size()) {
      ADD_FAILURE() << "broken instruction at word " << at;
      break;
    }
    all.push_back({words[at] & 0xffff,
                   {words.begin() + static_cast<long>(at) + 1,
                    words.begin() + static_cast<long>(at + count)}});
    at += count;
  }
  return all;
}

inline std::vector<Word> find(const std::vector<Word>& module, u32 op) {
  std::vector<Word> found;
  for (const Word& w : module) {
    if (w.op == op) found.push_back(w);
  }
  return found;
}

inline bool has_capability(const std::vector<Word>& module, u32 capability) {
  for (const Word& w : find(module, 17)) {
    if (w.operands[0] == capability) return true;
  }
  return false;
}

}  // namespace oa::codegen::spirv::test
