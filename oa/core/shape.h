// Extents of an n-dimensional, row-major, dense value, and NumPy's rules for axes and broadcasting.
#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oa/core/types.h"

namespace oa {

// A short list of integers without heap use up to six entries; any length works.
class Dims {
 public:
  static constexpr u32 kInline = 6;

  Dims() = default;
  Dims(std::initializer_list<i64> values) {
    assign(values.begin(), static_cast<u32>(values.size()));
  }
  explicit Dims(std::span<const i64> values) {
    assign(values.data(), static_cast<u32>(values.size()));
  }
  Dims(u32 count, i64 value) {
    for (u32 i = 0; i < count; ++i) push_back(value);
  }

  u32 size() const { return size_; }
  bool empty() const { return size_ == 0; }
  i64* data() { return size_ <= kInline && heap_.empty() ? inline_ : heap_.data(); }
  const i64* data() const { return size_ <= kInline && heap_.empty() ? inline_ : heap_.data(); }
  i64& operator[](u32 i) { return data()[i]; }
  i64 operator[](u32 i) const { return data()[i]; }
  i64 back() const { return data()[size_ - 1]; }
  const i64* begin() const { return data(); }
  const i64* end() const { return data() + size_; }
  i64* begin() { return data(); }
  i64* end() { return data() + size_; }
  void push_back(i64 value) {
    if (heap_.empty() && size_ == kInline) heap_.assign(inline_, inline_ + size_);
    if (heap_.empty()) {
      inline_[size_] = value;
    } else {
      heap_.push_back(value);
    }
    ++size_;
  }
  void insert(u32 at, i64 value) {
    push_back(value);
    for (u32 i = size_ - 1; i > at; --i) data()[i] = data()[i - 1];
    data()[at] = value;
  }
  void erase(u32 at) {
    for (u32 i = at; i + 1 < size_; ++i) data()[i] = data()[i + 1];
    --size_;
    if (!heap_.empty()) heap_.pop_back();
  }
  operator std::span<const i64>() const { return {data(), size_}; }  // NOLINT
  bool operator==(const Dims& other) const;

 private:
  void assign(const i64* values, u32 count) {
    for (u32 i = 0; i < count; ++i) push_back(values[i]);
  }

  u32 size_ = 0;
  i64 inline_[kInline] = {};
  std::vector<i64> heap_;  // holds everything once there are more than kInline entries
};

// Extents, outermost first. Rank 0 is a scalar with one element; an extent may be 0.
class Shape : public Dims {
 public:
  using Dims::Dims;
  explicit Shape(const Dims& dims) : Dims(dims) {}

  u32 rank() const { return size(); }
  i64 elements() const {
    i64 n = 1;
    for (i64 d : *this) n *= d;
    return n;
  }
  Dims strides() const;  // row-major, in elements
};

std::string to_string(const Dims& dims);  // "[2, 3]"

// Checks extents from a caller: none negative, and the byte count fits 63 bits.
void check_shape(std::string_view op, const Shape& shape, u32 element_bytes);

// The axis in 0..rank-1 that a possibly negative `axis` names; throws InvalidArgument for others.
u32 resolve_axis(std::string_view op, i64 axis, u32 rank);

// The common shape of multidirectional broadcasting; throws InvalidArgument if there is none.
Shape broadcast_shapes(std::string_view op, const Shape& a, const Shape& b);

}  // namespace oa

template <>
struct fmt::formatter<oa::Dims> : fmt::formatter<std::string_view> {
  auto format(const oa::Dims& d, format_context& ctx) const {
    return formatter<std::string_view>::format(oa::to_string(d), ctx);
  }
};
template <>
struct fmt::formatter<oa::Shape> : fmt::formatter<oa::Dims> {};
