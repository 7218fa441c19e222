// The state of a training as text, and what callbacks may ask of it.
#include "oa/ml/training/it_training.h"
#include "oa/ml/training/state_text.h"

namespace oa::ml::training {
namespace {

constexpr std::string_view kOp = "load_state";

struct Sums {
  u64 loss_count, epoch_loss_count;
  f64 loss_sum, epoch_loss_sum;
  std::optional<f64> last_loss;
};

}  // namespace

// Callbacks that keep a state, each under its own name; equal names are numbered.
std::vector<std::pair<std::string, TrainingCallback*>> ItTraining::stateful_callbacks() const {
  std::vector<std::pair<std::string, TrainingCallback*>> out;
  std::map<std::string, int> seen;
  for (TrainingCallback* callback : callbacks_) {
    const std::string key = callback->state_key();
    if (key.empty()) continue;
    const int number = ++seen[key];
    out.emplace_back(number == 1 ? key : fmt::format("{}#{}", key, number), callback);
  }
  return out;
}

std::string ItTraining::save_state() const {
  if (open_ && !at_boundary_) {
    fail(ErrorKind::FailedPrecondition, "save_state", "a step is open");
  }
  nlohmann::json state = {{"version", 1},
                          {"step", step_},
                          {"loss_count", loss_count_},
                          {"loss_sum", to_state(loss_sum_)},
                          {"epoch_loss_count", epoch_loss_count_},
                          {"epoch_loss_sum", to_state(epoch_loss_sum_)}};
  if (last_loss_) state["last_loss"] = to_state(*last_loss_);
  nlohmann::json& callbacks = state["callbacks"] = nlohmann::json::object();
  for (const auto& [key, callback] : stateful_callbacks()) {
    const std::string text = callback->save_state();
    if (!text.empty()) callbacks[key] = nlohmann::json::parse(text);
  }
  return state.dump();
}

void ItTraining::load_state(std::string_view text) {
  need_unstarted(kOp);
  const StateReader state(kOp, text);
  if (state.natural("version") != 1) state.wrong("version", "1");
  const u64 step = state.natural("step");
  const Sums sums = {
      state.natural("loss_count"), state.natural("epoch_loss_count"), state.number("loss_sum"),
      state.number("epoch_loss_sum"),
      state.has("last_loss") ? std::optional(state.number("last_loss")) : std::nullopt};
  const nlohmann::json& callbacks = state.at("callbacks");
  if (!callbacks.is_object()) state.wrong("callbacks", "an object");
  if (step != config().initial_step) {
    invalid(kOp, "step of the state, got {}, expected initial_step {}", step,
            config().initial_step);
  }
  std::vector<std::pair<TrainingCallback*, std::string>> before;
  try {
    for (const auto& [key, callback] : stateful_callbacks()) {
      const auto found = callbacks.find(key);
      if (found == callbacks.end()) continue;
      std::string old = callback->save_state();
      callback->load_state(found->dump());
      before.emplace_back(callback, std::move(old));
    }
  } catch (...) {
    for (const auto& [callback, old] : before) callback->load_state(old);
    throw;
  }
  loss_count_ = sums.loss_count;
  loss_sum_ = sums.loss_sum;
  epoch_loss_count_ = sums.epoch_loss_count;
  epoch_loss_sum_ = sums.epoch_loss_sum;
  last_loss_ = sums.last_loss;
}

const ItTrainingConfig& TrainingCallbackContext::config() const { return training_.config(); }

Optimizer& TrainingCallbackContext::optimizer() const { return training_.optimizer(); }

CheckpointOptimizer& TrainingCallbackContext::checkpoint_optimizer() const {
  if (training_.checkpointable_ == nullptr) {
    fail(ErrorKind::FailedPrecondition, "checkpoint_optimizer",
         "the training was made by create_eager, which gives no access to checkpoints");
  }
  return *training_.checkpointable_;
}

void TrainingCallbackContext::exclude_wall_time(f64 seconds) const {
  training_.exclude_wall_time(seconds);
}

std::string TrainingCallbackContext::training_state() const { return training_.save_state(); }

}  // namespace oa::ml::training
