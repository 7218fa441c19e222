#include "apps/oa/lm/model_file.h"

#include "oa/core/error.h"

namespace oa::command {
namespace {

constexpr const char* kKind = "oa language model";

}  // namespace

std::string to_text(const LmFile& file) {
  nlohmann::json j;
  j["kind"] = kKind;
  j["model"] = file.model;
  j["train"] = file.train;
  j["progress"] = {{"step", file.progress.step},
                   {"seconds", file.progress.seconds},
                   {"planned_steps", file.progress.planned_steps},
                   {"best_validation", file.progress.best_validation},
                   {"best_step", file.progress.best_step},
                   {"loss_scale", file.progress.loss_scale.scale},
                   {"loss_scale_steps", file.progress.loss_scale.good_steps}};
  j["bpe"] = file.bpe;
  j["training"] = file.training;
  return j.dump();
}

LmFile read_lm_file(const std::filesystem::path& path) {
  const ml::CheckpointInfo info = ml::read_checkpoint_info(path);
  LmFile file;
  try {
    const nlohmann::json j = nlohmann::json::parse(info.extra);
    if (j.at("kind") != kKind) throw std::invalid_argument("another kind");
    j.at("model").get_to(file.model);
    j.at("train").get_to(file.train);
    const nlohmann::json& p = j.at("progress");
    p.at("step").get_to(file.progress.step);
    p.at("seconds").get_to(file.progress.seconds);
    p.at("planned_steps").get_to(file.progress.planned_steps);
    p.at("best_validation").get_to(file.progress.best_validation);
    p.at("best_step").get_to(file.progress.best_step);
    // Files of before there was a choice of precision have none.
    file.progress.loss_scale = {p.value("loss_scale", 0.0f), p.value("loss_scale_steps", 0)};
    j.at("bpe").get_to(file.bpe);
    j.at("training").get_to(file.training);
  } catch (const std::exception& e) {
    invalid("model", "{} is not a language model that `oa train lm` wrote ({})", path.string(),
            e.what());
  }
  check(file.model, file.train);
  return file;
}

}  // namespace oa::command
