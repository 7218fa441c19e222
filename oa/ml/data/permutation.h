// A random order of 0 .. n-1 that is computed, not stored.
#pragma once

#include <array>

#include "oa/core/types.h"

namespace oa::ml::data {

// A bijection of 0 .. size-1 onto itself, a function of (size, seed, epoch) and nothing else. Up to
// 20, every order is equally likely; above, every place is equally likely for every number.
class Permutation {
 public:
  Permutation(u64 size, u64 seed, u64 epoch);

  u64 size() const { return size_; }
  u64 operator()(u64 i) const;  // i < size()

 private:
  static constexpr u64 kListed = 20;
  static constexpr u32 kRounds = 8;

  u64 encrypt(u64 x) const;

  u64 size_;
  u64 side_ = 0;  // the least with side_^2 >= size_
  std::array<u64, kRounds> keys_{};
  std::array<u8, kListed> listed_{};  // all of it, up to kListed
};

}  // namespace oa::ml::data
