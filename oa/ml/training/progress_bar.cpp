#include "oa/ml/training/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "oa/core/error.h"

namespace oa::ml::training {
namespace {

constexpr f64 kRedrawSeconds = 0.033;

// A bar of `width` characters; UTF-8 has eighths of a character.
std::string bar(f64 done, u32 width, bool utf8) {
  static constexpr std::array<const char*, 8> kEighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  done = std::clamp(done, 0.0, 1.0);
  std::string out;
  if (!utf8) {
    const u32 full = static_cast<u32>(done * width);
    return fmt::format("[{:#<{}}{:.<{}}]", "", full, "", width - full);
  }
  const u32 eighths = static_cast<u32>(done * width * 8);
  u32 used = eighths / 8;
  for (u32 i = 0; i < used; ++i) out += "█";
  if (eighths % 8 != 0) {
    out += kEighths[eighths % 8];
    ++used;
  }
  return out + std::string(width - used, ' ');
}

std::string loss_text(f64 loss) {
  return std::abs(loss) < 1e6 || !std::isfinite(loss) ? fmt::format("loss: {:.4f}", loss)
                                                      : fmt::format("loss: {:.4e}", loss);
}

// A unit's name comes from the user and must not move the cursor.
std::string printable(std::string_view text) {
  std::string out(text);
  std::ranges::replace_if(out, [](char c) { return static_cast<u8>(c) < 0x20 || c == 0x7F; }, '?');
  return out;
}

struct Part {
  std::string text;
  int rank;  // the least important part has the highest
  const char* before;
};

}  // namespace

ProgressBar::ProgressBar(u32 width) : ProgressBar(width, text_output(STDERR_FILENO)) {}

ProgressBar::ProgressBar(u32 width, TextOutput output) : width_(width), output_(std::move(output)) {
  if (width == 0) invalid("ProgressBar", "width, got 0, expected 1 or more");
  if (!output_.write || !output_.columns) {
    invalid("ProgressBar", "output, expected functions to write and to ask for the columns");
  }
}

ProgressBar::~ProgressBar() {
  if (!line_.empty()) output_.write("\n");
}

ProgressBar& ProgressBar::set_show_epoch_header(bool on) {
  show_epoch_header_ = on;
  return *this;
}

ProgressBar& ProgressBar::set_plain_interval(f64 seconds) {
  if (!(seconds >= 0)) {
    invalid("set_plain_interval", "seconds, got {}, expected 0 or more", seconds);
  }
  plain_interval_ = seconds;
  return *this;
}

std::string ProgressBar::render_line(const TrainingSnapshot& s, const ItTrainingConfig& c,
                                     u32 columns) const {
  const char* dot = output_.is_utf8 ? " · " : " - ";
  const bool by_epoch = s.epoch != 0 && output_.is_terminal && show_epoch_header_;
  const u64 step = by_epoch ? s.step_in_epoch : s.step_count;
  const u64 total = by_epoch ? s.steps_in_epoch : s.total_steps.value_or(0);
  std::vector<Part> parts;
  if (s.epoch != 0 && !by_epoch) {
    parts.push_back({s.total_epochs != 0 ? fmt::format("epoch {}/{}", s.epoch, s.total_epochs)
                                         : fmt::format("epoch {}", s.epoch),
                     4, "  "});
  }
  parts.push_back({total != 0 ? fmt::format("{}/{}", step, total) : fmt::format("{}", step), 0,
                   parts.empty() ? "  " : dot});
  if (output_.is_terminal && total != 0) {
    const f64 done = static_cast<f64>(step) / static_cast<f64>(total);
    parts.push_back({bar(done, width_, output_.is_utf8), 3, " "});
  }
  parts.push_back({short_duration(s.elapsed), 5, dot});
  parts.push_back({fmt::format("{:.1f} ms/step", s.wall_ms_per_step), 2, dot});
  parts.push_back({short_number(s.wall_samples_per_second) + " sample/s", 7, dot});
  if (c.sequence_length > 0) {
    parts.push_back(
        {fmt::format("{} {}/s", short_number(s.wall_units_per_second), printable(c.sequence_unit)),
         6, dot});
  }
  if (s.total_source_units > 0) {
    parts.push_back({fmt::format("{} {}/s", short_number(s.wall_source_units_per_second),
                                 printable(c.source_unit)),
                     8, dot});
  }
  if (s.last_loss) parts.push_back({loss_text(*s.last_loss), 1, dot});
  if (s.total_steps && s.wall_ms_per_step > 0 && !s.is_last_step) {
    const f64 left = static_cast<f64>(*s.total_steps - s.step_count);
    parts.push_back({short_duration(left * s.wall_ms_per_step / 1e3) + " left", 4, dot});
  }
  // The last of the highest rank goes first, until the rest fits.
  for (;;) {
    std::string line;
    for (const Part& p : parts) {
      line += line.empty() ? "  " : p.before;
      line += p.text;
    }
    if (columns == 0 || display_width(line) <= columns) return line;
    if (parts.size() == 1) return std::string(fit_width(line, columns));
    parts.erase(std::ranges::max_element(parts, {}, &Part::rank));
  }
}

void ProgressBar::draw(const TrainingCallbackContext& context) {
  last_draw_ = context.now();
  drawn_ = true;
  drawn_step_ = context.snapshot().step_count;
  if (output_.is_terminal) {
    // The last column stays free: a character in it makes some terminals wrap.
    const u32 columns = output_.columns();
    line_ = render_line(context.snapshot(), context.config(), columns > 1 ? columns - 1 : 1);
    output_.write(fmt::format("\r{}\x1b[K", line_));
  } else {
    output_.write(render_line(context.snapshot(), context.config()) + "\n");
  }
}

void ProgressBar::end_line() {
  if (line_.empty()) return;
  line_.clear();
  output_.write("\n");
}

void ProgressBar::print(std::string_view message) {
  if (line_.empty()) {
    output_.write(fmt::format("{}\n", message));
  } else {
    output_.write(fmt::format("\r\x1b[K{}\n{}", message, line_));
  }
}

TrainingControl ProgressBar::on_train_begin(const TrainingCallbackContext& context) {
  drawn_ = false;
  last_draw_ = context.now();
  return TrainingControl::Continue;
}

TrainingControl ProgressBar::on_epoch_begin(const TrainingCallbackContext& context) {
  const TrainingSnapshot& s = context.snapshot();
  if (show_epoch_header_ && output_.is_terminal) {
    end_line();
    output_.write(s.total_epochs != 0 ? fmt::format("epoch {}/{}\n", s.epoch, s.total_epochs)
                                      : fmt::format("epoch {}\n", s.epoch));
  }
  return TrainingControl::Continue;
}

TrainingControl ProgressBar::on_step_end(const TrainingCallbackContext& context) {
  if (context.snapshot().is_epoch_boundary) return TrainingControl::Continue;  // comes right after
  const f64 interval = output_.is_terminal ? kRedrawSeconds : plain_interval_;
  if (!drawn_ || context.now() - last_draw_ >= interval) draw(context);
  return TrainingControl::Continue;
}

TrainingControl ProgressBar::on_epoch_end(const TrainingCallbackContext& context) {
  draw(context);
  end_line();
  return TrainingControl::Continue;
}

TrainingControl ProgressBar::on_train_end(const TrainingCallbackContext& context) {
  const bool shown = drawn_ && drawn_step_ == context.snapshot().step_count;
  if (!shown || !line_.empty()) draw(context);
  end_line();
  return TrainingControl::Continue;
}

}  // namespace oa::ml::training
