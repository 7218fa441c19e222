// Element types that tensor files hold; more of them than the library computes with.
#pragma once

#include <optional>
#include <string_view>

#include "oa/core/dtype.h"

namespace oa::ml {

// The values up to C128 are the codes of .oam files. F8 types exist in safetensors only.
enum class FileDType : u8 {
  F32,
  BF16,
  F16,
  I8,
  I32,
  U8,
  F64,
  I16,
  I64,
  U16,
  U32,
  U64,
  Bool,
  C64,   // two F32
  C128,  // two F64
  F8E5M2,
  F8E4M3,
};

inline constexpr u8 kOamDTypes = 15;  // codes below this one exist in .oam files

u32 size_bytes(FileDType t);
std::string_view token(FileDType t);  // "f32", "bf16", "c64", "f8_e5m2", ...

bool is_float(FileDType t);  // real floating-point types

FileDType to_file(DType t);
// The type of a Matrix with these very bits, or nothing.
std::optional<DType> to_dtype(FileDType t);

}  // namespace oa::ml
