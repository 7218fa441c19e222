#include "oa/ml/training/automatic_capture.h"

namespace oa::ml::training {
namespace {

constexpr size_t kMostForms = 4;      // sets of input shapes that have programs
constexpr u32 kMostRecordings = 2;    // in which a step may differ from the one before
constexpr u64 kPlace = u64{1} << 63;  // marks the place of an input, which is no serial

// While it lives, the engine notes what speaks against replaying the pending graph.
class Watching {
 public:
  Watching(EngineCore& core, CaptureWatch* watch) : core_(core) { core_.set_watch(watch); }
  ~Watching() { core_.set_watch(nullptr); }
  Watching(const Watching&) = delete;
  Watching& operator=(const Watching&) = delete;

 private:
  EngineCore& core_;
};

}  // namespace

AutomaticCapture::AutomaticCapture(Engine& engine, Optimizer& optimizer)
    : engine_(engine), optimizer_(optimizer) {}

AutomaticCapture::~AutomaticCapture() {
  if (inputs_open_) end_inputs();
}

void AutomaticCapture::begin_inputs() {
  frame_.count = 0;
  engine_.core().set_frame(&frame_);
  inputs_open_ = true;
}

void AutomaticCapture::end_inputs() {
  engine_.core().set_frame(nullptr);
  inputs_open_ = false;
}

TrainingProgram* AutomaticCapture::program() {
  return current_ && current_->program ? &*current_->program : nullptr;
}

AutomaticCapture::Form& AutomaticCapture::form_of_step() {
  std::vector<graph::Spec> inputs;
  for (size_t i = 0; i < frame_.count; ++i) inputs.push_back(frame_.inputs[i].tensor->spec());
  for (auto form = forms_.begin(); form != forms_.end(); ++form) {
    if (form->inputs != inputs) continue;
    forms_.splice(forms_.end(), forms_, form);  // the latest is the last to go
    return *form;
  }
  if (forms_.size() == kMostForms) forms_.pop_front();
  forms_.push_back({.inputs = std::move(inputs)});
  return forms_.back();
}

AutomaticCapture::Ran AutomaticCapture::step(const StepFn& record_step, bool timed) {
  if (recapture_) {
    current_ = nullptr;
    forms_.clear();
    recapture_ = false;
  }
  Form& form = form_of_step();
  current_ = &form;
  if (form.program && !form.program->stale().empty()) {
    form.program.reset();
    form.last = {};
    form.recordings = 0;
  }
  return form.program ? replay(form, timed) : record(form, record_step, timed);
}

void AutomaticCapture::fill_places(Form& form) {
  for (size_t i = 0; i < frame_.count; ++i) {
    const InputFrame::Input& input = frame_.inputs[i];
    if (input.tensor->storage() == form.places[i]->storage()) continue;
    engine_.core().overwrite("step", form.places[i], input.bytes.data(), input.bytes.size());
  }
}

AutomaticCapture::Ran AutomaticCapture::replay(Form& form, bool timed) {
  fill_places(form);
  const Event event = timed ? form.program->replay_timed() : form.program->replay();
  return {form.program->loss(), timed ? std::optional(event) : std::nullopt};
}

AutomaticCapture::Ran AutomaticCapture::run_pending(const Matrix& loss, bool timed) {
  if (timed && !engine_.core().graph().empty()) return {loss, engine_.checkpoint_timed()};
  engine_.flush();
  return {loss, std::nullopt};
}

void AutomaticCapture::refuse(Form& form, std::string why) {
  form.refused = true;
  form.last = {};
  ++fallbacks_;
  last_fallback_ = std::move(why);
}

AutomaticCapture::Ran AutomaticCapture::record(Form& form, const StepFn& record_step, bool timed) {
  EngineCore& core = engine_.core();
  core.flush();
  optimizer_.zero_grad();
  CaptureWatch watch;
  StepRecord record;
  {
    const Watching watching(core, form.refused ? nullptr : &watch);
    record = record_step();
    record_update(optimizer_, record);
  }
  if (form.refused) return run_pending(record.loss, timed);
  ++form.recordings;
  std::string why = difference(form, watch);
  if (!why.empty()) {
    if (form.recordings > kMostRecordings) refuse(form, std::move(why));
    return run_pending(record.loss, timed);
  }
  std::unique_ptr<graph::Graph> batch = core.take_pending();
  try {
    form.program = TrainingProgram::from_batch(engine_, optimizer_, batch, record.loss, timed);
  } catch (const Error& e) {
    if (!batch) throw;  // it ran
    refuse(form, e.what());
    core.run_batch(std::move(batch), timed);
    return {record.loss, timed ? std::optional(core.last_event()) : std::nullopt};
  }
  form.last = {};
  form.places.clear();
  for (size_t i = 0; i < frame_.count; ++i) form.places.push_back(frame_.inputs[i].tensor);
  return {record.loss, timed ? std::optional(form.program->last_event()) : std::nullopt};
}

std::string AutomaticCapture::difference(Form& form, const CaptureWatch& watch) {
  if (!watch.refusal.empty()) {
    form.last = {};
    return watch.refusal;
  }
  const graph::Graph& graph = engine_.core().graph();
  const auto name_of = [&](const graph::Storage& storage) {
    for (size_t i = 0; i < frame_.count; ++i) {
      if (frame_.inputs[i].tensor->storage().get() == &storage) return kPlace | i;
    }
    return storage.serial();
  };
  graph::Repetition now(graph, name_of);
  if (now.empty()) return "step: nothing was recorded, expected operations";
  const graph::Repetition before = std::exchange(form.last, now);
  if (before.empty()) return "step: the first of its kind";
  try {
    graph::check_replayable(graph);
  } catch (const Error& e) {
    return e.what();
  }
  if (const auto upload = uploaded_operand(graph, watch)) {
    return fmt::format("{}: {}", upload->op, upload->message);
  }
  const auto other = before.difference(now, graph);
  return other ? fmt::format("{}: {}", other->op, other->message) : std::string();
}

}  // namespace oa::ml::training
