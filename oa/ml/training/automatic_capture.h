// AutomaticCapture: turns the steps of a loop into programs where they repeat themselves.
//
// A step whose inputs have new shapes is recorded and run; if the next one records the same work on
// the same values, it becomes a program, and later ones replay that without recording anything.
// Steps that cannot become one are recorded each time, as without captures.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string>

#include "oa/engine/engine_core.h"
#include "oa/graph/repetition.h"
#include "oa/ml/training/training_program.h"

namespace oa::ml::training {

class AutomaticCapture {
 public:
  AutomaticCapture(Engine& engine, Optimizer& optimizer);
  ~AutomaticCapture();

  // Around the making of one step's inputs: values that the host makes in between take, in replays,
  // the places of those that the captured step had, by their order.
  void begin_inputs();
  void end_inputs();
  bool inputs_are_open() const { return inputs_open_; }

  struct Ran {
    Matrix loss;
    std::optional<Event> timed;
  };
  // One whole step: replays, or calls `record` and records the optimizer's update.
  Ran step(const StepFn& record, bool timed);

  // From the next step on everything is recorded anew, also what could not be captured.
  void request_recapture() { recapture_ = true; }

  TrainingProgram* program();  // of the latest step; null if it was recorded
  u64 fallbacks() const { return fallbacks_; }
  const std::optional<std::string>& last_fallback() const { return last_fallback_; }

 private:
  // Steps whose inputs have the same shapes.
  struct Form {
    std::vector<graph::Spec> inputs;
    std::optional<TrainingProgram> program;
    std::vector<graph::TensorRef> places;  // of the inputs of the captured step
    graph::Repetition last;                // the latest recording
    u32 recordings = 0;
    bool refused = false;
  };
  Form& form_of_step();
  void fill_places(Form& form);
  Ran replay(Form& form, bool timed);
  Ran record(Form& form, const StepFn& record, bool timed);
  // Why the pending graph, just recorded, does not repeat the form's last step; empty if it does.
  std::string difference(Form& form, const CaptureWatch& watch);
  Ran run_pending(const Matrix& loss, bool timed);
  void refuse(Form& form, std::string why);

  Engine& engine_;
  Optimizer& optimizer_;
  InputFrame frame_;
  bool inputs_open_ = false;
  bool recapture_ = false;
  std::list<Form> forms_;
  Form* current_ = nullptr;
  u64 fallbacks_ = 0;
  std::optional<std::string> last_fallback_;
};

}  // namespace oa::ml::training
