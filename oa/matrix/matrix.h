// Matrix: an n-dimensional, row-major, dense value. A cheap handle: copies share the elements.
//
// Operations record and return at once; read() flushes, waits and copies. Axes count from the end
// when negative, shapes broadcast, rank 0 is a scalar, an extent may be 0 (NumPy's rules).
#pragma once

#include <iosfwd>
#include <span>
#include <vector>

#include "oa/engine/engine.h"

namespace oa {

class Matrix {
 public:
  Matrix() = default;  // empty: usable only to be assigned to
  Matrix(graph::TensorRef tensor)
      : tensor_(std::move(tensor)) {}  // NOLINT(google-explicit-constructor)

  // Elements from the host, in row-major order. InvalidArgument when the count does not fit.
  template <class T>
  static Matrix from_slice(const Engine& engine, const Shape& shape, std::span<const T> values) {
    return upload(engine, shape, DTypeOf<T>::value, values.data(), values.size());
  }
  static Matrix from_f32(const Engine& engine, const Shape& shape, std::span<const f32> values) {
    return from_slice<f32>(engine, shape, values);
  }
  // The same from bits of any dtype (16-bit floats as u16), `count` elements.
  static Matrix upload(const Engine& engine, const Shape& shape, DType dtype, const void* data,
                       size_t count);

  bool valid() const { return static_cast<bool>(tensor_); }
  const Shape& shape() const { return held().shape(); }
  u32 rank() const { return shape().rank(); }
  DType dtype() const { return held().dtype(); }
  i64 num_elements() const { return shape().elements(); }

  // The same elements under another shape; one extent may be -1. No copy: what is assigned to one
  // of both, computed or not, is in the other.
  Matrix reshape(const Shape& shape) const;
  Matrix flatten() const { return reshape({-1}); }
  Matrix unsqueeze(i64 axis) const;  // a new axis of extent 1; 0 .. rank
  Matrix squeeze(i64 axis) const;    // removes an axis of extent 1
  // Exchanges two axes; the last two by default.
  Matrix transpose(i64 axis0 = -2, i64 axis1 = -1) const;

  Matrix add(const Matrix& other) const;
  Matrix sub(const Matrix& other) const;
  Matrix mul(const Matrix& other) const;
  Matrix div(const Matrix& other) const;
  Matrix mat_mul(const Matrix& other) const;
  Matrix to(DType dtype) const;

  // Replaces the elements in place by those of `value` (equal shape and dtype), in the order of
  // recorded work: what was recorded before still sees the old elements.
  void assign(const Matrix& value) const;
  // The same from the host; flushes first.
  template <class T>
  void write(std::span<const T> values) const {
    overwrite(DTypeOf<T>::value, values.data(), values.size());
  }

  // Host boundary: flush, wait, copy. InvalidArgument when T is not the dtype.
  template <class T>
  std::vector<T> read() const {
    if constexpr (std::is_same_v<T, bool>) {
      std::vector<u8> bytes(static_cast<size_t>(num_elements()));
      read_into(DType::Bool, bytes.data());
      return std::vector<bool>(bytes.begin(), bytes.end());
    } else {
      std::vector<T> values(static_cast<size_t>(num_elements()));
      read_into(DTypeOf<T>::value, values.data());
      return values;
    }
  }
  std::vector<f32> read_f32() const { return read<f32>(); }
  // Like read(), but throws NotReady instead of waiting.
  template <class T>
  std::vector<T> try_read() const {
    std::vector<T> values(static_cast<size_t>(num_elements()));
    try_read_into(DTypeOf<T>::value, values.data());
    return values;
  }
  std::vector<f32> try_read_f32() const { return try_read<f32>(); }
  // The one element of a value with one element.
  f32 item() const;
  // Copies the elements' bits; `dtype` must be the value's.
  void read_into(DType dtype, void* data) const;
  void try_read_into(DType dtype, void* data) const;

  const graph::TensorRef& tensor() const { return tensor_; }

 private:
  // InvalidArgument if this is an empty Matrix.
  const graph::Tensor& held() const {
    if (!tensor_) refuse_empty();
    return *tensor_;
  }
  [[noreturn]] static void refuse_empty();
  void overwrite(DType dtype, const void* data, size_t count) const;
  graph::TensorRef tensor_;
};

// Shape, dtype and the first elements. Reads the value.
std::ostream& operator<<(std::ostream& out, const Matrix& m);

}  // namespace oa
