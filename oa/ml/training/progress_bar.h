// ProgressBar: how far a training is and how fast, for people.
#pragma once

#include "oa/ml/training/callback.h"
#include "oa/ml/training/text_output.h"

namespace oa::ml::training {

// On a terminal one line that is redrawn at most every 33 ms and never wraps: what does not fit is
// left out, the least important first. Elsewhere a plain line every few seconds, at the end of
// every epoch and of the training, without a control character in it.
class ProgressBar final : public TrainingCallback {
 public:
  // `width` (1 or more) is the bar's, in characters. The default output is standard error.
  explicit ProgressBar(u32 width = 10);
  ProgressBar(u32 width, TextOutput output);
  ~ProgressBar() override;  // leaves the terminal at the start of a line

  ProgressBar& set_show_epoch_header(bool on);   // default true
  ProgressBar& set_plain_interval(f64 seconds);  // default 5

  // The line without its control characters, at most `columns` wide (0: no limit).
  std::string render_line(const TrainingSnapshot& snapshot, const ItTrainingConfig& config,
                          u32 columns = 0) const;
  // Writes a message above the bar.
  void print(std::string_view message);

  TrainingControl on_train_begin(const TrainingCallbackContext& context) override;
  TrainingControl on_epoch_begin(const TrainingCallbackContext& context) override;
  TrainingControl on_step_end(const TrainingCallbackContext& context) override;
  TrainingControl on_epoch_end(const TrainingCallbackContext& context) override;
  TrainingControl on_train_end(const TrainingCallbackContext& context) override;

 private:
  void draw(const TrainingCallbackContext& context);
  void end_line();

  u32 width_;
  TextOutput output_;
  bool show_epoch_header_ = true;
  f64 plain_interval_ = 5;
  f64 last_draw_ = 0;
  u64 drawn_step_ = 0;
  bool drawn_ = false;  // anything since the training began
  std::string line_;    // on the terminal, not ended yet
};

}  // namespace oa::ml::training
