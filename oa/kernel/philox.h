// Counter-based random numbers in kernels: Philox4x32-10, and uniform and normal values of its
// words. The same functions on the host are in oa/core/random.h; words and uniform values agree bit
// for bit.
#pragma once

#include <array>
#include <utility>

#include "oa/kernel/lang.h"

namespace oa::kernel {

using PhiloxCounter = std::array<U32, 4>;
using PhiloxKey = std::array<U32, 2>;
PhiloxCounter philox4x32(const PhiloxCounter& counter, const PhiloxKey& key);

// The top 24 bits k of a word as k 2^-24 in [0, 1), or (k + 1) 2^-24 in (0, 1].
F32 unit_from_word(const U32& word);
F32 open_unit_from_word(const U32& word);

// Two independent standard normal values of two words, by Box and Muller; always finite.
std::pair<F32, F32> normal_pair(const U32& first, const U32& second);

}  // namespace oa::kernel
