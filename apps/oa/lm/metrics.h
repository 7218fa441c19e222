// What a training run tells while it goes: a CSV file and a line in the terminal.
#pragma once

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>

#include "oa/core/types.h"

namespace oa::command {

struct MetricsRow {
  i64 step = 0;
  f64 loss = 0;
  f64 validation = 0;  // NaN where none was made
  f64 rate = 0;
  f64 seconds = 0;
  i64 tokens = 0;
};

// One header, a row per step. Written through at least every second.
class MetricsFile {
 public:
  static void start(const std::filesystem::path& path);  // a new file with its header
  // Drops rows after `step`, and a last row that is not whole.
  static void cut(const std::filesystem::path& path, i64 step);

  explicit MetricsFile(const std::filesystem::path& path);  // appends
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;
  void add(const MetricsRow& row);
  void flush();

 private:
  std::filesystem::path path_;
  std::FILE* file_;
  std::chrono::steady_clock::time_point flushed_;
};

// On a terminal one line that is redrawn; elsewhere a plain line every few seconds.
class ProgressLine {
 public:
  struct State {
    i64 step;
    f64 loss;
    f64 validation;
    f64 tokens_per_second;
  };
  explicit ProgressLine(i64 total);  // 0: unknown
  void set_total(i64 total) { total_ = total; }
  void show(const State& state);
  void finish();
  std::string text(const State& state, int columns) const;

 private:
  i64 total_;
  bool terminal_;
  bool shown_ = false;
  f64 speed_ = 0;  // smoothed
  std::chrono::steady_clock::time_point last_{};
  State latest_{};
  bool pending_ = false;
};

}  // namespace oa::command
