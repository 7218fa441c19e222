// What charts are drawn on: a few shapes, in units of a picture of 800 x 480.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "oa/ml/training/chart.h"

namespace oa::ml::training {

struct Color {
  u8 r, g, b;
};

enum class Anchor : u8 { Start, Middle, End };

class Canvas {
 public:
  virtual ~Canvas() = default;
  virtual void polyline(std::span<const ChartPoint> points, Color color, f64 width) = 0;
  virtual void dot(ChartPoint at, Color color, f64 radius) = 0;
  virtual void box(ChartPoint corner, f64 width, f64 height, Color color) = 0;
  // `at`: the base line at the anchor. Upwards text reads from below to above.
  virtual void text(ChartPoint at, std::string_view text, Anchor anchor, bool upwards) = 0;
};

inline constexpr f64 kCanvasWidth = 800, kCanvasHeight = 480;
inline constexpr f64 kCharacterWidth = 8;  // of text, about

void draw_chart(const Chart& chart, Canvas& canvas);

// A canvas of pixels, `scale` a unit.
class PixelCanvas final : public Canvas {
 public:
  explicit PixelCanvas(f64 scale);
  void polyline(std::span<const ChartPoint> points, Color color, f64 width) override;
  void dot(ChartPoint at, Color color, f64 radius) override;
  void box(ChartPoint corner, f64 width, f64 height, Color color) override;
  void text(ChartPoint at, std::string_view text, Anchor anchor, bool upwards) override;

  u32 width() const { return width_; }
  u32 height() const { return height_; }
  const std::vector<u8>& pixels() const { return pixels_; }  // rows of r, g, b

 private:
  void blend(i64 x, i64 y, Color color, f64 cover);
  f64 scale_;
  u32 width_, height_;
  std::vector<u8> pixels_;
};

}  // namespace oa::ml::training
