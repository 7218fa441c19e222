// Readable text of kernels, which parse.h reads back.
//
//   kernel "axpy" width 16 subgroup 16 params 3
//   shared s0 f32[32]
//   var v0 f32
//   {
//     %0 = param u64 0
//     %1 = const f32 2
//     %2 = lane_id u32
//     %3 = load.f16 f32 %0, %2
//     %4 = mul f32 %3, %1
//     if %5 {
//       var_store v0 %4
//     }
//   }
//
// One instruction a line; `.f16` is the element type in memory. Fragments have types such as
// `frag_a<f16,16x8>`; a load may be `constant`, a store `streaming`, a loop `rolled`. A constant
// that starts with 0x gives the bits of the value. `;` starts a comment.
#pragma once

#include <string>

#include "oa/kernel/ir.h"

namespace oa::kernel {

std::string print(const Kernel& kernel);

// One instruction on one line, without its regions; for messages.
std::string print(const Kernel& kernel, ValueId id);

std::string print(const Type& type);

}  // namespace oa::kernel
