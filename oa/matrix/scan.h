// Running sums along an axis.
#pragma once

#include "oa/matrix/matrix.h"

namespace oa::matrix {

struct CumsumOptions {
  bool exclusive = false;  // the sum of what comes before the element, from 0 on
  bool reverse = false;    // from the end of the axis
};

// Element i is the sum of elements 0 .. i of its line. F32, F64, I32, U32; F16 and BF16 add in F32
// and round each result; Bool and U8 give U32. Integers wrap. The order of additions depends on the
// shape and the device only, never on scheduling.
Matrix cumsum(const Matrix& x, i64 axis, CumsumOptions options = {});

}  // namespace oa::matrix
