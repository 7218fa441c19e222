// Checks a gradient against central differences, in double precision.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "oa/matrix/matrix.h"

namespace oa::ml {

struct GradcheckOptions {
  f64 step = 1e-5;         // of the difference, times max(1, |x|)
  f64 tolerance = 1e-6;    // of |analytic - numeric| / max(1, |numeric|)
  i64 most_elements = 48;  // per input; of larger ones an even choice is checked
  u64 seed = 1;            // of the weights that make one number of the result
};

struct GradcheckResult {
  bool ok = true;
  f64 worst = 0;          // greatest relative difference
  std::string complaint;  // where it is and what was found; empty if ok
};

// `fn` maps F64 inputs (on an engine with F64, the CPU) to one float value of any shape. Inputs of
// other dtypes are handed on as they are. Works for operations of the caller's own as well.
GradcheckResult gradcheck(const std::function<Matrix(const std::vector<Matrix>&)>& fn,
                          const std::vector<Matrix>& inputs, const GradcheckOptions& options = {});

}  // namespace oa::ml
