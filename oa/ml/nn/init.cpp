#include "oa/ml/nn/init.h"

#include <cmath>

#include "oa/core/error.h"
#include "oa/core/random.h"

namespace oa::ml::nn {

Parameter symmetric_parameter(const Engine& engine, const std::string& name, const Shape& shape,
                              f64 limit, u64 seed) {
  check_shape(name, shape, sizeof(f32));
  const std::vector<f32> values =
      symmetric_uniform(static_cast<u64>(shape.elements()), static_cast<f32>(limit), seed);
  return Parameter::create(name, Matrix::from_f32(engine, shape, values));
}

Parameter constant_parameter(const Engine& engine, const std::string& name, const Shape& shape,
                             f32 value) {
  check_shape(name, shape, sizeof(f32));
  const std::vector<f32> values(static_cast<size_t>(shape.elements()), value);
  return Parameter::create(name, Matrix::from_f32(engine, shape, values));
}

f64 xavier_limit(i64 fan_in, i64 fan_out) {
  return std::sqrt(6.0 / (static_cast<f64>(fan_in) + static_cast<f64>(fan_out)));
}

void need_sizes(std::string_view op, std::initializer_list<i64> sizes) {
  for (i64 s : sizes) {
    if (s <= 0) invalid(op, "bad size, got {}, expected 1 or more", s);
  }
}

}  // namespace oa::ml::nn
