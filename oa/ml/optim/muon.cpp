#include "oa/ml/optim/muon.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "oa/matrix/elementwise.h"
#include "oa/matrix/matmul.h"
#include "oa/matrix/movement.h"
#include "oa/matrix/reduce.h"
#include "oa/ml/optim/update_ops.h"

namespace oa::ml {
namespace {

constexpr size_t kMostTogether = 16;  // matrices in one batch of products

bool is_outside(const std::string& path) {
  constexpr std::string_view kOutside[] = {"embed",   "wte",    "token_embed", "byte_embed", "head",
                                           "lm_head", "output", "classifier",  "bias"};
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string_view segment = std::string_view(path).substr(begin, end - begin);
    if (std::find(std::begin(kOutside), std::end(kOutside), segment) != std::end(kOutside)) {
      return true;
    }
    begin = end + 1;
  }
  return false;
}

}  // namespace

MuonSplit muon_split(const Module& module) {
  MuonSplit split;
  for (const NamedParameter& p : module.all_named_parameters()) {
    if (!p.parameter.requires_grad()) continue;
    const bool here = p.parameter.data().rank() == 2 && !is_outside(p.path);
    (here ? split.matrices : split.others).push_back(p.parameter);
  }
  return split;
}

Matrix newton_schulz(const Matrix& batch, f64 epsilon, u32 steps) {
  constexpr f64 kA = 3.4445, kB = -4.7750, kC = 2.0315;
  const Matrix squares = matrix::sum(matrix::square(batch), Dims{1, 2}, true);
  Matrix x = batch / matrix::sqrt(squares + epsilon);
  for (u32 i = 0; i < steps; ++i) {
    const Matrix a = matrix::mat_mul_nt(x, x);
    const Matrix b = a * kB + matrix::mat_mul(a, a) * kC;
    x = x * kA + matrix::mat_mul(b, x);
  }
  return x;
}

Muon::Muon(std::vector<ParameterGroup> groups, f64 rate, const MuonOptions& options)
    : OptimizerBase("Muon", std::move(groups), rate, options.weight_decay), options_(options) {
  need_fraction(kind_, "beta", options.beta);
  need_positive(kind_, "epsilon", options.epsilon);
  moments_ = make_moments();
  hold_moments(&moments_, nullptr);
}

bool Muon::is_matrix(u32 parameter) const {
  const Matrix& p = parameters_[parameter].data();
  return options_.steps > 0 && p.rank() == 2 && p.num_elements() > 0;
}

void Muon::update(std::span<const u32> live, const Matrix& guard) {
  const f64 keep = options_.beta, add = 1 - options_.beta;
  const graph::AttrsPtr moment = graph::make_attrs<MomentUpdate>({keep, add});
  std::vector<Matrix> next(parameters_.size());
  std::map<std::pair<i64, i64>, std::vector<u32>> by_shape;
  for (const u32 i : live) {
    next[i] = record(graph::op_def<MomentUpdate>(), moment, {moments_[i], gradient(i), guard});
    const Shape& shape = parameters_[i].data().shape();
    if (is_matrix(i)) by_shape[{shape[0], shape[1]}].push_back(i);
  }
  for (const u32 i : live) {
    if (is_matrix(i)) continue;
    const Group& g = groups_[group_of_[i]];
    const Matrix& p = parameters_[i].data();
    const graph::AttrsPtr attrs =
        graph::make_attrs<MuonVectorUpdate>({g.rate_scale, decay_of(g), keep, add});
    p.assign(record(graph::op_def<MuonVectorUpdate>(), attrs,
                    {p, next[i], gradient(i), guard, rates_, step_}));
  }
  for (const auto& [shape, all] : by_shape) {
    for (size_t begin = 0; begin < all.size(); begin += kMostTogether) {
      const size_t count = std::min(kMostTogether, all.size() - begin);
      update_matrices(std::span(all).subspan(begin, count), next, guard);
    }
  }
  for (const u32 i : live) moments_[i].assign(next[i]);
}

void Muon::update_matrices(std::span<const u32> same_shape, const std::vector<Matrix>& moments,
                           const Matrix& guard) {
  std::vector<Matrix> list;
  for (const u32 i : same_shape) {
    list.push_back((gradient(i) * (1 - options_.beta) + moments[i] * options_.beta).unsqueeze(0));
  }
  Matrix u = list.size() == 1 ? list[0] : matrix::concat(list, 0);
  const i64 rows = u.shape()[1], columns = u.shape()[2];
  if (rows > columns) u = u.transpose(1, 2);
  u = newton_schulz(u, options_.epsilon, options_.steps);
  if (rows > columns) u = u.transpose(1, 2);
  const Matrix flat = u.reshape({-1});
  const f64 gain = 0.2 * std::sqrt(static_cast<f64>(std::max(rows, columns)));
  for (size_t k = 0; k < same_shape.size(); ++k) {
    const Group& g = groups_[group_of_[same_shape[k]]];
    const Matrix& p = parameters_[same_shape[k]].data();
    const graph::AttrsPtr attrs = graph::make_attrs<MuonMatrixUpdate>(
        {g.rate_scale, decay_of(g), gain, static_cast<f64>(static_cast<i64>(k) * rows * columns)});
    p.assign(record(graph::op_def<MuonMatrixUpdate>(), attrs, {p, flat, guard, rates_, step_}));
  }
}

OptimizerState Muon::hyperparameters() const {
  return {.beta1 = static_cast<f32>(options_.beta), .epsilon = static_cast<f32>(options_.epsilon)};
}

void Muon::check_hyperparameters(const OptimizerState& state) const {
  need_fraction(kind_, "beta in the state", static_cast<f64>(state.beta1));
  need_positive(kind_, "epsilon in the state", static_cast<f64>(state.epsilon));
}

void Muon::set_hyperparameters(const OptimizerState& state) {
  options_.beta = restored(state.beta1, options_.beta);
  options_.epsilon = restored(state.epsilon, options_.epsilon);
}

}  // namespace oa::ml
