// The safetensors format: a JSON header with names, types, shapes and offsets, then the values.
//
// A file is 8 bytes header length, the header, and a buffer that the tensors fill without overlap
// or hole. Empty tensors, rank 0, any UTF-8 names and trailing spaces in the header are legal.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "oa/core/file.h"
#include "oa/ml/checkpoint/tensor_view.h"

namespace oa::ml {

// Free text that a file carries in "__metadata__", in its order.
using Metadata = std::vector<std::pair<std::string, std::string>>;

inline constexpr u64 kMaxSafetensorsHeader = 100'000'000;  // bytes, a rule of the format

struct Safetensors {
  std::vector<TensorView> tensors;  // in the order of the header
  Metadata metadata;
};

// Views into the file image `bytes`. Throws DataLoss when the image breaks the format's rules and
// InvalidArgument for an element type that is not in FileDType; memory taken is of the header's
// order.
Safetensors parse_safetensors(std::span<const u8> bytes);

// Replaces `path` in one step. The header keeps the order of `tensors`; the values lie in the order
// of their element sizes, largest first, so that all of them are aligned. Throws InvalidArgument
// (names, sizes, a quantised tensor, C128, a header above the limit) before it touches the file.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                       const Metadata& metadata = {}, Durability durability = Durability::Disk);

// The same as bytes.
std::vector<u8> encode_safetensors(std::span<const TensorView> tensors,
                                   const Metadata& metadata = {});

}  // namespace oa::ml
