// NumPy's `.npy` format: one array behind a header that is a Python dictionary.
//
// Read are versions 1 to 3, both byte orders and both memory orders; arrays of objects, text, dates
// or records are refused by name. Written is version 1, little-endian, row-major.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "oa/core/file.h"
#include "oa/ml/checkpoint/tensor_view.h"

namespace oa::ml {

inline constexpr u64 kNpyPrefix = 12;               // bytes that always tell the header's length
inline constexpr u64 kMaxNpyHeader = u64{1} << 16;  // longest header text that is read

struct NpyHeader {
  FileDType dtype = FileDType::F32;
  Shape shape;
  bool big_endian = false;
  bool column_major = false;
  u64 values_at = 0;     // offset of the first value in the file
  u64 values_bytes = 0;  // what dtype and shape need
};

// Offset of the first value, from the first kNpyPrefix bytes (or all there are). Throws DataLoss
// unless they start an .npy of a known version with a header up to kMaxNpyHeader.
u64 npy_values_at(std::span<const u8> start);

// `start` begins with the whole header. Throws DataLoss for a malformed one, and InvalidArgument
// for an element type that is not in FileDType.
NpyHeader parse_npy_header(std::span<const u8> start);

// Whether the values of a file are row-major and little-endian already.
bool is_plain(const NpyHeader& header);

// Row-major little-endian values from those of the file (values_bytes of them).
std::vector<u8> plain_values(const NpyHeader& header, std::span<const u8> values);

// The header of a file with this tensor. Throws InvalidArgument for a quantised tensor and for
// types that NumPy has not (BF16, F8).
std::vector<u8> encode_npy_header(const TensorView& tensor);

// Replaces `path` in one step; the name of the tensor is not stored.
void write_npy(const std::filesystem::path& path, const TensorView& tensor,
               Durability durability = Durability::Disk);

}  // namespace oa::ml
