#include "oa/core/hash.h"

#include <fmt/format.h>

#include <new>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace oa {
namespace {

XXH3_state_t* as_state(std::byte* p) { return std::launder(reinterpret_cast<XXH3_state_t*>(p)); }
const XXH3_state_t* as_state(const std::byte* p) {
  return std::launder(reinterpret_cast<const XXH3_state_t*>(p));
}

Hash128 from(XXH128_hash_t h) { return {h.low64, h.high64}; }

}  // namespace

std::string to_string(const Hash128& h) { return fmt::format("{:016x}{:016x}", h.hi, h.lo); }

Hash128 hash_bytes(const void* data, size_t size) { return from(XXH3_128bits(data, size)); }

Hasher::Hasher() {
  static_assert(sizeof(XXH3_state_t) <= sizeof state_ && alignof(XXH3_state_t) <= 64);
  XXH3_128bits_reset(new (state_) XXH3_state_t);
}

void Hasher::bytes(const void* data, size_t size) {
  if (size) XXH3_128bits_update(as_state(state_), data, size);
}

void Hasher::text(std::string_view s) {
  add(static_cast<u64>(s.size()));
  bytes(s.data(), s.size());
}

Hash128 Hasher::finish() const { return from(XXH3_128bits_digest(as_state(state_))); }

}  // namespace oa
