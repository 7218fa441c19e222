// Offsets and sizes of the .oam format, shared by its reader and its writer.
#pragma once

#include <bit>
#include <cstring>
#include <span>
#include <string_view>

#include "oa/core/types.h"

namespace oa::ml::oam {

static_assert(std::endian::native == std::endian::little, "file formats are little-endian");

inline constexpr u32 kMagic = 0x004D414F;  // "OAM\0"
inline constexpr u32 kVersion = 3;
inline constexpr u32 kMaxSections = 32;
inline constexpr u64 kPage = 4096;

// File header: magic, version, section count, flags (u32 each), total size, checksum (u64 each).
inline constexpr u64 kHeaderBytes = 64, kTotalSizeAt = 16, kChecksumAt = 24;

enum Section : u32 { Config = 1, Weights, State, Optimizer, Progress, KernelCache };
inline constexpr std::string_view kSectionNames[] = {
    "", "config", "weights", "state", "optimizer", "progress", "kernel cache"};

// Table entry: u32 type, u8 compression, 3 zeros, u32 flags, and unaligned u64 from here on.
inline constexpr u64 kTableEntryBytes = 64;
inline constexpr u64 kSectionOffsetAt = 12, kSectionSizeAt = 20, kSectionPackedAt = 28,
                     kSectionChecksumAt = 36;

inline constexpr u64 kConfigBytes = 108, kConfigName = 32;
inline constexpr u64 kOptimizerBytes = 68, kOptimizerName = 16;
inline constexpr u64 kProgressBytes = 104, kMetricName = 32, kMetricNameAt = 40;

// Tensor sections: u32 count, u32 zero, entries, values.
inline constexpr u64 kTensorHeadBytes = 8, kTensorEntryBytes = 216, kTensorName = 128;
inline constexpr u32 kMaxRank = 8;

constexpr u64 align_page(u64 n) { return (n + kPage - 1) / kPage * kPage; }

inline constexpr u64 kFnvStart = 0xcbf29ce484222325;

// FNV-1a, continued from `hash`.
inline u64 fnv1a(std::span<const u8> bytes, u64 hash = kFnvStart) {
  for (u8 b : bytes) hash = (hash ^ b) * 0x100000001b3;
  return hash;
}

// The number at `at`, which the caller has checked to be inside.
template <class T>
T load(std::span<const u8> bytes, u64 at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

template <class T>
void store(std::span<u8> bytes, u64 at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

}  // namespace oa::ml::oam
