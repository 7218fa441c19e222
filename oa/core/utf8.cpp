// By tables of first bytes, as the Unicode standard lists well-formed sequences (table 3-7).
#include "oa/core/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace oa {

namespace {

// Bytes of the character that begins with this one; 0 if none does.
u64 length_by_first(u8 first) {
  if (first < 0x80) return 1;
  if (first < 0xc2) return 0;  // a byte from inside a character, or a longer form of ASCII
  if (first < 0xe0) return 2;
  if (first < 0xf0) return 3;
  return first < 0xf5 ? 4 : 0;
}

// Whether `byte` may be number `i` >= 1 of a character.
bool continues(u8 first, u64 i, u8 byte) {
  u8 low = 0x80, high = 0xbf;
  if (i == 1) {
    if (first == 0xe0) low = 0xa0;   // else a longer form
    if (first == 0xed) high = 0x9f;  // else a surrogate
    if (first == 0xf0) low = 0x90;
    if (first == 0xf4) high = 0x8f;  // else beyond U+10FFFF
  }
  return byte >= low && byte <= high;
}

// How many bytes from the front belong to one character, as far as they are there; 0: no character.
u64 valid_bytes(std::span<const u8> bytes) {
  const u64 length = length_by_first(bytes[0]);
  if (length == 0) return 0;
  u64 i = 1;
  while (i < std::min<u64>(length, bytes.size()) && continues(bytes[0], i, bytes[i])) ++i;
  return i;
}

}  // namespace

u64 utf8_prefix(std::span<const u8> bytes) {
  u64 at = 0;
  while (at < bytes.size()) {
    if (at + 8 <= bytes.size()) {  // eight characters of ASCII at once
      u64 word;
      std::memcpy(&word, bytes.data() + at, 8);
      if ((word & 0x8080808080808080ull) == 0) {
        at += 8;
        continue;
      }
    }
    const u64 valid = valid_bytes(bytes.subspan(at));
    if (valid == 0 || valid < length_by_first(bytes[at])) break;
    at += valid;
  }
  return at;
}

u64 utf8_incomplete_tail(std::span<const u8> bytes) {
  for (u64 tail = 1; tail <= std::min<u64>(3, bytes.size()); ++tail) {
    const std::span<const u8> last = bytes.last(tail);
    const u64 length = length_by_first(last[0]);
    if (length > tail && valid_bytes(last) == tail) return tail;
    if (length != 0) return 0;
  }
  return 0;
}

bool is_utf8_text(std::string_view text) {
  return is_utf8({reinterpret_cast<const u8*>(text.data()), text.size()});
}

std::string printable(std::string_view text, size_t limit) {
  std::string out;
  while (!text.empty()) {
    if (out.size() >= limit) return out + "...";
    const auto lead = static_cast<u8>(text[0]);
    const std::string_view character = text.substr(0, std::max<u64>(1, length_by_first(lead)));
    if (!is_utf8_text(character) || lead < 0x20 || lead == 0x7f) {
      out += fmt::format("\\x{:02x}", lead);
      text.remove_prefix(1);
    } else {
      out += character;
      text.remove_prefix(character.size());
    }
  }
  return out;
}

}  // namespace oa
