// The state of a training as text, and what callbacks may ask of it.
#include <map>

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

// A metric or a callback that keeps a state, under a name of its own: equal names are numbered.
struct ItTraining::Stateful {
  const char* list;        // of the state's text: "metrics" or "callbacks"
  TrainingMetric* metric;  // null: a callback
  std::string key;
  std::function<std::string()> save;
  std::function<void(std::string_view)> load;
};

std::vector<ItTraining::Stateful> ItTraining::stateful() const {
  std::vector<Stateful> out;
  std::map<std::string, int> seen;
  const auto add = [&](TrainingMetric* metric, const std::string& key, auto* owner) {
    const char* list = metric != nullptr ? "metrics" : "callbacks";
    const int number = ++seen[list + ("/" + key)];
    out.push_back({list, metric, number == 1 ? key : fmt::format("{}#{}", key, number),
                   [owner] { return owner->save_state(); },
                   [owner](std::string_view text) { owner->load_state(text); }});
  };
  for (TrainingMetric* metric : metrics_) add(metric, metric->name(), metric);
  for (TrainingCallback* callback : callbacks_) {
    const std::string key = callback->state_key();
    if (!key.empty()) add(nullptr, key, callback);
  }
  return out;
}

std::string ItTraining::save_state() const {
  if (open_ && !at_boundary_) {
    fail(ErrorKind::FailedPrecondition, "save_state", "a step is open");
  }
  for (TrainingCallback* callback : callbacks_) callback->before_save();
  nlohmann::json state = {{"version", 1},
                          {"step", step_},
                          {"loss_count", loss_count_},
                          {"loss_sum", to_state(loss_sum_)},
                          {"epoch_loss_count", epoch_loss_count_},
                          {"epoch_loss_sum", to_state(epoch_loss_sum_)}};
  if (last_loss_) state["last_loss"] = to_state(*last_loss_);
  for (const char* list : {"metrics", "callbacks"}) state[list] = nlohmann::json::object();
  for (const Stateful& s : stateful()) {
    const std::string text = s.save();
    if (!text.empty()) state[s.list][s.key] = nlohmann::json::parse(text);
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
  nlohmann::json lists = {{"callbacks", state.at("callbacks")}};
  lists["metrics"] = state.has("metrics") ? state.at("metrics") : nlohmann::json::object();
  for (const char* list : {"metrics", "callbacks"}) {
    if (!lists[list].is_object()) state.wrong(list, "an object");
  }
  if (step != config().initial_step) {
    invalid(kOp, "step of the state, got {}, expected initial_step {}", step,
            config().initial_step);
  }
  const std::vector<Stateful> owners = stateful();
  std::vector<std::pair<const Stateful*, std::string>> before;
  try {
    for (const Stateful& s : owners) {
      const auto found = lists[s.list].find(s.key);
      if (found == lists[s.list].end()) continue;
      std::string old = s.save();
      s.load(found->dump());
      before.emplace_back(&s, std::move(old));
    }
  } catch (...) {
    for (const auto& [s, old] : before) s->load(old);
    throw;
  }
  restored_.clear();
  for (const auto& [s, old] : before) {
    if (s->metric != nullptr) restored_.push_back(s->metric);
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
