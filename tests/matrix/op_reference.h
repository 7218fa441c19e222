// What every op means, in double precision on the host: plain loops, one function per op name.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "oa/core/dtype.h"
#include "oa/core/shape.h"
#include "oa/graph/op.h"

namespace oa::test {

// A value on the host; every element of every dtype but large I64 is exact in a double.
struct Array {
  DType dtype = DType::F32;
  Shape shape;
  std::vector<f64> v;
};

// A reference result and how far from it a device may be. Without `ulps` the device must give the
// reference rounded to the dtype, bit for bit; else the error may be
//   epsilon(dtype) * (ulps + 2 sqrt(length)) * scale
// where scale is |value| unless stated. The only table of bounds is allowed_error() below.
struct Expected {
  Array value;
  f64 ulps = 0;
  i64 length = 0;           // terms that were added up
  std::vector<f64> scale;   // magnitude that rounding errors are relative to
  bool composite = false;   // intermediate results may have been rounded to the dtype
  bool signed_zero = true;  // the sign of a zero is defined
};

using Attributes = std::vector<graph::AttrValue>;
using Reference = std::function<Expected(const std::vector<Array>&, const Attributes&)>;

// By name, and "name/n" for forms with n operands where a name has several.
const std::map<std::string, Reference>& references();

// The value as it is once stored in an element of `t`: rounded, wrapped or made a flag.
f64 stored(DType t, f64 x);

f64 epsilon(DType t);
f64 least_normal(DType t);
f64 greatest(DType t);

// The error that element i may have; infinite where nothing is promised.
f64 allowed_error(const Expected& e, size_t i);

}  // namespace oa::test
