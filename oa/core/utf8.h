// Checks of UTF-8, and texts from outside in messages.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "oa/core/types.h"

namespace oa {

// The length of the longest prefix that is UTF-8 of whole characters: no surrogates, nothing beyond
// U+10FFFF, no longer form of what has a shorter one.
u64 utf8_prefix(std::span<const u8> bytes);
inline bool is_utf8(std::span<const u8> bytes) { return utf8_prefix(bytes) == bytes.size(); }
bool is_utf8_text(std::string_view text);

// How many of the last bytes, 0 to 3, begin a character that more bytes could complete. A stream of
// text shows what is before them, and holds them back until more is known.
u64 utf8_incomplete_tail(std::span<const u8> bytes);

// `text` fit for a message: bytes that are no UTF-8 and control characters become "\xNN", and what
// is longer than `limit` bytes is cut with an ellipsis.
std::string printable(std::string_view text, size_t limit = 80);

}  // namespace oa
