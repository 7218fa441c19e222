#include "oa/matrix/matrix.h"

#include <ostream>

#include "oa/graph/gradient.h"
#include "oa/graph/reshape.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/matmul.h"
#include "oa/matrix/movement.h"
#include "oa/matrix/record.h"

namespace oa {

namespace {

EngineCore& core_of(const graph::TensorRef& t, std::string_view op) {
  if (!t) invalid(op, "the value is empty, expected one with elements");
  auto* core = dynamic_cast<EngineCore*>(&t->recorder());
  OA_CHECK(core != nullptr);  // definitions of ops never read values
  return *core;
}

u64 byte_count(const graph::TensorRef& t) {
  return static_cast<u64>(t->shape().elements()) * size_bytes(t->dtype());
}

void need_dtype(std::string_view op, const graph::TensorRef& t, DType dtype) {
  if (t->dtype() != dtype) {
    invalid(op, "wrong element type, got {}, expected {}", token(dtype), token(t->dtype()));
  }
}

}  // namespace

void Matrix::refuse_empty() { invalid("Matrix", "the value is empty, expected one with elements"); }

Matrix Matrix::upload(const Engine& engine, const Shape& shape, DType dtype, const void* data,
                      size_t count) {
  check_shape("from_slice", shape, size_bytes(dtype));
  if (static_cast<u64>(shape.elements()) != count) {
    invalid("from_slice", "element count does not fit shape {}, got {}, expected {}", shape, count,
            shape.elements());
  }
  return Matrix(engine.core().upload("from_slice", {dtype, shape}, data));
}

Matrix Matrix::reshape(const Shape& shape) const {
  if (!tensor_) invalid("reshape", "the value is empty, expected one with elements");
  tensor_->recorder().check_open("reshape");
  Shape target = shape;
  i64 known = 1;
  i32 free_axis = -1;
  for (u32 i = 0; i < shape.rank(); ++i) {
    if (shape[i] != -1) {
      known *= shape[i];
    } else if (free_axis >= 0) {
      invalid("reshape", "two free extents, got {}, expected at most one -1", shape);
    } else {
      free_axis = static_cast<i32>(i);
    }
  }
  if (free_axis >= 0) {
    if (known == 0 || num_elements() % known != 0) {
      invalid("reshape", "extent -1 has no value, got {} to {}, expected a divisor", this->shape(),
              shape);
    }
    target[static_cast<u32>(free_axis)] = num_elements() / known;
  }
  if (target == this->shape()) return *this;
  const bool has_elements = tensor_->pending() || tensor_->storage();
  if (has_elements && !tensor_->recorder().rewriting() && target.elements() == num_elements()) {
    // The elements are shared, computed or not.
    check_shape("reshape", target, size_bytes(dtype()));
    graph::TensorRef view = graph::Tensor::view(tensor_, target);
    if (graph::Observer* listener = graph::observer()) {
      listener->after(graph::op_def<graph::Reshape>(), graph::make_attrs<graph::Reshape>({target}),
                      {&tensor_, 1}, {&view, 1});
    }
    return Matrix(view);
  }
  return matrix::record<graph::Reshape>({*this}, {target});
}

Matrix Matrix::unsqueeze(i64 axis) const {
  const i64 r = rank();
  if (axis < -r - 1 || axis > r) {
    invalid("unsqueeze", "axis out of range, got {}, expected {} to {}", axis, -r - 1, r);
  }
  Shape s = shape();
  s.insert(static_cast<u32>(axis < 0 ? axis + r + 1 : axis), 1);
  return reshape(s);
}

Matrix Matrix::squeeze(i64 axis) const {
  const u32 a = resolve_axis("squeeze", axis, rank());
  if (shape()[a] != 1) {
    invalid("squeeze", "axis {} of {} has more than one step, got {}, expected 1", axis, shape(),
            shape()[a]);
  }
  Shape s = shape();
  s.erase(a);
  return reshape(s);
}

Matrix Matrix::transpose(i64 axis0, i64 axis1) const {
  return matrix::transpose(*this, axis0, axis1);
}
Matrix Matrix::add(const Matrix& other) const { return matrix::add(*this, other); }
Matrix Matrix::sub(const Matrix& other) const { return matrix::sub(*this, other); }
Matrix Matrix::mul(const Matrix& other) const { return matrix::mul(*this, other); }
Matrix Matrix::div(const Matrix& other) const { return matrix::div(*this, other); }
Matrix Matrix::mat_mul(const Matrix& other) const { return matrix::mat_mul(*this, other); }
Matrix Matrix::to(DType dtype) const { return matrix::cast(*this, dtype); }

void Matrix::assign(const Matrix& value) const {
  if (!tensor_ || !value.tensor_) invalid("assign", "an operand is empty, expected values");
  tensor_->recorder().graph().record_assign(tensor_, value.tensor_);
}

void Matrix::overwrite(DType dtype, const void* data, size_t count) const {
  EngineCore& core = core_of(tensor_, "write");
  need_dtype("write", tensor_, dtype);
  if (count != static_cast<u64>(num_elements())) {
    invalid("write", "element count does not fit shape {}, got {}, expected {}", shape(), count,
            num_elements());
  }
  core.overwrite("write", tensor_, data, byte_count(tensor_));
}

f32 Matrix::item() const {
  if (num_elements() != 1)
    invalid("item", "more than one element, got shape {}, expected one element", shape());
  return matrix::cast(*this, DType::F32).read_f32()[0];
}

void Matrix::read_into(DType dtype, void* data) const {
  EngineCore& core = core_of(tensor_, "read");
  need_dtype("read", tensor_, dtype);
  core.read("read", tensor_, data, byte_count(tensor_));
}

void Matrix::try_read_into(DType dtype, void* data) const {
  EngineCore& core = core_of(tensor_, "try_read");
  need_dtype("try_read", tensor_, dtype);
  if (!core.try_read("try_read", tensor_, data, byte_count(tensor_))) {
    fail(ErrorKind::NotReady, "try_read", "the value is not computed yet");
  }
}

std::ostream& operator<<(std::ostream& out, const Matrix& m) {
  if (!m.valid()) return out << "Matrix()";
  out << fmt::format("{}{}", token(m.dtype()), m.shape());
  constexpr i64 kShown = 8;
  const i64 n = std::min(kShown, m.num_elements());
  if (m.num_elements() == 0) return out << " {}";
  const Matrix head = matrix::slice(m.reshape({-1}), 0, 0, n);
  std::string text;
  const auto list = [&](const auto& values) { text = fmt::format("{}", fmt::join(values, ", ")); };
  switch (m.dtype()) {
    case DType::I32: list(head.read<i32>()); break;
    case DType::U32: list(head.read<u32>()); break;
    case DType::F64: list(head.read<f64>()); break;
    case DType::U8:
    case DType::Bool: list(matrix::cast(head, DType::U32).read<u32>()); break;
    default: list(matrix::cast(head, DType::F32).read<f32>());
  }
  return out << " {" << text << (n < m.num_elements() ? ", ...}" : "}");
}

}  // namespace oa
