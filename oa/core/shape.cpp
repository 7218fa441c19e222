#include "oa/core/shape.h"

#include <algorithm>

#include "oa/core/error.h"

namespace oa {

bool Dims::operator==(const Dims& other) const {
  return size_ == other.size_ && std::equal(begin(), end(), other.begin());
}

Dims Shape::strides() const {
  Dims result(rank(), 1);
  for (u32 i = rank(); i-- > 1;) result[i - 1] = result[i] * (*this)[i];
  return result;
}

std::string to_string(const Dims& dims) { return fmt::format("[{}]", fmt::join(dims, ", ")); }

void check_shape(std::string_view op, const Shape& shape, u32 element_bytes) {
  i64 bytes = element_bytes;
  bool overflow = false;
  for (i64 d : shape) {
    if (d < 0) invalid(op, "negative extent, got shape {}, expected extents of 0 or more", shape);
    if (d != 0) overflow = overflow || __builtin_mul_overflow(bytes, d, &bytes);
  }
  if (overflow)
    invalid(op, "shape {} has too many elements, expected fewer than 2^63 bytes", shape);
}

u32 resolve_axis(std::string_view op, i64 axis, u32 rank) {
  const i64 r = rank;
  if (axis < -r || axis >= r) {
    if (rank == 0) invalid(op, "axis out of range, got {}, expected a value that has axes", axis);
    invalid(op, "axis out of range, got {}, expected {} to {} for rank {}", axis, -r, r - 1, rank);
  }
  return static_cast<u32>(axis < 0 ? axis + r : axis);
}

Shape broadcast_shapes(std::string_view op, const Shape& a, const Shape& b) {
  const u32 rank = std::max(a.rank(), b.rank());
  Shape result(rank, 1);
  for (u32 i = 0; i < rank; ++i) {
    const i64 x = i < a.rank() ? a[a.rank() - 1 - i] : 1;
    const i64 y = i < b.rank() ? b[b.rank() - 1 - i] : 1;
    if (x != y && x != 1 && y != 1) {
      invalid(op, "shapes do not broadcast, got {} and {}, expected equal extents or 1", a, b);
    }
    result[rank - 1 - i] = x == 1 ? y : x;
  }
  return result;
}

}  // namespace oa
