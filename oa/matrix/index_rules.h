// Shape rules and kernel code that ops with index operands share.
#pragma once

#include "oa/matrix/record.h"

namespace oa::matrix {

inline bool is_index(DType t) { return t == DType::I32 || t == DType::U32 || t == DType::U8; }

inline void need_indices(const Infer& in, u32 operand) {
  if (!is_index(in.dtype(operand))) {
    in.reject("operand {} has the wrong dtype, got {}, expected i32, u32 or u8", operand,
              token(in.dtype(operand)));
  }
}

// Whether an index value (I32 or U32) lies outside 0 .. limit - 1.
kernel::Value out_of_range(const kernel::Value& index, i64 limit);

// Axes [begin, end) of a shape.
inline Shape axes_of(const Shape& shape, u32 begin, u32 end) {
  Shape out;
  for (u32 i = begin; i < end; ++i) out.push_back(shape[i]);
  return out;
}

inline Shape joined(Shape a, const Shape& b) {
  for (i64 extent : b) a.push_back(extent);
  return a;
}

}  // namespace oa::matrix
