#include "oa/ml/checkpoint/checkpoint_manager.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "oa/core/error.h"
#include "oa/core/file.h"

namespace oa::ml {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOp = "CheckpointManager";

void check_name(std::string_view what, const std::string& name) {
  const bool plain = std::ranges::all_of(name, [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
  });
  if (name.empty() || !plain || name == "." || name == "..") {
    invalid(kOp, "{}, got \"{}\", expected letters, digits and _ . -, but not \".\" or \"..\"",
            what, name);
  }
}

// The digits after the last "_step" of a file name, up to the next '_'.
std::optional<u64> step_of(const std::string& file, std::string_view stem) {
  constexpr std::string_view kStep = "_step", kEnd = ".oam";
  if (!file.ends_with(kEnd) || !file.starts_with(stem)) return std::nullopt;
  const size_t at = file.rfind(kStep);
  if (at == std::string::npos || at < stem.size()) return std::nullopt;
  const char* begin = file.data() + at + kStep.size();
  const char* end = file.data() + file.size() - kEnd.size();
  u64 step = 0;
  const auto [stop, error] = std::from_chars(begin, end, step);
  if (error != std::errc() || (stop != end && *stop != '_')) return std::nullopt;
  return step;
}

struct Saved {
  u64 step;
  fs::path path;
};

// The checkpoints in a folder, the lowest step first.
std::vector<Saved> list(const fs::path& folder, const std::string& stem) {
  std::vector<Saved> out;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::optional<u64> step = step_of(it->path().filename().string(), stem);
    if (step) out.push_back({*step, it->path()});
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    fail(ErrorKind::Io, kOp, "cannot list {}: {}", folder.string(), error.message());
  }
  std::ranges::sort(out, [](const Saved& a, const Saved& b) {
    return std::tie(a.step, a.path) < std::tie(b.step, b.path);
  });
  return out;
}

}  // namespace

CheckpointManager CheckpointManager::create(const Engine& engine, CheckpointManagerConfig config) {
  check_name("model_name", config.model_name);
  check_name("metric_name", config.metric_name);
  if (!config.context.empty()) check_name("context", config.context);
  return {engine, std::move(config)};
}

std::string CheckpointManager::stem() const {
  return config_.context.empty() ? config_.model_name : config_.model_name + "_" + config_.context;
}

fs::path CheckpointManager::model_directory() const {
  return config_.directory / config_.model_name;
}

fs::path CheckpointManager::incremental_directory() const {
  return model_directory() /
         (config_.context.empty() ? "checkpoint" : "checkpoint_" + config_.context);
}

fs::path CheckpointManager::master_path() const {
  return model_directory() / (config_.model_name + ".oam");
}

bool CheckpointManager::is_better(f64 metric) const {
  return config_.lower_is_better ? metric < best_ : metric > best_;
}

void CheckpointManager::check(const CheckpointOptimizer& optimizer, u64 step, f64 metric) const {
  if (!std::isfinite(static_cast<f32>(metric))) {
    invalid(kOp, "metric, got {}, expected a number that is finite as f32", metric);
  }
  if (optimizer.step_count() != step) {
    invalid(kOp, "step, got {}, expected the optimizer's {}", step, optimizer.step_count());
  }
}

CheckpointInfo CheckpointManager::info(const CheckpointOptimizer& optimizer, f64 metric,
                                       const std::string& metric_name) const {
  return {.architecture = architecture_,
          .extra = extra_ ? extra_() : std::string(),
          .step = static_cast<i64>(optimizer.step_count()),
          .learning_rate = static_cast<f32>(optimizer.learning_rate()),
          .best_metric = static_cast<f32>(metric),
          .lower_is_better = config_.lower_is_better,
          .metric_name = metric_name};
}

