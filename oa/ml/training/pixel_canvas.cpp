// Shapes as pixels: how much of a pixel a shape covers is its share of the colour.
#include <algorithm>
#include <cmath>

#include "oa/ml/training/canvas.h"
#include "oa/ml/training/glyphs.h"

namespace oa::ml::training {
namespace {

constexpr Color kInk = {40, 44, 52};
constexpr i64 kGlyphWidth = 5, kGlyphHeight = 7, kAdvance = 6;

const Glyph* glyph_of(char c) {
  for (const Glyph& g : kGlyphs) {
    if (g.character == c) return &g;
  }
  return nullptr;
}

// UTF-8 continuation bytes belong to the character before.
bool starts_character(char c) { return (static_cast<u8>(c) & 0xC0) != 0x80; }

f64 distance_to_segment(f64 x, f64 y, ChartPoint a, ChartPoint b) {
  const f64 dx = b.x - a.x, dy = b.y - a.y, length = dx * dx + dy * dy;
  const f64 t = length > 0 ? std::clamp(((x - a.x) * dx + (y - a.y) * dy) / length, 0.0, 1.0) : 0;
  return std::hypot(x - a.x - t * dx, y - a.y - t * dy);
}

}  // namespace

PixelCanvas::PixelCanvas(f64 scale)
    : scale_(scale),
      width_(static_cast<u32>(kCanvasWidth * scale)),
      height_(static_cast<u32>(kCanvasHeight * scale)),
      pixels_(static_cast<size_t>(width_) * height_ * 3, 255) {}

void PixelCanvas::blend(i64 x, i64 y, Color color, f64 cover) {
  if (x < 0 || y < 0 || x >= width_ || y >= height_ || cover <= 0) return;
  u8* p = pixels_.data() + (static_cast<size_t>(y) * width_ + static_cast<size_t>(x)) * 3;
  const u8 to[] = {color.r, color.g, color.b};
  for (int i = 0; i < 3; ++i) {
    p[i] = static_cast<u8>(std::lround(p[i] + (to[i] - p[i]) * std::min(cover, 1.0)));
  }
}

void PixelCanvas::polyline(std::span<const ChartPoint> points, Color color, f64 width) {
  const f64 half = width * scale_ / 2;
  // One row of pixels of a segment at a time: only what is near the line is looked at.
  for (size_t i = 1; i < points.size(); ++i) {
    const ChartPoint a = {points[i - 1].x * scale_, points[i - 1].y * scale_};
    const ChartPoint b = {points[i].x * scale_, points[i].y * scale_};
    const f64 reach = half + 1;
    const f64 top = std::max(std::min(a.y, b.y) - reach, 0.0);
    const f64 bottom = std::min(std::max(a.y, b.y) + reach, static_cast<f64>(height_));
    for (f64 y = std::floor(top) + 0.5; y < bottom; y += 1) {
      f64 left = std::min(a.x, b.x), right = std::max(a.x, b.x);
      if (std::abs(b.y - a.y) > 1e-9) {  // where the line is within reach of this row
        const f64 slope = (b.x - a.x) / (b.y - a.y);
        const f64 at = a.x + (y - a.y) * slope, spread = std::abs(slope) * reach;
        left = std::max(left, at - spread);
        right = std::min(right, at + spread);
      }
      for (f64 x = std::floor(std::max(left - reach, 0.0)) + 0.5;
           x < std::min(right + reach, static_cast<f64>(width_)); x += 1) {
        blend(static_cast<i64>(x), static_cast<i64>(y), color,
              half + 0.5 - distance_to_segment(x, y, a, b));
      }
    }
  }
}

void PixelCanvas::dot(ChartPoint at, Color color, f64 radius) {
  const f64 cx = at.x * scale_, cy = at.y * scale_, r = radius * scale_;
  for (f64 y = std::floor(cy - r - 1) + 0.5; y < cy + r + 1; y += 1) {
    for (f64 x = std::floor(cx - r - 1) + 0.5; x < cx + r + 1; x += 1) {
      blend(static_cast<i64>(std::floor(x)), static_cast<i64>(std::floor(y)), color,
            r + 0.5 - std::hypot(x - cx, y - cy));
    }
  }
}

void PixelCanvas::box(ChartPoint corner, f64 width, f64 height, Color color) {
  const i64 right = std::lround((corner.x + width) * scale_);
  const i64 bottom = std::lround((corner.y + height) * scale_);
  for (i64 y = std::lround(corner.y * scale_); y < bottom; ++y) {
    for (i64 x = std::lround(corner.x * scale_); x < right; ++x) blend(x, y, color, 1);
  }
}

void PixelCanvas::text(ChartPoint at, std::string_view text, Anchor anchor, bool upwards) {
  const i64 dot = std::max<i64>(1, std::lround(scale_ * 4 / 3));  // pixels of a glyph's dot
  const i64 count = std::ranges::count_if(text, starts_character);
  const i64 length = std::max<i64>(count * kAdvance - 1, 0) * dot;
  i64 along = anchor == Anchor::Start ? 0 : anchor == Anchor::Middle ? -length / 2 : -length;
  const i64 x0 = std::lround(at.x * scale_), y0 = std::lround(at.y * scale_);
  for (const char c : text) {
    if (!starts_character(c)) continue;
    const Glyph* glyph = glyph_of(c);
    for (i64 row = 0; row < kGlyphHeight; ++row) {
      for (i64 column = 0; column < kGlyphWidth; ++column) {
        const bool edge =
            row == 0 || row == kGlyphHeight - 1 || column == 0 || column == kGlyphWidth - 1;
        const bool set = glyph != nullptr
                             ? (glyph->rows[static_cast<size_t>(row)] >> (4 - column) & 1) != 0
                             : c != ' ' && edge;
        if (!set) continue;
        for (i64 v = 0; v < dot; ++v) {
          for (i64 u = 0; u < dot; ++u) {
            const i64 across = (row - kGlyphHeight) * dot + v, forward = along + column * dot + u;
            if (upwards) {
              blend(x0 + across, y0 - forward, kInk, 1);
            } else {
              blend(x0 + forward, y0 + across, kInk, 1);
            }
          }
        }
      }
    }
    along += kAdvance * dot;
  }
}

}  // namespace oa::ml::training
