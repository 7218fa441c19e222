// The gradient of every op, on every sample that it states with operands of F64, against central
// differences of the op itself. An op with a float result has a gradient, is detached, or is named
// here.
#include <gtest/gtest.h>

#include "oa/engine/engine_core.h"
#include "oa/matrix/all_ops.h"
#include "oa/ml/autograd/gradcheck.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/matrix/ml_ops.h"
#include "tests/matrix/devices.h"

namespace oa::test {
namespace {

using graph::OpDef;
using graph::OpKind;
using graph::Sample;

class OpGradients : public testing::TestWithParam<const OpDef*> {};

bool needs_positive(std::string_view op) {
  return op == "log" || op == "log1p" || op == "sqrt" || op == "rsqrt" || op == "pow";
}

// Distinct values that keep away from ties, rounding steps and the ends of domains.
std::vector<f64> values_of(const OpDef& op, const graph::SampleOperand& o, u32 seed) {
  std::vector<f64> v(static_cast<size_t>(o.shape.elements()));
  std::mt19937 rng(seed);
  std::uniform_real_distribution<f64> d(o.low, o.high);
  for (f64& x : v) {
    x = d(rng);
    for (int tries = 0; tries < 20 && std::abs(x - std::round(2 * x) / 2) < 1e-2; ++tries) {
      x = d(rng);
    }
    if (needs_positive(op.name())) x = std::abs(x) + 0.1;
  }
  return v;
}

Matrix integers(const Engine& e, const graph::SampleOperand& o, u32 seed) {
  std::mt19937 rng(seed);
  const f64 low = o.dtype == DType::I32 ? o.low : std::max(0.0, o.low);
  std::uniform_int_distribution<i32> d(static_cast<i32>(low), static_cast<i32>(o.high));
  std::vector<i32> v(static_cast<size_t>(o.shape.elements()));
  for (i32& x : v) x = o.dtype == DType::Bool ? d(rng) & 1 : d(rng);
  return matrix::cast(Matrix::from_slice<i32>(e, o.shape, v), o.dtype);
}

TEST_P(OpGradients, EqualCentralDifferences) {
  const OpDef& op = *GetParam();
  // A gradient of a gradient is refused, not wrong.
  if (op.name().ends_with("_backward")) GTEST_SKIP() << "a gradient itself";
  graph::Samples stated;
  op.samples(stated);
  Engine& e = *open_device("cpu").engine;
  int checked = 0;
  for (const Sample& s : stated.list()) {
    if (!s.rejection.empty() || s.operands.empty() || s.operands.size() > 6) continue;
    bool has_f32 = false, special = false, large = false;
    for (const auto& o : s.operands) {
      has_f32 = has_f32 || o.dtype == DType::F32;
      special = special || (o.dtype != DType::F32 && is_float(o.dtype));
      large = large || o.shape.elements() > 2000;
    }
    if (!has_f32 || special || large) continue;
    std::vector<Matrix> inputs;
    for (size_t i = 0; i < s.operands.size(); ++i) {
      graph::SampleOperand o = s.operands[i];
      const u32 seed = static_cast<u32>(17 * checked + i);
      inputs.push_back(o.dtype == DType::F32
                           ? Matrix::from_slice<f64>(e, o.shape, values_of(op, o, seed))
                           : integers(e, o, seed));
    }
    // Where the op refuses F64 there is nothing to compare with.
    const auto run = [&](const std::vector<Matrix>& x) {
      std::vector<graph::TensorRef> in;
      for (size_t i = 0; i < x.size(); ++i) {
        const bool constant = (op.detached_inputs >> i & 1) != 0;
        in.push_back(constant ? inputs[i].tensor() : x[i].tensor());
      }
      return Matrix(e.core().graph().record(op, s.attrs, in)[0]);
    };
    Matrix y;
    try {
      y = run(inputs);
    } catch (const Error&) {
      continue;
    }
    if ((y.dtype() != DType::F64 && y.dtype() != DType::F32) || op.detached) continue;
    // Differences of numbers that are not finite, or huge, say nothing.
    const std::vector<f64> elements = matrix::cast(y, DType::F64).read<f64>();
    if (!std::all_of(elements.begin(), elements.end(), [](f64 v) { return std::abs(v) < 1e4; })) {
      continue;
    }
    const auto result = ml::gradcheck(run, inputs, {.most_elements = 12});
    EXPECT_TRUE(result.ok) << op.name() << " with operands " << fmt::format("{}", inputs[0].shape())
                           << ": " << result.complaint;
    if (!result.ok) return;
    if (++checked == 12) break;
  }
}

std::vector<const OpDef*> every_op() {
  std::vector<const OpDef*> all = matrix::all_ops();
  const std::vector<const OpDef*> ml = ml::matrix::ml_ops();
  all.insert(all.end(), ml.begin(), ml.end());
  return all;
}

std::string test_name(const testing::TestParamInfo<const OpDef*>& tested) {
  return fmt::format("{}_{}", tested.index, tested.param->name());
}

INSTANTIATE_TEST_SUITE_P(Ops, OpGradients, testing::ValuesIn(every_op()), test_name);

}  // namespace
}  // namespace oa::test
