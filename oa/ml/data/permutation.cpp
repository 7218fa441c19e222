// Feistel rounds over pairs (l, r) below the square root of the size: (l, r) -> (r, l + F(r)). What
// falls outside of the size is sent through again until it is inside (Black and Rogaway, 2002,
// "cycle walking"), which happens less than twice on average, as the square is so close.
#include "oa/ml/data/permutation.h"

#include <cmath>
#include <numeric>

#include "oa/core/error.h"
#include "oa/core/random.h"

namespace oa::ml::data {

Permutation::Permutation(u64 size, u64 seed, u64 epoch) : size_(size) {
  if (size == 0) invalid("Permutation", "got size 0, expected at least 1");
  for (u32 i = 0; i < kRounds; i += 2) {
    const PhiloxCounter words = philox4x32(
        {i, static_cast<u32>(epoch), static_cast<u32>(epoch >> 32), 0x7065726d}, philox_key(seed));
    keys_[i] = u64{words[0]} << 32 | words[1];
    keys_[i + 1] = u64{words[2]} << 32 | words[3];
  }
  if (size <= kListed) {
    std::iota(listed_.begin(), listed_.end(), u8{0});
    SplitMix64 stream(keys_[0]);
    for (u64 left = size; left > 1; --left)  // the rest is less than 2^-59 from uniform
      std::swap(listed_[left - 1], listed_[stream.next() % left]);
    return;
  }
  // The root of a rounded number may be one off, either way.
  side_ = static_cast<u64>(std::sqrt(static_cast<f64>(size)));
  while (side_ > 0xffffffff || side_ * side_ >= size) --side_;
  while (side_ <= 0xffffffff && side_ * side_ < size) ++side_;
}

u64 Permutation::encrypt(u64 x) const {
  u64 l = x / side_, r = x % side_;
  for (const u64 key : keys_) {
    const u64 f = SplitMix64(r ^ key).next() % side_;
    u64 sum = l + f;
    if (sum >= side_) sum -= side_;
    l = r;
    r = sum;
  }
  return l * side_ + r;
}

u64 Permutation::operator()(u64 i) const {
  OA_CHECK(i < size_);
  if (size_ <= kListed) return listed_[i];
  do i = encrypt(i);
  while (i >= size_);
  return i;
}

}  // namespace oa::ml::data
