#include "oa/ml/matrix/linear.h"

#include "oa/core/error.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/matmul.h"

namespace oa::ml::matrix {

Matrix linear(const Matrix& x, const Matrix& weight, const Matrix& bias) {
  if (!x.valid() || !weight.valid()) {
    invalid("linear", "an operand is empty, expected values");
  }
  if (x.rank() < 1 || weight.rank() != 2 || x.shape().back() != weight.shape()[1]) {
    invalid("linear", "operands do not fit, got x {} and weight {}, expected [..., I] and [O, I]",
            x.shape(), weight.shape());
  }
  if (bias.valid() && bias.shape() != Shape{weight.shape()[0]}) {
    invalid("linear", "bias does not fit, got {}, expected [{}]", bias.shape(), weight.shape()[0]);
  }
  const i64 in = weight.shape()[1];
  Shape out = x.shape();
  out[out.rank() - 1] = weight.shape()[0];
  const i64 rows = in > 0 ? x.num_elements() / in : out.elements() / std::max<i64>(1, out.back());
  Matrix y = oa::matrix::mat_mul_nt(x.reshape({rows, in}), weight);
  if (bias.valid()) y = y + bias;
  return y.reshape(out);
}

}  // namespace oa::ml::matrix
