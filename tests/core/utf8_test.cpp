// UTF-8 against a decoder written from the definition, over all short sequences of telling bytes.
#include "oa/core/utf8.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace oa {
namespace {

std::string encode(u32 c) {
  std::string s;
  const auto put = [&](u32 byte) { s.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0 | c >> 6), put(0x80 | (c & 63));
  } else if (c < 0x10000) {
    put(0xe0 | c >> 12), put(0x80 | (c >> 6 & 63)), put(0x80 | (c & 63));
  } else {
    put(0xf0 | c >> 18), put(0x80 | (c >> 12 & 63)), put(0x80 | (c >> 6 & 63)),
        put(0x80 | (c & 63));
  }
  return s;
}

std::span<const u8> bytes(const std::string& s) {
  return {reinterpret_cast<const u8*>(s.data()), s.size()};
}

TEST(Utf8, EveryCharacterAndNoSurrogate) {
  for (u32 c = 0; c <= 0x10ffff; ++c) {
    const bool surrogate = c >= 0xd800 && c < 0xe000;
    ASSERT_EQ(is_utf8(bytes(encode(c))), !surrogate) << c;
  }
  EXPECT_FALSE(is_utf8(bytes("\xf4\x90\x80\x80")));  // U+110000
  EXPECT_FALSE(is_utf8(bytes("\xc0\x80")));
  EXPECT_FALSE(is_utf8(bytes("\xe0\x9f\xbf")));
  EXPECT_FALSE(is_utf8(bytes("\xf0\x8f\xbf\xbf")));
  EXPECT_FALSE(is_utf8(bytes("\x80")));
  EXPECT_TRUE(is_utf8({}));
}

TEST(Utf8, PrefixStopsBeforeTheFirstWrongByte) {
  const std::string good = "0123456789 caf\u00e9 \u4f60\u597d \U0001F600 and more ascii text";
  EXPECT_EQ(utf8_prefix(bytes(good)), good.size());
  for (size_t at = 0; at <= good.size(); ++at) {
    const std::string wrong = fmt::format("{}\xff{}", good.substr(0, at), good.substr(at));
    size_t whole = at;  // of the characters before it
    while (whole > 0 && whole < good.size() && (static_cast<u8>(good[whole]) & 0xc0) == 0x80)
      --whole;
    EXPECT_EQ(utf8_prefix(bytes(wrong)), whole) << at;
  }
}

// Whatever follows an incomplete tail of a stream, the shown part is as good as it was; and every
// cut of a text leaves just the begun character in the tail.
TEST(Utf8, TailsOfStreams) {
  for (const u32 c : {0x41u, 0xe9u, 0x4f60u, 0x1f600u}) {
    const std::string text = fmt::format("x{}", encode(c));
    for (size_t cut = 0; cut <= text.size(); ++cut) {
      const u64 expected = cut >= 1 && cut < text.size() ? cut - 1 : 0;
      EXPECT_EQ(utf8_incomplete_tail(bytes(text.substr(0, cut))), expected) << c << " " << cut;
    }
  }
  for (const char* never :
       {"\xff", "\x80", "a\x80\x80\x80", "\xe0\x80", "\xed\xa0", "\xf5", "\xc1"})
    EXPECT_EQ(utf8_incomplete_tail(bytes(never)), 0u) << never;
  EXPECT_EQ(utf8_incomplete_tail({}), 0u);
}

TEST(Utf8, PrintableTextKeepsLettersAndShowsTheRest) {
  using namespace std::string_view_literals;
  EXPECT_EQ(printable("größe"), "größe");
  EXPECT_EQ(printable("a\n\xff\x7f\0z"sv), "a\\x0a\\xff\\x7f\\x00z");
  EXPECT_EQ(printable("abcdef", 3), "abc...");
  EXPECT_EQ(printable("abc", 3), "abc");
  EXPECT_EQ(printable("aöö", 2), "aö...");
  EXPECT_EQ(printable("\xe4\xb8"), "\\xe4\\xb8");
}

}  // namespace
}  // namespace oa
