// Chart: lines over a common axis as a picture, SVG or PNG.
#pragma once

#include <string>
#include <vector>

#include "oa/core/types.h"

namespace oa::ml::training {

struct ChartPoint {
  f64 x = 0, y = 0;
};

struct ChartSeries {
  std::string name;
  std::vector<ChartPoint> points;  // by rising x; a point that is not finite leaves a gap
  bool markers = false;            // a dot at every point
};

struct Chart {
  std::string title;
  std::string x_label, y_label;
  std::vector<ChartSeries> series;
};

// 800 x 480, with axes, ticks, a grid and a legend. Text is UTF-8.
std::string render_svg(const Chart& chart);
// The same with 1200 x 720 pixels; characters other than ASCII become boxes.
std::vector<u8> render_png(const Chart& chart);

// About `count` round numbers (1, 2 or 5 times a power of ten apart) within [low, high].
std::vector<f64> chart_ticks(f64 low, f64 high, u32 count);

}  // namespace oa::ml::training
