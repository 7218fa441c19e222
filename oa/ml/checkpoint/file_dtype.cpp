// The table of element types in files.
#include "oa/ml/checkpoint/file_dtype.h"

#include <iterator>

namespace oa::ml {

namespace {

struct Row {
  std::string_view token;
  u32 size;
  std::optional<DType> dtype;
};

constexpr Row kRows[] = {
    {"f32", 4, DType::F32},   {"bf16", 2, DType::BF16}, {"f16", 2, DType::F16}, {"i8", 1, {}},
    {"i32", 4, DType::I32},   {"u8", 1, DType::U8},     {"f64", 8, DType::F64}, {"i16", 2, {}},
    {"i64", 8, {}},           {"u16", 2, {}},           {"u32", 4, DType::U32}, {"u64", 8, {}},
    {"bool", 1, DType::Bool}, {"c64", 8, {}},           {"c128", 16, {}},       {"f8_e5m2", 1, {}},
    {"f8_e4m3", 1, {}},
};
static_assert(std::size(kRows) == static_cast<size_t>(FileDType::F8E4M3) + 1);

const Row& row(FileDType t) { return kRows[static_cast<size_t>(t)]; }

}  // namespace

u32 size_bytes(FileDType t) { return row(t).size; }
std::string_view token(FileDType t) { return row(t).token; }
std::optional<DType> to_dtype(FileDType t) { return row(t).dtype; }

bool is_float(FileDType t) {
  switch (t) {
    case FileDType::F32:
    case FileDType::BF16:
    case FileDType::F16:
    case FileDType::F64:
    case FileDType::F8E5M2:
    case FileDType::F8E4M3: return true;
    default: return false;
  }
}

FileDType to_file(DType t) {
  switch (t) {
    case DType::F32: return FileDType::F32;
    case DType::F64: return FileDType::F64;
    case DType::F16: return FileDType::F16;
    case DType::BF16: return FileDType::BF16;
    case DType::I32: return FileDType::I32;
    case DType::U32: return FileDType::U32;
    case DType::U8: return FileDType::U8;
    case DType::Bool: return FileDType::Bool;
  }
  return FileDType::F32;
}

}  // namespace oa::ml
