// An exponential moving average of a module's weights, to evaluate with.
#pragma once

#include <vector>

#include "oa/ml/module.h"

namespace oa::ml {

// average = decay average + (1 - decay) weight at every update(); it starts as the weights. Covers
// all parameters of the module tree (F32), trainable or not; buffers are the module's own. One
// update of the whole module is a few dispatches.
class ExponentialMovingAverage {
 public:
  // 0 <= decay < 1 and at least one parameter, all F32; else InvalidArgument.
  explicit ExponentialMovingAverage(const Module& module, f64 decay = 0.999);
  explicit ExponentialMovingAverage(std::vector<Parameter> parameters, f64 decay = 0.999);
  ExponentialMovingAverage(const ExponentialMovingAverage&) = delete;
  ExponentialMovingAverage& operator=(const ExponentialMovingAverage&) = delete;

  // Records one update; once after every optimizer step. FailedPrecondition within a Scope.
  void update();

  // The module has the averages while this lives, and its own weights again at its end. Optimizers
  // refuse steps in between, replayed ones too: they would be lost.
  class Scope {
   public:
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend class ExponentialMovingAverage;
    explicit Scope(ExponentialMovingAverage& average);
    ExponentialMovingAverage& average_;
    std::vector<Matrix> weights_;
  };
  // FailedPrecondition within another Scope of this average.
  [[nodiscard]] Scope scope() { return Scope(*this); }

  f64 decay() const { return decay_; }
  // In the order of the module's parameters; to be saved, or read.
  const std::vector<Matrix>& averages() const { return averages_; }
  // Replaces the averages (equal number, shapes and engine; else InvalidArgument, before any
  // change).
  void restore(const std::vector<Matrix>& averages);

 private:
  std::vector<Parameter> parameters_;
  std::vector<Matrix> averages_;
  f64 decay_;
  bool shown_ = false;  // a Scope lives
};

}  // namespace oa::ml
