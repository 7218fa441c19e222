// CsvLogger: one row per step in a comma-separated file.
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "oa/ml/training/callback.h"
#include "oa/ml/training/metric.h"

namespace oa::ml::training {

// A training from step 0 starts the file anew. One that goes on from step s keeps its rows up to s
// and appends: rows beyond s, and a last row that was cut short, go. A file with another header
// stays as it is; the rows then go to "name.2.csv" (then .3, ...).
//
// Rows are written at the end of an epoch and of the training, when 64 KiB have gathered, and when
// the flush interval has passed, or the training is saved, so a killed process loses at most that.
// Numbers that are missing are NaN. Errors: Io, at the boundary where writing failed.
class CsvLogger final : public TrainingCallback {
 public:
  using Column = std::function<f64(const TrainingCallbackContext&)>;

  explicit CsvLogger(std::filesystem::path path);
  ~CsvLogger() override;  // writes what has gathered; an error is ignored

  // More columns after the fixed ones, before the training begins. A metric's column has its value
  // after the step; register the logger after the Validation.
  CsvLogger& add_column(std::string name, Column value);
  CsvLogger& add_metric(const ValidationMetric& metric);
  CsvLogger& set_flush_interval(f64 seconds);  // default 1; 0: every row

  const std::filesystem::path& path() const { return path_; }  // the one in use

  TrainingControl on_train_begin(const TrainingCallbackContext& context) override;
  TrainingControl on_step_end(const TrainingCallbackContext& context) override;
  TrainingControl on_epoch_end(const TrainingCallbackContext& context) override;
  TrainingControl on_train_end(const TrainingCallbackContext& context) override;
  void before_save() override;

 private:
  std::string header() const;
  void open_fresh(const std::string& header);
  void open_resumed(const std::string& header, u64 step);
  void add_row(const TrainingCallbackContext& context);
  void flush(f64 now);

  std::filesystem::path path_;
  std::vector<std::pair<std::string, Column>> columns_;
  f64 flush_interval_ = 1;
  std::ofstream file_;
  std::string buffer_;
  f64 last_flush_ = 0;
};

// A field of a comma-separated row, quoted where RFC 4180 asks for it.
std::string csv_field(std::string_view text);

}  // namespace oa::ml::training