bool CheckpointManager::maybe_save(const Module& model, const CheckpointOptimizer& optimizer,
                                   u64 step, f64 metric, bool force) {
  check(optimizer, step, metric);
  const bool improved = is_better(metric);
  if (!improved && !force) return false;
  save_incremental(model, optimizer, step, metric);
  if (!improved) return false;
  if (config_.save_best) {
    save_checkpoint(master_path(), model, optimizer, info(optimizer, metric, config_.metric_name));
  }
  best_ = metric;
  return true;
}

fs::path CheckpointManager::save_incremental(const Module& model,
                                             const CheckpointOptimizer& optimizer, u64 step,
                                             f64 metric, std::optional<std::string> metric_name) {
  check(optimizer, step, metric);
  const std::string name = metric_name.value_or(config_.metric_name);
  check_name("metric_name", name);
  const fs::path path =
      incremental_directory() / fmt::format("{}_step{}_{}{:.2f}.oam", stem(), step, name, metric);
  save_checkpoint(path, model, optimizer, info(optimizer, metric, name));
  last_saved_ = {path, step};
  remove_abandoned(incremental_directory(), stem() + "_step");
  remove_abandoned(model_directory(), master_path().filename().string());
  rotate(path);
  return path;
}

void CheckpointManager::rotate(const fs::path& keep) const {
  if (config_.max_keep == 0) return;
  std::vector<Saved> files = list(incremental_directory(), stem());
  std::erase_if(files, [&](const Saved& s) { return s.path == keep; });
  for (size_t i = 0; i + config_.max_keep <= files.size(); ++i) {
    std::error_code error;
    fs::remove(files[i].path, error);
    if (error) {
      fail(ErrorKind::Io, kOp, "cannot remove {}: {}", files[i].path.string(), error.message());
    }
  }
}

CheckpointInfo CheckpointManager::load(const fs::path& path, Module& model,
                                       CheckpointOptimizer& optimizer) {
  last_loaded_ = load_checkpoint(*engine_, path, model, optimizer);
  // Steps that the device skipped count for the optimizer's user, but not in its state.
  const u64 step = static_cast<u64>(last_loaded_.step);
  if (step > optimizer.step_count()) optimizer.count_replays(step - optimizer.step_count());
  return last_loaded_;
}

CheckpointInfo CheckpointManager::load_best_into(Module& model, CheckpointOptimizer& optimizer) {
  return load(master_path(), model, optimizer);
}

std::optional<std::pair<fs::path, u64>> CheckpointManager::latest() const {
  if (last_saved_) return last_saved_;
  const std::vector<Saved> files = list(incremental_directory(), stem());
  if (files.empty()) return std::nullopt;
  return std::pair(files.back().path, files.back().step);
}

u64 CheckpointManager::load_latest_into(Module& model, CheckpointOptimizer& optimizer) {
  const auto found = latest();
  if (!found) {
    fail(ErrorKind::FailedPrecondition, kOp, "no checkpoint in {}",
         incremental_directory().string());
  }
  const i64 step = read_checkpoint_info(found->first).step;
  if (step != static_cast<i64>(found->second)) {
    invalid(kOp, "step of {}, got {}, expected {}", found->first.string(), step, found->second);
  }
  load(found->first, model, optimizer);
  return found->second;
}

u64 CheckpointManager::resume_latest_into(Module& model, CheckpointOptimizer& optimizer) {
  std::optional<f64> best;
  if (fs::exists(master_path())) {
    const CheckpointInfo progress = read_checkpoint_info(master_path());
    if (progress.metric_name != config_.metric_name ||
        progress.lower_is_better != config_.lower_is_better ||
        !std::isfinite(progress.best_metric)) {
      invalid(kOp, "best metric of {}, got {} of \"{}\" where {} is better, expected \"{}\", {}",
              master_path().string(), progress.best_metric, progress.metric_name,
              progress.lower_is_better ? "lower" : "higher", config_.metric_name,
              config_.lower_is_better ? "lower" : "higher");
    }
    best = static_cast<f64>(progress.best_metric);
  }
  const u64 step = load_latest_into(model, optimizer);
  if (best) best_ = *best;
  return step;
}

}  // namespace oa::ml
