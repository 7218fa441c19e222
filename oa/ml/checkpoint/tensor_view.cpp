// Checks that every writer makes before it touches a file.
#include "oa/ml/checkpoint/tensor_view.h"

#include <unordered_set>

#include "oa/core/error.h"
#include "oa/core/utf8.h"
#include "oa/ml/checkpoint/quantize.h"

namespace oa::ml {

namespace {

constexpr u64 kMax = (u64{1} << 63) - 1;

// a * b, or nothing above kMax.
std::optional<u64> product(u64 a, u64 b) {
  u64 result;
  if (__builtin_mul_overflow(a, b, &result) || result > kMax) return std::nullopt;
  return result;
}

}  // namespace

std::string_view token(Encoding e) {
  constexpr std::string_view names[] = {"dense", "q4", "q8"};
  return names[static_cast<size_t>(e)];
}

std::optional<u64> checked_elements(const Shape& shape) {
  bool empty = false;
  for (i64 extent : shape) {
    if (extent < 0) return std::nullopt;
    empty |= extent == 0;
  }
  if (empty) return 0;
  std::optional<u64> n = 1;
  for (i64 extent : shape) {
    n = product(*n, static_cast<u64>(extent));
    if (!n) return std::nullopt;
  }
  return n;
}

std::optional<u64> checked_bytes(const Shape& shape, FileDType dtype) {
  const std::optional<u64> n = checked_elements(shape);
  return n ? product(*n, size_bytes(dtype)) : std::nullopt;
}

bool is_valid_name(std::string_view name) {
  return !name.empty() && name.find('\0') == name.npos && is_utf8_text(name);
}

void check_tensors(std::string_view op, std::span<const TensorView> tensors) {
  std::unordered_set<std::string_view> names;
  for (const TensorView& t : tensors) {
    if (!is_valid_name(t.name))
      invalid(op, "wrong tensor name, got '{}', expected non-empty UTF-8 without NUL",
              printable(t.name));
    if (!names.insert(t.name).second) invalid(op, "two tensors have the name '{}'", t.name);
    if (t.shape.rank() > kMaxFileRank)
      invalid(op, "'{}' has too many axes, got {}, expected at most {}", t.name, t.shape.rank(),
              kMaxFileRank);
    std::optional<u64> expected = checked_bytes(t.shape, t.dtype);
    if (expected && t.encoding != Encoding::Dense) {
      if (t.dtype != FileDType::F32 || t.bytes.empty())
        invalid(op, "'{}' cannot be stored as {}, got {} {}, expected f32 with elements", t.name,
                token(t.encoding), token(t.dtype), t.shape);
      expected = quantized_bytes(*expected / 4, t.encoding);
    }
    if (!expected || t.bytes.size() != *expected)
      invalid(op, "'{}' has a wrong number of bytes, got {}, expected {} for {} {} {}", t.name,
              t.bytes.size(), expected ? fmt::to_string(*expected) : "an impossible number",
              token(t.encoding), token(t.dtype), t.shape);
  }
}

}  // namespace oa::ml
