// One named tensor as the file formats take and give it: name, element type, shape and bytes.
#pragma once

#include <span>
#include <string>

#include "oa/core/shape.h"
#include "oa/ml/checkpoint/file_dtype.h"

namespace oa::ml {

// How `bytes` stand for the values. Only .oam files have others than Dense.
enum class Encoding : u8 {
  Dense,  // row-major, little-endian
  Q4,     // blocks of 32 values as 4-bit integers with a scale (quantize.h)
  Q8,     // the same with 8-bit integers
};

std::string_view token(Encoding e);  // "dense", "q4", "q8"

struct TensorView {
  std::string name;
  FileDType dtype = FileDType::F32;
  Shape shape;                // rank 0 is a scalar with one element
  std::span<const u8> bytes;  // of somebody else; need not be aligned to the element
  Encoding encoding = Encoding::Dense;
};

inline constexpr u32 kMaxFileRank = 64;  // in any file

// Elements of a shape from outside, or nothing when they exceed 2^63 - 1 or an extent is negative.
std::optional<u64> checked_elements(const Shape& shape);
// The size of dense values, or nothing when it exceeds 2^63 - 1.
std::optional<u64> checked_bytes(const Shape& shape, FileDType dtype);

// A name that is not empty, valid UTF-8 and free of NUL characters.
bool is_valid_name(std::string_view name);

// Throws InvalidArgument unless names are valid and unique, there are at most kMaxFileRank axes,
// and bytes fit dtype, shape and encoding.
void check_tensors(std::string_view op, std::span<const TensorView> tensors);

}  // namespace oa::ml
