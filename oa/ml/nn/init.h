// Initial weights. All come from the host's SplitMix64 stream, so that a seed gives the same bits
// on every device.
#pragma once

#include "oa/ml/parameter.h"

namespace oa::ml::nn {

// A parameter of (2 u - 1) limit in row-major order.
Parameter symmetric_parameter(const Engine& engine, const std::string& name, const Shape& shape,
                              f64 limit, u64 seed);
Parameter constant_parameter(const Engine& engine, const std::string& name, const Shape& shape,
                             f32 value);

// sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010).
f64 xavier_limit(i64 fan_in, i64 fan_out);

// InvalidArgument unless every size is above 0.
void need_sizes(std::string_view op, std::initializer_list<i64> sizes);

}  // namespace oa::ml::nn
