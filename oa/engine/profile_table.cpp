#include "oa/engine/profile_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace oa {
namespace {

constexpr size_t kLabel = 44;

std::string scaled(f64 x, std::string_view unit) {
  constexpr const char* prefixes[] = {"n", "u", "m", "", "k", "M", "G", "T", "P"};
  if (x == 0) return unit.empty() ? "0" : fmt::format("0 {}", unit);
  const int step = std::clamp(static_cast<int>(std::floor(std::log10(std::abs(x)) / 3)), -3, 5);
  const f64 value = x / std::pow(1000.0, step);
  const int digits = value >= 100 ? 0 : value >= 10 ? 1 : 2;
  const std::string_view prefix = prefixes[step + 3];
  return fmt::format("{:.{}f}{}{}{}", value, digits, prefix.empty() && unit.empty() ? "" : " ",
                     prefix, unit);
}

}  // namespace

std::string text_seconds(f64 seconds) { return scaled(seconds, "s"); }
std::string text_bytes(f64 bytes) {
  return bytes < 1000 ? fmt::format("{:.0f} B", bytes) : scaled(bytes, "B");
}
std::string text_count(f64 n) { return n < 1000 ? fmt::format("{:.0f}", n) : scaled(n, ""); }

std::string shortened(std::string_view text, size_t width) {
  if (text.size() <= width) return std::string(text);
  return std::string(text.substr(0, width - 3)) + "...";
}

std::string profile_table(const std::vector<KernelProfile>& kernels, u32 most_rows) {
  f64 total = 0;
  u64 runs = 0;
  for (const KernelProfile& k : kernels) {
    total += k.seconds;
    runs += k.count;
  }
  std::string out =
      fmt::format("{:<{}} {:>6} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9}\n", "kernel", kLabel, "share",
                  "runs", "total", "mean", "least", "flop/s", "byte/s");
  const auto row = [&](std::string_view label, u64 count, f64 seconds, f64 least, f64 flops,
                       f64 bytes) {
    out += fmt::format("{:<{}} {:>5.1f}% {:>7} {:>9} {:>9} {:>9} {:>9} {:>9}\n",
                       shortened(label, kLabel), kLabel, total > 0 ? 100 * seconds / total : 0,
                       count, text_seconds(seconds),
                       text_seconds(count > 0 ? seconds / static_cast<f64>(count) : 0),
                       text_seconds(least), text_count(seconds > 0 ? flops / seconds : 0),
                       text_count(seconds > 0 ? bytes / seconds : 0));
  };
  f64 other = 0;
  u64 other_runs = 0;
  for (size_t i = 0; i < kernels.size(); ++i) {
    const KernelProfile& k = kernels[i];
    if (i < most_rows) {
      row(k.label, k.count, k.seconds, k.least_seconds, k.flops, k.bytes);
    } else {
      other += k.seconds;
      other_runs += k.count;
    }
  }
  if (kernels.size() > most_rows) {
    out += fmt::format("{:<{}} {:>5.1f}% {:>7} {:>9}\n",
                       fmt::format("{} more", kernels.size() - most_rows), kLabel,
                       total > 0 ? 100 * other / total : 0, other_runs, text_seconds(other));
  }
  out += fmt::format("{:<{}} {:>6} {:>7} {:>9}\n", "all", kLabel, "", runs, text_seconds(total));
  return out;
}

}  // namespace oa
