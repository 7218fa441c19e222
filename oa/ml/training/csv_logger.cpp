#include "oa/ml/training/csv_logger.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "oa/core/error.h"

namespace oa::ml::training {
namespace {

constexpr std::string_view kOp = "CsvLogger";
constexpr size_t kBufferBytes = 64 << 10;
constexpr f64 kNaN = std::numeric_limits<f64>::quiet_NaN();

[[noreturn]] void io_error(const std::filesystem::path& path, std::string_view what) {
  fail(ErrorKind::Io, kOp, "cannot {} {}: {}", what, path.string(), std::strerror(errno));
}

// The next record with its line end, which a quoted field may contain too; without a line end if
// the file ends before.
bool read_record(std::istream& in, std::string& record) {
  record.clear();
  std::string line;
  while (std::getline(in, line)) {
    record += line;
    if (in.eof()) return true;
    record += '\n';
    if (std::ranges::count(record, '"') % 2 == 0) return true;
  }
  return !record.empty();
}

// The second field of a row, its step; nothing if it has none.
std::optional<u64> step_of(std::string_view record) {
  const size_t comma = record.find(',');
  if (comma == std::string_view::npos) return std::nullopt;
  u64 step = 0;
  const char* end = record.data() + record.size();
  const auto [at, error] = std::from_chars(record.data() + comma + 1, end, step);
  if (error != std::errc() || at == end || *at != ',') return std::nullopt;
  return step;
}

void append(std::string& row, f64 value) {
  row += std::isnan(value) ? "NaN" : fmt::format("{}", value);
}

}  // namespace

std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  out += '"';
  return out;
}

CsvLogger::CsvLogger(std::filesystem::path path) : path_(std::move(path)) {}

CsvLogger::~CsvLogger() {
  if (file_.is_open()) file_.write(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
}

CsvLogger& CsvLogger::add_column(std::string name, Column value) {
  if (file_.is_open()) {
    fail(ErrorKind::FailedPrecondition, "add_column", "the training has begun already");
  }
  if (!value) invalid("add_column", "value of {}, got none, expected a function", name);
  columns_.emplace_back(std::move(name), std::move(value));
  return *this;
}

CsvLogger& CsvLogger::add_metric(const ValidationMetric& metric) {
  return add_column(metric.name(),
                    [metric](const TrainingCallbackContext&) { return metric.result(); });
}

CsvLogger& CsvLogger::set_flush_interval(f64 seconds) {
  if (!(seconds >= 0)) {
    invalid("set_flush_interval", "seconds, got {}, expected 0 or more", seconds);
  }
  flush_interval_ = seconds;
  return *this;
}

std::string CsvLogger::header() const {
  std::string out =
      "epoch,step,batch_size,sequence_length,sequence_unit,source_unit,loss,gpu_ms,"
      "wall_ms_per_step,wall_samples_per_second,gpu_samples_per_second,wall_units_per_second,"
      "gpu_units_per_second,wall_source_units_per_second,gpu_source_units_per_second";
  for (const auto& [name, value] : columns_) out += fmt::format(",{}", csv_field(name));
  out += '\n';
  return out;
}

void CsvLogger::open_fresh(const std::string& header) {
  errno = 0;
  file_.open(path_, std::ios::binary | std::ios::trunc);
  if (!file_) io_error(path_, "open");
  buffer_ = header;
}

// Finds how many bytes of the file stay, and cuts the rest off.
void CsvLogger::open_resumed(const std::string& header, u64 step) {
  const std::filesystem::path wanted = path_;
  for (u64 number = 2;; ++number) {
    if (!std::filesystem::exists(path_)) return open_fresh(header);
    std::ifstream in(path_, std::ios::binary);
    std::string record;
    if (!in) io_error(path_, "open");
    if (!read_record(in, record)) return open_fresh(header);
    if (record == header) {
      u64 keep = record.size();
      while (read_record(in, record) && record.ends_with('\n')) {
        const std::optional<u64> at = step_of(record);
        if (!at || *at > step) break;
        keep += record.size();
      }
      in.close();
      std::error_code error;
      std::filesystem::resize_file(path_, keep, error);
      if (error) fail(ErrorKind::Io, kOp, "cannot cut {}: {}", path_.string(), error.message());
      errno = 0;
      file_.open(path_, std::ios::binary | std::ios::app);
      if (!file_) io_error(path_, "open");
      return;
    }
    path_ = wanted;
    path_.replace_extension(fmt::format("{}{}", number, wanted.extension().string()));
  }
}

TrainingControl CsvLogger::on_train_begin(const TrainingCallbackContext& context) {
  if (path_.has_parent_path()) {
    std::error_code error;
    std::filesystem::create_directories(path_.parent_path(), error);
    if (error) {
      fail(ErrorKind::Io, kOp, "cannot create {}: {}", path_.parent_path().string(),
           error.message());
    }
  }
  buffer_.clear();
  if (context.config().initial_step == 0) {
    open_fresh(header());
  } else {
    open_resumed(header(), context.config().initial_step);
  }
  flush(context.now());
  return TrainingControl::Continue;
}

void CsvLogger::add_row(const TrainingCallbackContext& context) {
  const TrainingSnapshot& s = context.snapshot();
  const ItTrainingConfig& c = context.config();
  buffer_ += fmt::format("{},{},{},{},{},{},", s.epoch, s.step_count, c.batch_size,
                         c.sequence_length, csv_field(c.sequence_unit), csv_field(c.source_unit));
  append(buffer_, s.last_loss.value_or(kNaN));
  const bool gpu = s.gpu_timing_stats.has_value();
  const f64 numbers[] = {s.last_gpu_time ? *s.last_gpu_time * 1e3 : kNaN,
                         s.wall_ms_per_step,
                         s.wall_samples_per_second,
                         gpu ? s.gpu_samples_per_second : kNaN,
                         s.wall_units_per_second,
                         gpu ? s.gpu_units_per_second : kNaN,
                         s.wall_source_units_per_second,
                         gpu ? s.gpu_source_units_per_second : kNaN};
  for (const f64 x : numbers) {
    buffer_ += ',';
    append(buffer_, x);
  }
  for (const auto& [name, value] : columns_) {
    buffer_ += ',';
    append(buffer_, value(context));
  }
  buffer_ += '\n';
}

void CsvLogger::flush(f64 now) {
  last_flush_ = now;
  errno = 0;
  file_.write(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
  file_.flush();
  buffer_.clear();
  if (!file_) io_error(path_, "write");
}

TrainingControl CsvLogger::on_step_end(const TrainingCallbackContext& context) {
  // The row of an epoch's last step waits for what the end of the epoch measures.
  if (context.snapshot().is_epoch_boundary) return TrainingControl::Continue;
  add_row(context);
  const f64 now = context.now();
  if (buffer_.size() >= kBufferBytes || now - last_flush_ >= flush_interval_) flush(now);
  return TrainingControl::Continue;
}

TrainingControl CsvLogger::on_epoch_end(const TrainingCallbackContext& context) {
  add_row(context);
  flush(context.now());
  return TrainingControl::Continue;
}

void CsvLogger::before_save() {
  if (file_.is_open()) flush(last_flush_);
}

TrainingControl CsvLogger::on_train_end(const TrainingCallbackContext& context) {
  flush(context.now());
  file_.close();
  return TrainingControl::Continue;
}

}  // namespace oa::ml::training
