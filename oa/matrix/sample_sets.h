// Sets of samples that many ops share.
#pragma once

#include <span>

#include "oa/graph/samples.h"

namespace oa::matrix {

using graph::kAll;
using graph::kFloats;
using graph::kIntegers;
using graph::kNumbers;
using graph::kSigned;
using graph::SampleOperand;
using graph::Samples;

// Ops of one operand that keep its shape: tails, one element, none, rank 0 and more axes than fit
// a short list, and special values in every dtype.
template <class Attrs>
void unary_samples(Samples& s, std::span<const DType> dtypes, const Attrs& attrs, f64 low = -2,
                   f64 high = 2) {
  const DType first = dtypes[0];
  for (const Shape& shape : {Shape{}, Shape{5, 7}, Shape{0, 3}, Shape{2, 1, 3, 1, 2, 1, 2, 3}}) {
    s.call({{shape, first, low, high}}, attrs);
  }
  for (DType t : dtypes) s.call({{{41}, t, low, high, true}}, attrs);
}

// Ops of two operands that broadcast.
template <class Attrs>
void binary_samples(Samples& s, std::span<const DType> dtypes, const Attrs& attrs, f64 low = -2,
                    f64 high = 2) {
  const DType first = dtypes[0];
  const std::pair<Shape, Shape> pairs[] = {
      {{}, {6}},           {{4, 7}, {7}},
      {{4, 1, 3}, {5, 1}}, {{0, 3}, {1}},
      {{1, 3}, {0, 3}},    {{3, 1}, {3, 1}},
      {{2, 1}, {}},        {{2, 1, 2, 1, 2, 3, 1}, {1, 2, 1, 1, 1, 2}},
  };
  for (const auto& [a, b] : pairs) s.call({{a, first, low, high}, {b, first, low, high}}, attrs);
  for (DType t : dtypes) s.call({{{41}, t, low, high, true}, {{41}, t, low, high, true}}, attrs);
}

}  // namespace oa::matrix
