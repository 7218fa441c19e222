// Trials: small kernels whose results are known, run once per driver, because drivers advertise
// what they compute wrongly, and because Vulkan does not say how exactly they divide.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "oa/codegen/cache.h"
#include "oa/device/device.h"
#include "oa/device/vulkan/physical.h"

namespace oa::device::vulkan {

// What the trials found. Without them nothing is trusted.
struct Trust {
  bool fused_fma = false;       // Fma rounds once
  bool exact_division = false;  // FDiv and Sqrt round correctly
  bool fragments = false;       // f16 x f16 -> f32
  bool fragments_bf16 = false;
  bool fragments_subnormal = false;  // f16 x f16 -> f32 computes with subnormal numbers

  bool operator==(const Trust&) const = default;
};

// A kernel with inputs and the outputs that it must leave, bit for bit.
struct Trial {
  struct Block {
    std::vector<u8> before;
    std::vector<u8> after;
  };
  kernel::Kernel kernel;
  std::vector<Block> blocks;  // one per parameter, which is its address
};

// Fused multiply-add, or division and square root, of F32 or F64, on numbers that single out
// results off by one bit.
Trial fma_trial(const kernel::Target& target, kernel::Scalar scalar);
Trial division_trial(const kernel::Target& target, kernel::Scalar scalar);
// Products of 16x16x16 fragments of F16 or BF16 with F32 accumulation, from device and workgroup
// memory in all layouts, against double precision. The numbers use every bit of the type, and are
// such that every order of summation is exact. Subnormal: A has only subnormal halves.
enum class FragmentNumbers : u8 { Normal, Subnormal };
Trial fragment_trial(const kernel::Target& target, kernel::Scalar scalar,
                     FragmentNumbers numbers = FragmentNumbers::Normal);

using CompileOne = std::function<std::shared_ptr<Executable>(const kernel::Kernel&)>;

// Runs a trial on a device; false also when the driver refuses the kernel.
bool passes(Device& device, const CompileOne& compile, const Trial& trial);

// The trust of a device: from disk if this driver was tried before, else by trials. `compile` must
// lower without any correction. A driver that dies in a trial of fragments is tried again only
// twice.
Trust find_trust(Device& device, const Physical& physical, codegen::CodeCache& disk,
                 const CompileOne& compile);

}  // namespace oa::device::vulkan
