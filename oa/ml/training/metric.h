// Metrics: numbers that a training collects step by step.
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "oa/ml/training/snapshot.h"

namespace oa::ml::training {

class TrainingMetric {
 public:
  virtual ~TrainingMetric() = default;
  virtual const std::string& name() const = 0;
  virtual void reset() = 0;  // at the start, and at every epoch's
  virtual void update_step(f64 loss, const TrainingSnapshot& snapshot) = 0;
  virtual f64 result() const = 0;  // NaN while there is nothing

  // What a training that goes on inside of an epoch must know again, as JSON text; empty: nothing.
  virtual std::string save_state() const { return {}; }
  // Takes over such a text. DataLoss when it is none of this metric's; then nothing has changed.
  virtual void load_state(std::string_view /*state*/) {}
};

enum class LossAggregation : u8 { Mean, Last };

class LossMetric final : public TrainingMetric {
 public:
  explicit LossMetric(std::string name = "loss",
                      LossAggregation aggregation = LossAggregation::Mean)
      : name_(std::move(name)), aggregation_(aggregation) {}

  const std::string& name() const override { return name_; }
  void reset() override;
  void update_step(f64 loss, const TrainingSnapshot& snapshot) override;
  f64 result() const override { return aggregation_ == LossAggregation::Mean ? mean() : last_; }
  std::string save_state() const override;
  void load_state(std::string_view state) override;

  u64 count() const { return count_; }
  f64 mean() const;
  f64 last() const { return last_; }

 private:
  std::string name_;
  LossAggregation aggregation_;
  u64 count_ = 0;
  f64 sum_ = 0;
  f64 last_ = std::numeric_limits<f64>::quiet_NaN();
};

struct ValidationResult {
  f64 loss = std::numeric_limits<f64>::quiet_NaN();
  u64 batches = 0;
  u64 samples = 0;
};

// The last value of a validation. A handle: copies share the value.
class ValidationMetric {
 public:
  explicit ValidationMetric(std::string name)
      : state_(std::make_shared<State>(State{std::move(name), {}, 0})) {}

  const std::string& name() const { return state_->name; }
  std::optional<f64> value() const { return state_->value; }
  f64 result() const { return state_->value.value_or(std::numeric_limits<f64>::quiet_NaN()); }
  u64 revision() const { return state_->revision; }  // grows with every new value

 private:
  friend class Validation;
  struct State {
    std::string name;
    std::optional<f64> value;
    u64 revision;
  };
  std::shared_ptr<State> state_;
};

}  // namespace oa::ml::training
