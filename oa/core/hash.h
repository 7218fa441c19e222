// 128-bit hashes of structured data (XXH3): keys of kernel caches, graph caches and file checksums.
//
// The bits are the same on every run and every little-endian machine, so they may name files. They
// are no defence against an adversary.
#pragma once

#include <compare>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>

#include "oa/core/types.h"

namespace oa {

struct Hash128 {
  u64 lo = 0;
  u64 hi = 0;

  bool operator==(const Hash128&) const = default;
  std::strong_ordering operator<=>(const Hash128&) const = default;
};

// 32 hexadecimal digits, the high half first.
std::string to_string(const Hash128& h);

// Hash of one block of bytes; equal to a Hasher that was given the same bytes.
Hash128 hash_bytes(const void* data, size_t size);

// Collects data piece by piece. Only the sequence of bytes counts, not how it was cut into pieces.
class Hasher {
 public:
  Hasher();

  void bytes(const void* data, size_t size);

  // A plain value whose every bit is part of its meaning (no padding). Floats go in by their bits:
  // 0.0 and -0.0 differ, equal NaNs agree.
  template <class T>
    requires std::is_trivially_copyable_v<T> &&
             (std::has_unique_object_representations_v<T> || std::is_floating_point_v<T>)
  void add(const T& value) {
    bytes(&value, sizeof value);
  }

  // Text with its length, so that "ab","c" and "a","bc" differ.
  void text(std::string_view s);

  Hash128 finish() const;  // more may be added afterwards

 private:
  alignas(64) std::byte state_[576];
};

}  // namespace oa

template <>
struct std::hash<oa::Hash128> {
  size_t operator()(const oa::Hash128& h) const noexcept { return static_cast<size_t>(h.lo); }
};
