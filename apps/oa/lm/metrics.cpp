#include "apps/oa/lm/metrics.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "oa/core/error.h"
#include "oa/core/file.h"

namespace oa::command {
namespace {

constexpr std::string_view kHeader = "step,loss,val_loss,learning_rate,seconds,tokens\n";

[[noreturn]] void io_error(const std::filesystem::path& path) {
  fail(ErrorKind::Io, "metrics", "cannot write {}, {}", path.string(), std::strerror(errno));
}

std::string number(f64 x) { return std::isnan(x) ? "" : fmt::format("{:.9g}", x); }

std::string short_number(f64 x) {
  if (x >= 1e6) return fmt::format("{:.1f}M", x / 1e6);
  if (x >= 1e3) return fmt::format("{:.1f}K", x / 1e3);
  return fmt::format("{:.0f}", x);
}

}  // namespace

void MetricsFile::start(const std::filesystem::path& path) {
  write_file(path, {reinterpret_cast<const u8*>(kHeader.data()), kHeader.size()},
             Durability::Rename);
}

void MetricsFile::cut(const std::filesystem::path& path, i64 step) {
  if (!std::filesystem::exists(path)) {
    start(path);
    return;
  }
  const std::vector<u8> bytes = read_file(path);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::string kept(kHeader);
  size_t begin = text.find('\n');
  while (begin != std::string_view::npos) {
    ++begin;
    const size_t end = text.find('\n', begin);
    if (end == std::string_view::npos) break;
    const std::string row(text.substr(begin, end - begin));
    if (std::strtoll(row.c_str(), nullptr, 10) > step) break;
    kept += row + "\n";
    begin = end;
  }
  write_file(path, {reinterpret_cast<const u8*>(kept.data()), kept.size()}, Durability::Rename);
}

MetricsFile::MetricsFile(const std::filesystem::path& path)
    : path_(path),
      file_(std::fopen(path.c_str(), "a")),
      flushed_(std::chrono::steady_clock::now()) {
  if (!file_) io_error(path_);
}

MetricsFile::~MetricsFile() { std::fclose(file_); }

void MetricsFile::add(const MetricsRow& r) {
  const std::string row = fmt::format("{},{},{},{},{:.3f},{}\n", r.step, number(r.loss),
                                      number(r.validation), number(r.rate), r.seconds, r.tokens);
  if (std::fwrite(row.data(), 1, row.size(), file_) != row.size()) io_error(path_);
  if (std::chrono::steady_clock::now() - flushed_ > std::chrono::seconds(1)) flush();
}

void MetricsFile::flush() {
  if (std::fflush(file_) != 0) io_error(path_);
  flushed_ = std::chrono::steady_clock::now();
}

ProgressLine::ProgressLine(i64 total) : total_(total) {
  const char* term = std::getenv("TERM");
  terminal_ = isatty(STDERR_FILENO) != 0 && term && std::strcmp(term, "dumb") != 0;
}

std::string ProgressLine::text(const State& s, int columns) const {
  std::string line =
      total_ > 0 ? fmt::format("step {}/{}", s.step, total_) : fmt::format("step {}", s.step);
  if (total_ > 0 && columns >= 70) {
    constexpr i64 kWidth = 20;
    const i64 full = s.step * kWidth / total_;
    line += " [";
    for (i64 i = 0; i < kWidth; ++i) line += i < full ? '=' : ' ';
    line += "]";
  }
  line += fmt::format(" loss {:.4f}", s.loss);
  if (!std::isnan(s.validation)) line += fmt::format(" val {:.4f}", s.validation);
  line += fmt::format(" {} token/s", short_number(s.tokens_per_second));
  if (columns > 0 && line.size() > static_cast<size_t>(columns)) {
    line.resize(static_cast<size_t>(columns));
  }
  return line;
}

void ProgressLine::show(const State& state) {
  speed_ = speed_ == 0 ? state.tokens_per_second : 0.9 * speed_ + 0.1 * state.tokens_per_second;
  latest_ = state;
  latest_.tokens_per_second = speed_;
  pending_ = true;
  const auto now = std::chrono::steady_clock::now();
  const auto wait = terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(5000);
  if (shown_ && now - last_ < wait) return;
  last_ = now;
  shown_ = true;
  pending_ = false;
  if (!terminal_) {
    fmt::print(stderr, "{}\n", text(latest_, 0));
    return;
  }
  winsize size{};
  const int columns =
      ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 79;
  fmt::print(stderr, "\r{}\x1b[K", text(latest_, columns));
  std::fflush(stderr);
}

void ProgressLine::finish() {
  if (pending_ && !terminal_) fmt::print(stderr, "{}\n", text(latest_, 0));
  if (terminal_ && shown_) fmt::print(stderr, "\r{}\x1b[K\n", text(latest_, 79));
  pending_ = false;
  shown_ = false;
}

}  // namespace oa::command
