#include "oa/ml/optim/clip.h"

#include <cmath>
#include <set>

#include "oa/matrix/elementwise.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/optim/gradient_norm.h"
#include "oa/ml/optim/update_ops.h"

namespace oa::ml {
namespace {

constexpr std::string_view kOp = "clip_grad_norm";

// The joint norm, and the factor that scales every gradient.
struct JointNorm {
  Matrix norm, factors;
};

JointNorm joint_norm(std::span<const Matrix> gradients, f64 max_norm) {
  if (!(max_norm >= 0) || !std::isfinite(static_cast<f32>(max_norm))) {
    invalid(kOp, "bad max_norm, got {}, expected a finite number of 0 or more", max_norm);
  }
  if (gradients.empty()) invalid(kOp, "no gradients, got an empty list, expected one or more");
  std::vector<graph::TensorRef> operands;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Matrix& g = gradients[i];
    if (!g.valid()) invalid(kOp, "gradient {} is empty, expected a value", i);
    if (g.dtype() != DType::F32) {
      invalid(kOp, "gradient {} has the wrong dtype, got {}, expected f32", i, token(g.dtype()));
    }
    if (&g.tensor()->recorder() != &gradients[0].tensor()->recorder()) {
      invalid(kOp, "gradient {} belongs to another engine, expected gradients of one engine", i);
    }
    operands.push_back(g.tensor());
  }
  const std::vector<graph::TensorRef> norm = matrix::record_all<GradientNorm>(operands, {max_norm});
  return {Matrix(norm[0]), Matrix(norm[1])};
}

}  // namespace

Matrix clip_grad_norm(std::span<const Matrix> gradients, f64 max_norm) {
  std::set<const void*> seen;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].valid() && !seen.insert(gradients[i].tensor()->elements()).second) {
      invalid(kOp, "gradient {} has the elements of an earlier one, expected every gradient once",
              i);
    }
  }
  const NoGrad off;
  const JointNorm joint = joint_norm(gradients, max_norm);
  for (const Matrix& g : gradients) {
    if (g.num_elements() > 0) g.assign(matrix::record<ScaleGradient>({g, joint.factors}));
  }
  return joint.norm;
}

Matrix clip_grad_norm(std::span<const Parameter> parameters, f64 max_norm) {
  std::vector<Matrix> gradients;
  for (const Parameter& p : parameters) {
    if (p.gradient()) gradients.push_back(*p.gradient());
  }
  const NoGrad off;
  const JointNorm joint = joint_norm(gradients, max_norm);
  // Not in place: the gradients of a + b share their elements.
  for (const Parameter& p : parameters) {
    if (!p.gradient() || p.gradient()->num_elements() == 0) continue;
    p.set_gradient(matrix::record<ScaleGradient>({*p.gradient(), joint.factors}));
  }
  return joint.norm;
}

GradientAccumulation::GradientAccumulation(u32 micro_batches) : micro_batches_(micro_batches) {
  if (micro_batches == 0) {
    invalid("GradientAccumulation", "no micro-batches, got 0, expected 1 or more");
  }
}

Matrix GradientAccumulation::scale(const Matrix& loss) const {
  return micro_batches_ == 1 ? loss : matrix::scale(loss, 1.0 / micro_batches_);
}

bool GradientAccumulation::complete() {
  pending_ = (pending_ + 1) % micro_batches_;
  return pending_ == 0;
}

}  // namespace oa::ml
