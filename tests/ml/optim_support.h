// Parameters with gradients for the tests of optimizers, and the updates in double precision.
#pragma once

#include <cmath>
#include <functional>

#include "oa/ml/optim/optimizer.h"
#include "tests/matrix/devices.h"

namespace oa::test {

using ml::Parameter;

// Odd sizes, every rank, one and no element; more than one workgroup.
inline const std::vector<Shape> kShapes = {{3, 5}, {7}, {}, {2, 3, 4}, {0}, {1, 1}, {6, 2}, {9001}};

struct Model {
  std::vector<Parameter> parameters;
  std::vector<std::vector<f64>> values;  // the same in double precision
};

inline Model make_model(const Engine& e, const std::vector<Shape>& shapes = kShapes) {
  Model m;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const std::vector<f32> v =
        random_f32(static_cast<u32>(i + 1), static_cast<size_t>(shapes[i].elements()));
    m.parameters.push_back(
        Parameter::create(fmt::format("p{}", i), Matrix::from_f32(e, shapes[i], v)));
    m.values.emplace_back(v.begin(), v.end());
  }
  return m;
}

// The gradient of parameter i in step t.
inline std::vector<f32> gradient_values(size_t i, u32 t, size_t n) {
  return random_f32(static_cast<u32>(1000 * t + i), n, -0.5f, 0.5f);
}

inline void set_gradients(const Engine& e, const std::vector<Parameter>& parameters, u32 t) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Shape& shape = parameters[i].data().shape();
    const std::vector<f32> g = gradient_values(i, t, static_cast<size_t>(shape.elements()));
    parameters[i].set_gradient(Matrix::from_f32(e, shape, g));
  }
}

// Updates one parameter with its moments by its gradient in step t (from 1).
using HostUpdate = std::function<void(f64& p, f64& m, f64& v, f64 g, u32 t)>;

// The largest difference to the reference after `steps` steps, relative to 1 + |reference|.
inline f64 error_after(const Engine& e, ml::Optimizer& optimizer, Model& model, u32 steps,
                       const HostUpdate& update, bool check_each = false) {
  std::vector<std::vector<f64>> m(model.values.size()), v(model.values.size());
  for (size_t i = 0; i < m.size(); ++i) {
    m[i].resize(model.values[i].size());
    v[i].resize(model.values[i].size());
  }
  f64 worst = 0;
  for (u32 t = 1; t <= steps; ++t) {
    set_gradients(e, model.parameters, t);
    optimizer.step();
    for (size_t i = 0; i < model.values.size(); ++i) {
      const std::vector<f32> g = gradient_values(i, t, model.values[i].size());
      for (size_t k = 0; k < g.size(); ++k) {
        update(model.values[i][k], m[i][k], v[i][k], static_cast<f64>(g[k]), t);
      }
    }
    if (!check_each && t < steps) continue;
    for (size_t i = 0; i < model.values.size(); ++i) {
      const std::vector<f32> p = model.parameters[i].data().read_f32();
      for (size_t k = 0; k < p.size(); ++k) {
        const f64 expected = model.values[i][k];
        const f64 error = std::abs(static_cast<f64>(p[k]) - expected) / (1 + std::abs(expected));
        worst = std::isnan(error) ? error : std::max(worst, error);
        if (std::isnan(worst)) return worst;
      }
    }
  }
  return worst;
}

inline std::vector<std::vector<f32>> values_of(const std::vector<Parameter>& parameters) {
  std::vector<std::vector<f32>> list;
  for (const Parameter& p : parameters) list.push_back(p.data().read_f32());
  return list;
}

}  // namespace oa::test
