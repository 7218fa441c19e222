// Trains a language model in a run folder:
//   last.oam      where the run can go on, bit for bit
//   best.oam      the model with the least validation loss
//   metrics.csv   a row per step
//   loss.svg, loss.png   the curve
//   events        the same for TensorBoard
//   config.json   what the run is
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>

#include "apps/oa/lm/model_file.h"
#include "oa/ml/data/windows.h"
#include "oa/ml/optim/optimizer.h"
#include "oa/ml/optim/schedule.h"
#include "oa/ml/training/it_training.h"

namespace oa::command {

std::unique_ptr<ml::CheckpointOptimizer> make_optimizer(
    const LmTrainConfig& config, const std::vector<ml::Parameter>& parameters);

class LmTrainer {
 public:
  // A new run in a folder without one.
  static LmTrainer create(Engine& engine, const std::filesystem::path& folder,
                          const LmModelConfig& model, const LmTrainConfig& train);
  // The run in a folder, from its last checkpoint. Where `train` has another plan (steps, minutes,
  // epochs) that is the new one.
  static LmTrainer resume(Engine& engine, const std::filesystem::path& folder,
                          const LmTrainConfig& plan);

  // Runs until the plan is done, `stop` is set, or `most` steps were made (0: any number), then
  // saves. Returns the least validation loss of the run, or NaN without validation.
  f64 run(const std::atomic<bool>& stop, i64 most = 0);

  const LmFile& file() const { return file_; }
  const LanguageModel& model() const { return model_; }
  const ml::tokenizer::Tokenizer& tokenizer() const { return *tokenizer_; }
  bool done() const;

 private:
  LmTrainer(Engine& engine, std::filesystem::path folder, LmFile file);
  void open_data();
  class Saver;
  void write_batch(i64 step);
  ml::training::StepRecord record_step();
  ml::training::ValidationResult validate();
  void run_until(i64 end, const std::atomic<bool>& stop);
  void make_schedule();
  void plan_epochs(f64 epochs);
  void plan_from_time(f64 seconds_per_step);
  void save(const char* name);

  Engine& engine_;
  std::filesystem::path folder_;
  LmFile file_;
  std::unique_ptr<ml::tokenizer::Tokenizer> tokenizer_;
  LanguageModel model_;
  std::vector<ml::Parameter> parameters_;
  std::unique_ptr<ml::CheckpointOptimizer> optimizer_;
  ml::LrSchedulerRef schedule_;
  std::optional<ml::LossScale> loss_scale_;  // where products round to f16
  std::optional<ml::data::ShuffledWindows> windows_;
  std::optional<ml::data::SequentialWindows> validation_;
  u64 text_bytes_ = 0, token_count_ = 0;
  Matrix inputs_, targets_;  // of a batch
};

}  // namespace oa::command
