// Random numbers on the host: the SplitMix64 stream that initial weights are drawn from, and the
// counter-based Philox4x32-10 (Salmon et al., SC 2011) whose device twin is oa/kernel/philox.h.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "oa/core/types.h"

namespace oa {

class SplitMix64 {
 public:
  explicit SplitMix64(u64 seed) : state_(seed) {}
  u64 next();
  f32 next_unit();  // top 24 bits of next(), in [0, 1)

 private:
  u64 state_;
};

std::vector<f32> unit_uniform(u64 n, u64 seed);                  // in [0, 1)
std::vector<f32> symmetric_uniform(u64 n, f32 limit, u64 seed);  // (2 u - 1) limit

using PhiloxCounter = std::array<u32, 4>;
using PhiloxKey = std::array<u32, 2>;
PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key);
constexpr PhiloxKey philox_key(u64 seed) {
  return {static_cast<u32>(seed), static_cast<u32>(seed >> 32)};
}

// A word as a number: its top 24 bits k give k 2^-24 in [0, 1), or (k + 1) 2^-24 in (0, 1].
f32 unit_from_word(u32 word);
f32 open_unit_from_word(u32 word);

// Two independent standard normal numbers of two words, by Box and Muller; always finite.
std::pair<f32, f32> normal_pair(u32 first, u32 second);

}  // namespace oa
