// Muon: momentum whose matrices are made nearly orthogonal before they are applied.
#pragma once

#include "oa/ml/module.h"
#include "oa/ml/optim/optimizer_base.h"

namespace oa::ml {

struct MuonOptions {
  f64 beta = 0.95;  // 0 <= beta < 1
  f64 weight_decay = 0.1;
  f64 epsilon = 1e-7;  // above 0
  u32 steps = 5;       // of Newton-Schulz; 0: every parameter takes the vector form
};

// m = beta m + (1 - beta) g, u = (1 - beta) g + beta m. Matrices: X = u / sqrt(sum u^2 + epsilon),
// lying (transposed if it stands), X = a X + (b A + c A^2) X with A = X X^T `steps` times with
// a 3.4445, b -4.7750, c 2.0315, and p = (1 - rate decay) p - 0.2 rate sqrt(max(rows, columns)) X.
// Other ranks: p = (1 - rate decay) p - rate u. Parameters are never handed to another optimizer:
// muon_split() tells which ones belong here. Matrices of one shape are updated together.
class Muon final : public OptimizerBase {
 public:
  Muon(std::vector<Parameter> parameters, f64 rate, const MuonOptions& options = {})
      : Muon(one_group(std::move(parameters)), rate, options) {}
  Muon(std::vector<ParameterGroup> groups, f64 rate, const MuonOptions& options = {});
  static Muon create(std::vector<Parameter> parameters, f64 rate) {
    return Muon(std::move(parameters), rate);
  }
  static Muon with_hyperparameters(std::vector<Parameter> parameters, f64 rate, f64 beta,
                                   f64 weight_decay, f64 epsilon, u32 steps) {
    return Muon(std::move(parameters), rate, {beta, weight_decay, epsilon, steps});
  }

  f64 beta() const { return options_.beta; }
  f64 epsilon() const { return options_.epsilon; }
  u32 newton_schulz_steps() const { return options_.steps; }

 protected:
  void update(std::span<const u32> live, const Matrix& guard) override;
  OptimizerState hyperparameters() const override;
  void check_hyperparameters(const OptimizerState& state) const override;
  void set_hyperparameters(const OptimizerState& state) override;

 private:
  bool is_matrix(u32 parameter) const;
  void update_matrices(std::span<const u32> same_shape, const std::vector<Matrix>& moments,
                       const Matrix& guard);
  MuonOptions options_;
  std::vector<Matrix> moments_;
};

// [n, rows, columns] with rows <= columns: each matrix nearly orthogonal after `steps` rounds.
Matrix newton_schulz(const Matrix& batch, f64 epsilon, u32 steps);

struct MuonSplit {
  std::vector<Parameter> matrices;  // for Muon
  std::vector<Parameter> others;    // for another optimizer
};

// The trainable parameters of a module tree. Muon's are those of rank 2 with no segment of their
// path equal to embed, wte, token_embed, byte_embed, head, lm_head, output, classifier or bias.
MuonSplit muon_split(const Module& module);

}  // namespace oa::ml
