#include "oa/ml/optim/loss_scale.h"

#include <cmath>
#include <limits>

#include "oa/matrix/create.h"
#include "oa/matrix/elementwise.h"
#include "oa/ml/autograd/gradient_tape.h"

namespace oa::ml {
namespace {

constexpr std::string_view kOp = "LossScale";

}  // namespace

LossScale::LossScale(const Engine& engine, const LossScaleOptions& options) : options_(options) {
  const auto need = [](bool holds, std::string_view name, f64 got, std::string_view expected) {
    if (!holds) invalid(kOp, "bad {}, got {}, expected {}", name, got, expected);
  };
  need(options.initial > 0 && std::isfinite(static_cast<f32>(options.initial)), "initial scale",
       options.initial, "a positive finite number");
  need(options.growth > 1 && std::isfinite(options.growth), "growth", options.growth,
       "a finite number greater than 1");
  need(options.backoff > 0 && options.backoff < 1, "backoff", options.backoff,
       "a number between 0 and 1");
  need(options.interval >= 1, "interval", static_cast<f64>(options.interval), "1 or more");
  const f32 scale = static_cast<f32>(options.initial);
  const i32 none = 0;
  scale_ = Matrix::from_slice<f32>(engine, {1}, std::span(&scale, 1));
  good_steps_ = Matrix::from_slice<i32>(engine, {1}, std::span(&none, 1));
}

Matrix LossScale::scaled(const Matrix& loss) const {
  if (!loss.valid() || loss.dtype() != DType::F32 || loss.num_elements() != 1) {
    invalid(kOp, "bad loss, got {}, expected f32 with one element",
            loss.valid() ? fmt::format("{} {}", token(loss.dtype()), loss.shape()) : "nothing");
  }
  return loss * scale_.reshape(loss.shape());
}

void LossScale::unscale(std::span<const Parameter> parameters) const {
  const NoGrad off;
  const Matrix inverse = matrix::reciprocal(scale_);
  // Not in place: the gradients of a + b share their elements.
  for (const Parameter& p : parameters) {
    if (!p.gradient() || p.gradient()->num_elements() == 0) continue;
    p.set_gradient(*p.gradient() * inverse);
  }
}

void LossScale::update(const Matrix& norm) {
  if (!norm.valid() || norm.dtype() != DType::F32 || norm.num_elements() != 1) {
    invalid(kOp, "bad norm, got {}, expected f32 with one element",
            norm.valid() ? fmt::format("{} {}", token(norm.dtype()), norm.shape()) : "nothing");
  }
  using matrix::full_like;
  const NoGrad off;
  constexpr f64 kLargest = std::numeric_limits<f32>::max();
  const Matrix n = matrix::abs(norm.reshape({1}));
  const Matrix finite = matrix::less_equal(n, full_like(n, kLargest));  // NaN is not
  const Matrix zero = full_like(good_steps_, 0);
  const Matrix good = matrix::where(finite, good_steps_ + full_like(good_steps_, 1), zero);
  const Matrix grows = matrix::less_equal(full_like(good, options_.interval), good);
  const Matrix larger = scale_ * options_.growth;
  const Matrix holds = matrix::less_equal(larger, full_like(larger, kLargest));
  const Matrix grown = matrix::where(grows, matrix::where(holds, larger, scale_), scale_);
  const Matrix less = scale_ * options_.backoff;
  constexpr f64 kSmallest = std::numeric_limits<f32>::min();
  const Matrix smaller = matrix::where(matrix::less_equal(full_like(less, kSmallest), less), less,
                                       full_like(less, kSmallest));
  const Matrix next = matrix::where(finite, grown, smaller);
  const Matrix counted = matrix::where(grows, zero, good);
  scale_.assign(next);
  good_steps_.assign(counted);
}

LossScale::State LossScale::state() const {
  return {scale_.read_f32()[0], good_steps_.read<i32>()[0]};
}

void LossScale::restore(const State& state) {
  if (!(state.scale > 0) || !std::isfinite(state.scale) || state.good_steps < 0) {
    invalid(kOp, "bad state, got scale {} and {} steps, expected a positive number and 0 or more",
            state.scale, state.good_steps);
  }
  scale_.write<f32>(std::span(&state.scale, 1));
  good_steps_.write<i32>(std::span(&state.good_steps, 1));
}

}  // namespace oa::ml
