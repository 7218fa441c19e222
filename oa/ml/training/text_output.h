// Where a training writes for people: a terminal, or a file that keeps every line.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "oa/core/types.h"

namespace oa::ml::training {

struct TextOutput {
  std::function<void(std::string_view)> write;
  std::function<u32()> columns = [] { return 80; };  // asked before every line: windows change
  bool is_terminal = false;  // understands a carriage return and "erase to the end of the line"
  bool is_utf8 = true;
};

// Of a file descriptor. A terminal is one with a TERM other than "dumb"; the locale's variables say
// whether it shows UTF-8. Errors of writing are ignored: a closed pipe must not end a training.
TextOutput text_output(int fd);

// How many columns UTF-8 text takes on a terminal: wide characters take two.
u32 display_width(std::string_view text);
// The longest prefix that takes at most `columns`.
std::string_view fit_width(std::string_view text, u32 columns);

// "950", "1.23K", "4.5M": three digits that count.
std::string short_number(f64 value);
// "4.2 s", "3:05", "1:02:03".
std::string short_duration(f64 seconds);

}  // namespace oa::ml::training
