#include "oa/core/random.h"

#include <cmath>
#include <numbers>

namespace oa {
namespace {

constexpr f32 kUnit = 0x1p-24f;

}  // namespace

u64 SplitMix64::next() {
  state_ += 0x9e3779b97f4a7c15ull;
  u64 v = (state_ ^ (state_ >> 30)) * 0xbf58476d1ce4e5b9ull;
  v = (v ^ (v >> 27)) * 0x94d049bb133111ebull;
  return v ^ (v >> 31);
}

f32 SplitMix64::next_unit() { return static_cast<f32>(next() >> 40) * kUnit; }

std::vector<f32> unit_uniform(u64 n, u64 seed) {
  SplitMix64 stream(seed);
  std::vector<f32> values(n);
  for (f32& v : values) v = stream.next_unit();
  return values;
}

std::vector<f32> symmetric_uniform(u64 n, f32 limit, u64 seed) {
  SplitMix64 stream(seed);
  std::vector<f32> values(n);
  for (f32& v : values) v = (2 * stream.next_unit() - 1) * limit;
  return values;
}

PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key) {
  auto [x, y, z, w] = counter;
  auto [k0, k1] = key;
  for (int round = 0; round < 10; ++round) {
    const u64 a = u64{0xd2511f53} * x, b = u64{0xcd9e8d57} * z;
    x = static_cast<u32>(b >> 32) ^ y ^ k0;
    y = static_cast<u32>(b);
    z = static_cast<u32>(a >> 32) ^ w ^ k1;
    w = static_cast<u32>(a);
    k0 += 0x9e3779b9;
    k1 += 0xbb67ae85;
  }
  return {x, y, z, w};
}

f32 unit_from_word(u32 word) { return static_cast<f32>(word >> 8) * kUnit; }
f32 open_unit_from_word(u32 word) { return static_cast<f32>((word >> 8) + 1) * kUnit; }

std::pair<f32, f32> normal_pair(u32 first, u32 second) {
  const f64 radius = std::sqrt(-2 * std::log(static_cast<f64>(open_unit_from_word(first))));
  const f64 angle = 2 * std::numbers::pi * static_cast<f64>(unit_from_word(second));
  return {static_cast<f32>(radius * std::cos(angle)), static_cast<f32>(radius * std::sin(angle))};
}

}  // namespace oa
