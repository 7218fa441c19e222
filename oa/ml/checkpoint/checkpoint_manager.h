// CheckpointManager: a folder of checkpoints of one model, the newest few and the best.
#pragma once

#include <functional>
#include <limits>
#include <optional>

#include "oa/ml/checkpoint/checkpoint.h"

namespace oa::ml {

struct CheckpointManagerConfig {
  std::filesystem::path directory = "var/model/dev";
  std::string model_name = "Module";
  std::string context;  // tells trainings of one model apart
  u64 max_keep = 5;     // files with steps; 0: all
  bool save_best = true;
  std::string metric_name = "loss";
  bool lower_is_better = true;
};

//   directory/Module/Module.oam                                  the best ("master")
//   directory/Module/checkpoint[_context]/Module[_context]_step40_loss1.25.oam
class CheckpointManager {
 public:
  // InvalidArgument: names other than [A-Za-z0-9_.-]+, "." or "..".
  static CheckpointManager create(const Engine& engine, CheckpointManagerConfig config);

  const CheckpointManagerConfig& config() const { return config_; }
  std::filesystem::path model_directory() const;
  std::filesystem::path incremental_directory() const;
  std::filesystem::path master_path() const;

  bool is_better(f64 metric) const;          // strictly
  f64 best_metric() const { return best_; }  // the worst infinity at the start
  const std::string& metric_name() const { return config_.metric_name; }
  // Text that every file keeps beside the model, asked for at each save.
  void set_extra(std::function<std::string()> extra) { extra_ = std::move(extra); }
  void set_architecture(std::string name) { architecture_ = std::move(name); }

  // Saves when the metric is the best so far or `force` is set, and returns whether it is the best;
  // then the master is written too (with save_best). InvalidArgument: a metric that is not finite
  // as F32, a step other than the optimizer's step_count().
  bool maybe_save(const Module& model, const CheckpointOptimizer& optimizer, u64 step, f64 metric,
                  bool force);
  // Saves without a look at the best; then the lowest steps beyond max_keep go, and what killed
  // saves of this model left.
  std::filesystem::path save_incremental(const Module& model, const CheckpointOptimizer& optimizer,
                                         u64 step, f64 metric,
                                         std::optional<std::string> metric_name = {});

  CheckpointInfo load_best_into(Module& model, CheckpointOptimizer& optimizer);
  // The file that this object saved last, else the one with the highest step in its name; returns
  // the step. FailedPrecondition when there is none; InvalidArgument when the file has another step
  // than its name.
  u64 load_latest_into(Module& model, CheckpointOptimizer& optimizer);
  // The same, and takes the best metric over from the master, if there is one. InvalidArgument when
  // that is about another metric.
  u64 resume_latest_into(Module& model, CheckpointOptimizer& optimizer);
  // What the file loaded last says, with its extra text.
  const CheckpointInfo& last_loaded() const { return last_loaded_; }
  // The file load_latest_into() would take, and its step.
  std::optional<std::pair<std::filesystem::path, u64>> latest() const;

 private:
  CheckpointManager(const Engine& engine, CheckpointManagerConfig config)
      : engine_(&engine),
        config_(std::move(config)),
        best_(config_.lower_is_better ? std::numeric_limits<f64>::infinity()
                                      : -std::numeric_limits<f64>::infinity()) {}
  std::string stem() const;
  void check(const CheckpointOptimizer& optimizer, u64 step, f64 metric) const;
  CheckpointInfo info(const CheckpointOptimizer& optimizer, f64 metric,
                      const std::string& metric_name) const;
  CheckpointInfo load(const std::filesystem::path& path, Module& model,
                      CheckpointOptimizer& optimizer);
  void rotate(const std::filesystem::path& keep) const;

  const Engine* engine_;
  CheckpointManagerConfig config_;
  f64 best_;
  std::optional<std::pair<std::filesystem::path, u64>> last_saved_;
  CheckpointInfo last_loaded_;
  std::function<std::string()> extra_;
  std::string architecture_ = "OaModule";
};

}  // namespace oa::ml
