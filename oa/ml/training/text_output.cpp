#include "oa/ml/training/text_output.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <iterator>

namespace oa::ml::training {
namespace {

constexpr u32 kUnknownWidth = 80;

// The first of the locale's variables that is set decides.
bool utf8_locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == 0) continue;
    std::string lower;
    for (const char* c = value; *c != 0; ++c) {
      if (*c != '-') lower += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
    }
    return lower.find("utf8") != std::string::npos;
  }
  return false;
}

struct Character {
  u32 code;
  size_t bytes;
};

// The character at the start of `text`, which is not empty; a stray byte counts as one.
Character first_character(std::string_view text) {
  const u8 lead = static_cast<u8>(text[0]);
  const size_t bytes = lead < 0x80 ? 1 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
  if (bytes == 1 || bytes > text.size()) return {lead, 1};
  u32 code = lead & (0xFFu >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) code = code << 6 | (static_cast<u8>(text[i]) & 0x3F);
  return {code, bytes};
}

u32 width_of(u32 code) {
  const bool wide = (code >= 0x1100 && code <= 0x115F) || (code >= 0x2E80 && code <= 0xA4CF) ||
                    (code >= 0xAC00 && code <= 0xD7A3) || (code >= 0xF900 && code <= 0xFAFF) ||
                    (code >= 0xFE30 && code <= 0xFE6F) || (code >= 0xFF00 && code <= 0xFF60) ||
                    (code >= 0xFFE0 && code <= 0xFFE6) || (code >= 0x1F300 && code <= 0x1FAFF) ||
                    (code >= 0x20000 && code <= 0x3FFFD);
  return wide ? 2 : 1;
}

}  // namespace

TextOutput text_output(int fd) {
  TextOutput out;
  out.write = [fd](std::string_view text) {
    while (!text.empty()) {
      const ssize_t n = ::write(fd, text.data(), text.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return;
      text.remove_prefix(static_cast<size_t>(n));
    }
  };
  out.columns = [fd] {
    winsize size = {};
    if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUnknownWidth;
    return static_cast<u32>(size.ws_col);
  };
  const char* term = std::getenv("TERM");
  out.is_terminal =
      isatty(fd) == 1 && term != nullptr && *term != 0 && std::string_view(term) != "dumb";
  out.is_utf8 = utf8_locale();
  return out;
}

u32 display_width(std::string_view text) {
  u32 width = 0;
  while (!text.empty()) {
    const Character c = first_character(text);
    width += width_of(c.code);
    text.remove_prefix(c.bytes);
  }
  return width;
}

std::string_view fit_width(std::string_view text, u32 columns) {
  size_t bytes = 0;
  u32 width = 0;
  while (bytes < text.size()) {
    const Character c = first_character(text.substr(bytes));
    width += width_of(c.code);
    if (width > columns) break;
    bytes += c.bytes;
  }
  return text.substr(0, bytes);
}

std::string short_number(f64 value) {
  static constexpr const char* kSuffix[] = {"", "K", "M", "G", "T"};
  if (!std::isfinite(value)) return fmt::format("{}", value);
  size_t thousands = 0;
  // What would be rounded to four digits takes the next suffix.
  while (std::abs(value) >= 999.5 && thousands + 1 < std::size(kSuffix)) {
    value /= 1000;
    ++thousands;
  }
  const f64 size = std::abs(value);
  const int decimals = size >= 99.95 || size == 0 ? 0 : size >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}{}", value, decimals, kSuffix[thousands]);
}

std::string short_duration(f64 seconds) {
  if (!(seconds >= 0) || !std::isfinite(seconds)) return "?";
  if (seconds < 99.95) return fmt::format("{:.1f} s", seconds);
  const u64 s = static_cast<u64>(std::min(std::round(seconds), 1e15));
  if (s < 3600) return fmt::format("{}:{:02}", s / 60, s % 60);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

}  // namespace oa::ml::training
