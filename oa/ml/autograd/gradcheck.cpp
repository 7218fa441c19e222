#include "oa/ml/autograd/gradcheck.h"

#include <algorithm>
#include <cmath>

#include "oa/core/error.h"
#include "oa/core/random.h"
#include "oa/engine/engine_core.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/reduce.h"
#include "oa/ml/autograd/gradient_tape.h"

namespace oa::ml {

GradcheckResult gradcheck(const std::function<Matrix(const std::vector<Matrix>&)>& fn,
                          const std::vector<Matrix>& inputs, const GradcheckOptions& options) {
  const NoGrad quiet;
  std::vector<std::vector<f64>> values(inputs.size());
  std::vector<Matrix> x;  // values of our own, to be overwritten
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool varied = inputs[i].dtype() == DType::F64;
    if (varied) values[i] = inputs[i].read<f64>();
    x.push_back(varied ? matrix::copy(inputs[i]) : inputs[i]);
  }

  Matrix weights;
  const auto project = [&] {
    const Matrix y = fn(x);
    if (!weights.valid()) {
      SplitMix64 rng(options.seed);
      std::vector<f64> w(static_cast<size_t>(y.num_elements()));
      for (f64& v : w) v = 2 * static_cast<f64>(rng.next_unit()) - 1;
      auto& core = dynamic_cast<EngineCore&>(y.tensor()->recorder());
      weights = Matrix(core.upload("gradcheck", {DType::F64, y.shape()}, w.data()));
    }
    return matrix::sum(matrix::cast(y, DType::F64) * weights);
  };

  std::vector<std::vector<f64>> analytic(inputs.size());
  {
    GradientTape tape;
    for (const Matrix& m : x) {
      if (m.dtype() == DType::F64) tape.watch(m);
    }
    const Matrix root = project();
    tape.backward(root);
    for (size_t i = 0; i < x.size(); ++i) {
      if (values[i].empty()) continue;
      const std::optional<Matrix> g = tape.gradient(x[i]);
      analytic[i] = g ? g->read<f64>() : std::vector<f64>(values[i].size(), 0.0);
    }
  }

  GradcheckResult result;
  for (size_t i = 0; i < x.size(); ++i) {
    const auto count = static_cast<i64>(values[i].size());
    const i64 stride = std::max<i64>(
        1, (count + options.most_elements - 1) / std::max<i64>(1, options.most_elements));
    for (i64 e = 0; e < count; e += stride) {
      const auto at = static_cast<size_t>(e);
      const f64 h = options.step * std::max(1.0, std::abs(values[i][at]));
      const auto value_at = [&](f64 v) {
        std::vector<f64> moved = values[i];
        moved[at] = v;
        x[i].write<f64>(moved);
        return project().read<f64>()[0];
      };
      const f64 center = values[i][at];
      const f64 numeric = (value_at(center + h) - value_at(center - h)) / (2 * h);
      const f64 error = std::abs(analytic[i][at] - numeric) / std::max(1.0, std::abs(numeric));
      if (error > result.worst || std::isnan(error)) result.worst = error;
      if (result.ok && !(error <= options.tolerance)) {
        result.ok = false;
        result.complaint = fmt::format("input {}, element {}: gradient {}, central difference {}",
                                       i, e, analytic[i][at], numeric);
      }
    }
    if (count > 0) x[i].write<f64>(values[i]);
  }
  return result;
}

}  // namespace oa::ml
