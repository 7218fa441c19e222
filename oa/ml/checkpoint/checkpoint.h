// Saving a model with its optimizer to an `.oam` file, and bringing both back bit for bit.
//
// Weights are the parameters in traversal order under their dotted paths; State holds the
// persistent buffers, then the u32 states. Loading checks everything first: a file that does not
// fit changes nothing.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "oa/core/file.h"
#include "oa/ml/module.h"
#include "oa/ml/optim/optimizer.h"

namespace oa::ml {

// What a checkpoint says besides weights and moments.
struct CheckpointInfo {
  std::string architecture = "OaModule";  // at most 31 bytes
  std::string extra;                      // the application's own, e.g. JSON
  i64 step = 0;                           // completed optimizer steps
  f32 learning_rate = 0;
  f32 best_metric = 0;
  bool lower_is_better = true;
  std::string metric_name = "loss";  // at most 31 bytes
};

// Host boundary. Replaces the file in one step that survives a kill and a full disk.
//
// InvalidArgument: the optimizer's parameters are not the model's, in its order; a name of more
// than 127 bytes, a rank above 8. FailedPrecondition: something in the tree is reached twice. Io.
void save_checkpoint(const std::filesystem::path& path, const Module& model,
                     const CheckpointOptimizer& optimizer, const CheckpointInfo& info = {},
                     Durability durability = Durability::Disk);

// CheckpointCorrupt: the file is damaged. InvalidArgument: it is whole but does not fit model and
// optimizer (names, order, shapes, dtypes, optimizer kind, lengths of moments), or the model
// belongs to another engine. FailedPrecondition: averages stand in place of the parameters (see
// ExponentialMovingAverage::scope). Io. Nothing changes then. Gradients are dropped.
CheckpointInfo load_checkpoint(const Engine& engine, const std::filesystem::path& path,
                               Module& model, CheckpointOptimizer& optimizer);

// The model only; the file may have no optimizer, and its weights may be quantised.
CheckpointInfo load_model(const Engine& engine, const std::filesystem::path& path, Module& model);

// What a file says, without reading its weights into a model.
CheckpointInfo read_checkpoint_info(const std::filesystem::path& path);

}  // namespace oa::ml
