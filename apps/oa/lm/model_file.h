// Model files of the command line: an `.oam` checkpoint whose extra bytes say what the model is.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "apps/oa/lm/model.h"
#include "oa/ml/checkpoint/checkpoint.h"
#include "oa/ml/optim/loss_scale.h"

namespace oa::command {

// What a run needs to go on exactly where it was.
struct LmProgress {
  i64 step = 0;           // completed
  f64 seconds = 0;        // of training, over all sessions
  i64 planned_steps = 0;  // 0 as long as nobody knows
  f64 best_validation = 0;
  i64 best_step = 0;                // 0: none yet
  ml::LossScale::State loss_scale;  // a scale of 0: there is none
};

struct LmFile {
  LmModelConfig model;
  LmTrainConfig train;
  LmProgress progress;
  std::string bpe;       // the text of a BPE vocabulary; empty for bytes
  std::string training;  // the state of the training loop and its callbacks
};

std::string to_text(const LmFile& file);
// InvalidArgument, naming the path, if the checkpoint is not of a language model.
LmFile read_lm_file(const std::filesystem::path& path);

}  // namespace oa::command
