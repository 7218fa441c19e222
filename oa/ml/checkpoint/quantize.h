// Blocks of 32 F32 values as small integers with one scale: the Q4 and Q8 encodings of .oam
// weights.
//
// Stored are all integers, block after block (16 or 32 bytes each), and then one F32 scale a block.
// The last block is filled up with zeros. A block's scale is its largest finite magnitude divided
// by 7 or 127; values that are not finite become 0.
#pragma once

#include <vector>

#include "oa/ml/checkpoint/tensor_view.h"

namespace oa::ml {

inline constexpr u64 kQuantBlock = 32;

// Bytes that n values take as Q4 or Q8.
u64 quantized_bytes(u64 n, Encoding encoding);

// `values` are the bytes of F32 values, at least one. Rounding is to nearest even.
std::vector<u8> quantize(std::span<const u8> values, Encoding encoding);

// The bytes of the n F32 values that `stored` (of quantized_bytes(n)) stands for.
std::vector<u8> dequantize(std::span<const u8> stored, u64 n, Encoding encoding);

}  // namespace oa::ml
