// Checks of UTF-8.
#pragma once

#include <span>

#include "oa/core/types.h"

namespace oa {

// The length of the longest prefix that is UTF-8 of whole characters: no surrogates, nothing beyond
// U+10FFFF, no longer form of what has a shorter one.
u64 utf8_prefix(std::span<const u8> bytes);
inline bool is_utf8(std::span<const u8> bytes) { return utf8_prefix(bytes) == bytes.size(); }

// How many of the last bytes, 0 to 3, begin a character that more bytes could complete. A stream of
// text shows what is before them, and holds them back until more is known.
u64 utf8_incomplete_tail(std::span<const u8> bytes);

}  // namespace oa
