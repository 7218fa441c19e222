#include "oa/ml/training/chart.h"

#include <fmt/format.h>
#include <png.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "oa/core/error.h"
#include "oa/ml/training/canvas.h"

namespace oa::ml::training {
namespace {

constexpr Color kInk = {40, 44, 52}, kGrid = {225, 228, 232}, kWhite = {255, 255, 255};
// Told apart by people with the common kinds of colour blindness.
constexpr std::array<Color, 6> kColors = {
    {{0, 114, 178}, {213, 94, 0}, {0, 158, 115}, {204, 121, 167}, {86, 180, 233}, {230, 159, 0}}};

constexpr f64 kLeft = 76, kRight = 780, kTop = 40, kBottom = 424;

struct Range {
  f64 low = std::numeric_limits<f64>::infinity();
  f64 high = -std::numeric_limits<f64>::infinity();
  void add(f64 x) {
    low = std::min(low, x);
    high = std::max(high, x);
  }
  // Never empty, with some space around.
  Range padded(f64 part) const {
    if (low > high) return {0, 1};
    const f64 size = high - low;
    const f64 space = size > 0 ? size * part : std::max(std::abs(low) * 0.1, 1e-3);
    return {low - space, high + space};
  }
};

bool is_finite(const ChartPoint& p) { return std::isfinite(p.x) && std::isfinite(p.y); }

// As many decimals as neighbours need to differ.
std::string tick_text(f64 value, f64 step) {
  const f64 size = std::max(std::abs(value), step);
  if (size >= 1e15 || size < 1e-5) return fmt::format("{:g}", value);
  for (const auto& [unit, suffix] :
       {std::pair(1e9, "G"), std::pair(1e6, "M"), std::pair(1e3, "K")}) {
    // Only where nothing is lost by it.
    if (size >= 10 * unit || (size >= unit && std::fmod(step, unit / 10) == 0)) {
      const int decimals =
          std::max(0, -static_cast<int>(std::floor(std::log10(step / unit) + 1e-9)));
      return value == 0 ? "0" : fmt::format("{:.{}f}{}", value / unit, decimals, suffix);
    }
  }
  const int decimals = std::max(0, -static_cast<int>(std::floor(std::log10(step) + 1e-9)));
  return fmt::format("{:.{}f}", std::abs(value) < step / 1e6 ? 0.0 : value, decimals);
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      default: out += static_cast<u8>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

class SvgCanvas final : public Canvas {
 public:
  void polyline(std::span<const ChartPoint> points, Color color, f64 width) override {
    out_ += "<polyline fill=\"none\" stroke-linejoin=\"round\" stroke=\"";
    out_ += fmt::format("{}\" stroke-width=\"{:g}\" points=\"", name(color), width);
    for (const ChartPoint& p : points) out_ += fmt::format("{:.2f},{:.2f} ", p.x, p.y);
    out_ += "\"/>\n";
  }
  void dot(ChartPoint at, Color color, f64 radius) override {
    out_ += fmt::format("<circle cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"{:g}\" fill=\"{}\"/>\n", at.x,
                        at.y, radius, name(color));
  }
  void box(ChartPoint corner, f64 width, f64 height, Color color) override {
    out_ +=
        fmt::format("<rect x=\"{:g}\" y=\"{:g}\" width=\"{:g}\" height=\"{:g}\" fill=\"{}\"/>\n",
                    corner.x, corner.y, width, height, name(color));
  }
  void text(ChartPoint at, std::string_view text, Anchor anchor, bool upwards) override {
    static constexpr const char* kAnchors[] = {"start", "middle", "end"};
    const std::string turn =
        upwards ? fmt::format(" transform=\"rotate(-90 {:.2f} {:.2f})\"", at.x, at.y) : "";
    out_ += fmt::format("<text x=\"{:.2f}\" y=\"{:.2f}\" text-anchor=\"{}\"{}>{}</text>\n", at.x,
                        at.y, kAnchors[static_cast<int>(anchor)], turn, escaped(text));
  }
  std::string document(std::string_view title) const {
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
        "viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" font-size=\"13\" fill=\"{2}\">\n"
        "<title>{3}</title>\n{4}</svg>\n",
        kCanvasWidth, kCanvasHeight, name(kInk), escaped(title), out_);
  }

 private:
  static std::string name(Color c) { return fmt::format("#{:02x}{:02x}{:02x}", c.r, c.g, c.b); }
  std::string out_;
};

}  // namespace

std::vector<f64> chart_ticks(f64 low, f64 high, u32 count) {
  if (!(high > low) || !std::isfinite(high - low) || count == 0) return {};
  const f64 raw = (high - low) / count;
  const f64 power = std::pow(10, std::floor(std::log10(raw)));
  const f64 digit = raw / power;
  const f64 step = power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
  std::vector<f64> out;
  const f64 first = std::ceil(low / step - 1e-9);
  for (f64 i = first; i * step <= high + step * 1e-9; i += 1) {
    out.push_back(i * step);
    if (out.size() >= 4 * static_cast<size_t>(count) + 4) break;  // numbers too close for a f64
  }
  return out;
}

void draw_chart(const Chart& chart, Canvas& canvas) {
  Range xs, ys;
  for (const ChartSeries& s : chart.series) {
    for (const ChartPoint& p : s.points) {
      if (!is_finite(p)) continue;
      xs.add(p.x);
      ys.add(p.y);
    }
  }
  const Range x = xs.padded(0.01), y = ys.padded(0.05);
  const auto place = [&](f64 px, f64 py) {
    return ChartPoint{kLeft + (px - x.low) / (x.high - x.low) * (kRight - kLeft),
                      kBottom - (py - y.low) / (y.high - y.low) * (kBottom - kTop)};
  };
  canvas.box({0, 0}, kCanvasWidth, kCanvasHeight, kWhite);
  canvas.text({(kLeft + kRight) / 2, 24}, chart.title, Anchor::Middle, false);
  canvas.text({(kLeft + kRight) / 2, 468}, chart.x_label, Anchor::Middle, false);
  canvas.text({18, (kTop + kBottom) / 2}, chart.y_label, Anchor::Middle, true);

  const auto line = [&](ChartPoint a, ChartPoint b, Color color, f64 width) {
    canvas.polyline(std::array{a, b}, color, width);
  };
  const std::vector<f64> x_ticks = chart_ticks(x.low, x.high, 8);
  const std::vector<f64> y_ticks = chart_ticks(y.low, y.high, 6);
  const auto step_of = [](const std::vector<f64>& t) { return t.size() > 1 ? t[1] - t[0] : 1.0; };
  for (const f64 t : x_ticks) {
    const ChartPoint at = place(t, y.low);
    line(at, {at.x, kTop}, kGrid, 1);
    line(at, {at.x, kBottom + 5}, kInk, 1);
    canvas.text({at.x, kBottom + 20}, tick_text(t, step_of(x_ticks)), Anchor::Middle, false);
  }
  for (const f64 t : y_ticks) {
    const ChartPoint at = place(x.low, t);
    line(at, {kRight, at.y}, kGrid, 1);
    line(at, {kLeft - 5, at.y}, kInk, 1);
    canvas.text({kLeft - 9, at.y + 4.5}, tick_text(t, step_of(y_ticks)), Anchor::End, false);
  }
  line({kLeft, kTop}, {kLeft, kBottom}, kInk, 1.2);
  line({kLeft, kBottom}, {kRight, kBottom}, kInk, 1.2);

  for (size_t i = 0; i < chart.series.size(); ++i) {
    const ChartSeries& s = chart.series[i];
    const Color color = kColors[i % kColors.size()];
    std::vector<ChartPoint> run;  // between two gaps
    const auto end_run = [&] {
      if (run.size() > 1) canvas.polyline(run, color, s.markers ? 2 : 1.6);
      if (run.size() == 1 && !s.markers) canvas.dot(run[0], color, 1.6);
      run.clear();
    };
    for (const ChartPoint& p : s.points) {
      if (!is_finite(p)) {
        end_run();
        continue;
      }
      run.push_back(place(p.x, p.y));
      if (s.markers) canvas.dot(run.back(), color, 3);
    }
    end_run();
  }

  size_t longest = 0;
  for (const ChartSeries& s : chart.series) longest = std::max(longest, s.name.size());
  const f64 width = 48 + kCharacterWidth * static_cast<f64>(longest);
  const f64 left = kRight - width - 8;
  if (!chart.series.empty()) {
    canvas.box({left, kTop + 6}, width, 12 + 20 * static_cast<f64>(chart.series.size()), kWhite);
  }
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const f64 at = kTop + 22 + 20 * static_cast<f64>(i);
    const Color color = kColors[i % kColors.size()];
    line({left + 8, at}, {left + 32, at}, color, 2.4);
    if (chart.series[i].markers) canvas.dot({left + 20, at}, color, 3.4);
    canvas.text({left + 40, at + 4.5}, chart.series[i].name, Anchor::Start, false);
  }
}

std::string render_svg(const Chart& chart) {
  SvgCanvas canvas;
  draw_chart(chart, canvas);
  return canvas.document(chart.title);
}

std::vector<u8> render_png(const Chart& chart) {
  PixelCanvas canvas(1.5);
  draw_chart(chart, canvas);
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  image.width = canvas.width();
  image.height = canvas.height();
  image.format = PNG_FORMAT_RGB;
  std::vector<u8> out(PNG_IMAGE_PNG_SIZE_MAX(image));
  png_alloc_size_t size = out.size();
  if (png_image_write_to_memory(&image, out.data(), &size, 0, canvas.pixels().data(), 0, nullptr) ==
      0) {
    fail(ErrorKind::Internal, "render_png", "{}", std::string(image.message));
  }
  out.resize(size);
  return out;
}

}  // namespace oa::ml::training
