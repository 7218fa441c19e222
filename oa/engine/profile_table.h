// Tables of times for people.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "oa/engine/engine.h"

namespace oa {

// At most four significant digits and a unit, such as "1.234 ms", "12.3 MB", "5.67 G".
std::string text_seconds(f64 seconds);
std::string text_bytes(f64 bytes);  // powers of ten
std::string text_count(f64 n);
// `text` cut to `width` characters, with "..." at its end where something is missing.
std::string shortened(std::string_view text, size_t width);

// A row per label: share of the time, runs, total, mean and least time, and what they did a second.
std::string profile_table(const std::vector<KernelProfile>& kernels, u32 most_rows);

}  // namespace oa
