#include "oa/ml/optim/optimizer_base.h"

#include <cmath>
#include <limits>
#include <set>

#include "oa/engine/engine_core.h"
#include "oa/matrix/create.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/optim/update_ops.h"
#include "oa/ml/parameter_state.h"

namespace oa::ml {

void need_rate(std::string_view op, std::string_view what, f64 x) {
  if (!(x >= 0) || !std::isfinite(static_cast<f32>(x))) {
    invalid(op, "bad {}, got {}, expected a finite number of 0 or more", what, x);
  }
}

void need_fraction(std::string_view op, std::string_view what, f64 x) {
  if (!(x >= 0 && static_cast<f32>(x) < 1)) {
    invalid(op, "bad {}, got {}, expected 0 or more and less than 1", what, x);
  }
}

void need_positive(std::string_view op, std::string_view what, f64 x) {
  if (!std::isnormal(static_cast<f32>(x)) || !(x > 0)) {
    invalid(op, "bad {}, got {}, expected a positive number", what, x);
  }
}

OptimizerBase::OptimizerBase(std::string_view kind, std::vector<ParameterGroup> groups, f64 rate,
                             f64 weight_decay)
    : kind_(kind), rate_value_(rate), weight_decay_(weight_decay) {
  need_rate(kind, "learning rate", rate);
  need_rate(kind, "weight decay", weight_decay);
  std::set<const graph::Tensor*> seen;
  for (ParameterGroup& group : groups) {
    need_rate(kind, "rate scale", group.rate_scale);
    if (group.weight_decay) need_rate(kind, "weight decay", *group.weight_decay);
    for (Parameter& p : group.parameters) {
      const size_t i = parameters_.size();
      if (!p.valid()) invalid(kind, "parameter {} is empty, expected one with elements", i);
      if (p.data().dtype() != DType::F32) {
        invalid(kind, "parameter \"{}\" has the wrong dtype, got {}, expected f32", p.name(),
                token(p.data().dtype()));
      }
      if (!seen.insert(p.data().tensor().get()).second) {
        invalid(kind, "parameter \"{}\" is listed twice, expected every parameter once", p.name());
      }
      if (i > 0 && &p.data().tensor()->recorder() != &parameters_[0].data().tensor()->recorder()) {
        invalid(kind,
                "parameter \"{}\" belongs to another engine, expected parameters of one engine",
                p.name());
      }
      group_of_.push_back(static_cast<u32>(groups_.size()));
      parameters_.push_back(std::move(p));
    }
    groups_.push_back({group.rate_scale, group.weight_decay});
  }
  if (parameters_.empty()) invalid(kind, "no parameters, got an empty list, expected one or more");
  EngineCore& engine = core();
  engine.check_open(kind);
  if (engine.capturing()) {
    fail(ErrorKind::FailedPrecondition, kind, "made during a capture, expected it to exist before");
  }
  engine.flush();  // parameters that are computed yet get memory of their own
  const std::vector<f32> rates(kRates, static_cast<f32>(rate));
  const f32 zero = 0;
  const u32 none[2] = {};
  rates_ = Matrix(engine.upload(kind, {DType::F32, {static_cast<i64>(kRates)}}, rates.data()));
  always_ = Matrix(engine.upload(kind, {DType::F32, {1}}, &zero));
  step_ = Matrix(engine.upload(kind, {DType::U32, {2}}, none));
}

EngineCore& OptimizerBase::core() const {
  auto* core = dynamic_cast<EngineCore*>(&parameters_[0].data().tensor()->recorder());
  OA_CHECK(core != nullptr);
  return *core;
}

bool OptimizerBase::belongs_to(const Engine& engine) const { return &engine.core() == &core(); }

void OptimizerBase::zero_grad() {
  for (const Parameter& p : parameters_) p.clear_gradient();
  lay_down_rates();
}

// --- Rates --------------------------------------------------------------------------------------

f64 OptimizerBase::planned_rate(u64 turn) const {
  return schedule_->rate(schedule_step_ + (turn - schedule_turn_));
}

// In the order of recorded work; without work of its own where none is pending.
void OptimizerBase::write_rates(const std::vector<f32>& rates) {
  rates_.write<f32>(std::span<const f32>(rates));
}

void OptimizerBase::set_learning_rate(f64 rate) {
  need_rate(kind_, "learning rate", rate);
  EngineCore& engine = core();
  engine.check_open(kind_);
  engine.refuse_in_capture(kind_,
                           "set_learning_rate during a capture would repeat at each replay, "
                           "expected it between submissions");
  const f64 next = schedule_ ? planned_rate(turns_) : rate_value_;
  if (static_cast<f32>(rate) == static_cast<f32>(next)) {
    rate_value_ = rate;
    lay_down_rates();
    return;
  }
  if (engine.graph().empty()) {
    write_rates(std::vector<f32>(kRates, static_cast<f32>(rate)));
  } else {
    const NoGrad off;
    rates_.assign(matrix::full_like(rates_, rate));
  }
  rate_value_ = rate;
  schedule_ = nullptr;
}

void OptimizerBase::follow_schedule(const LrSchedulerRef& schedule, u64 next_step) {
  if (!schedule) invalid(kind_, "follow_schedule has no schedule, expected one");
  const f64 first = schedule->rate(next_step);
  if (!schedule->is_known_ahead()) {
    set_learning_rate(first);
    return;
  }
  core().check_open(kind_);
  core().refuse_in_capture(kind_,
                           "follow_schedule during a capture would repeat at each replay, expected "
                           "it between submissions");
  std::vector<f32> rates(kRates);
  for (u64 k = 0; k < kRates; ++k) {
    const f64 rate = schedule->rate(next_step + k);
    need_rate(kind_, "learning rate of the schedule", rate);
    rates[(turns_ + k) % kRates] = static_cast<f32>(rate);
  }
  write_rates(rates);
  schedule_ = schedule;
  schedule_step_ = next_step;
  schedule_turn_ = turns_;
  laid_down_ = turns_ + kRates;
  rate_value_ = first;
}

// Half of the rates ahead of time, so that this is rarely done.
void OptimizerBase::lay_down_rates() {
  if (!schedule_ || laid_down_ >= turns_ + kRates / 2 || core().capturing()) return;
  std::vector<f32> rates(kRates);
  for (u64 t = turns_; t < turns_ + kRates; ++t) {
    rates[t % kRates] = static_cast<f32>(planned_rate(t));
  }
  write_rates(rates);
  laid_down_ = turns_ + kRates;
}

void OptimizerBase::take_turns(u64 count) {
  if (count > std::numeric_limits<u64>::max() - step_count_) {
    fail(ErrorKind::ResourceExhausted, kind_, "the count of steps is at its end, got {} more",
         count);
  }
  step_count_ += count;
  turns_ += count;
  if (schedule_ && count > 0) rate_value_ = planned_rate(turns_ - 1);
}

void OptimizerBase::count_replays(u64 replays) {
  take_turns(replays);
  lay_down_rates();
}

// --- Steps --------------------------------------------------------------------------------------

u64 OptimizerBase::step_form() const {
  u64 form = revision_;  // a replay asks, so no hash worth the name
  for (const Parameter& p : parameters_) {
    const u64 state = p.requires_grad() + 2 * u64{TapeAccess::shown_averages(p) > 0};
    form = form * 0x9e3779b97f4a7c15ull + state;
  }
  return form;
}

std::string OptimizerBase::showing_average() const {
  for (const Parameter& p : parameters_) {
    if (TapeAccess::shown_averages(p) > 0) return p.name();
  }
  return {};
}

std::string OptimizerBase::without_gradient() const {
  for (const Parameter& p : parameters_) {
    if (p.requires_grad() && p.data().num_elements() > 0 && !p.gradient()) return p.name();
  }
  return {};
}

void OptimizerBase::check_gradients() const {
  for (const Parameter& p : parameters_) {
    if (!p.gradient()) continue;
    const graph::Tensor& g = *p.gradient()->tensor();
    if (!g.pending() && !g.storage()) {
      fail(ErrorKind::FailedPrecondition, kind_,
           "the gradient of \"{}\" was never computed because its batch failed or its capture "
           "ended",
           p.name());
    }
  }
}

void OptimizerBase::run(const Matrix* guard) {
  EngineCore& engine = core();
  engine.check_open(kind_);
  if (guard) {
    if (!guard->valid() || guard->dtype() != DType::F32 || guard->num_elements() != 1) {
      invalid(kind_, "bad value for step_if_finite, got {} {}, expected f32 with one element",
              guard->valid() ? token(guard->dtype()) : "nothing",
              guard->valid() ? guard->shape() : Shape());
    }
    if (&guard->tensor()->recorder() != &engine) {
      invalid(kind_,
              "the value for step_if_finite belongs to another engine, expected the "
              "parameters'");
    }
  }
  check_gradients();
  if (const std::string name = showing_average(); !name.empty()) {
    fail(ErrorKind::FailedPrecondition, kind_,
         "parameter \"{}\" shows an average, expected a step after the end of its scope", name);
  }
  if (!engine.capturing()) {
    if (schedule_ && laid_down_ <= turns_) lay_down_rates();
    take_turns(1);
  }
  const NoGrad off;
  std::vector<u32> live;
  live.reserve(parameters_.size());
  for (u32 i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].gradient()) live.push_back(i);
  }
  const Matrix finite = guard ? guard->reshape({1}) : always_;
  if (!live.empty()) update(live, finite);
  // Last, so that the updates read the steps before this one.
  static const graph::AttrsPtr none = graph::make_attrs<AdvanceStep>({});
  step_.assign(record(graph::op_def<AdvanceStep>(), none, {step_, finite}));
}

Matrix OptimizerBase::record(const graph::OpDef& op, const graph::AttrsPtr& attrs,
                             std::initializer_list<Matrix> operands) const {
  graph::TensorRef inputs[8];
  size_t n = 0;
  for (const Matrix& m : operands) inputs[n++] = m.tensor();
  return Matrix(inputs[0]->recorder().graph().record(op, attrs, {inputs, n})[0]);
}

std::vector<Matrix> OptimizerBase::make_moments() const {
  std::vector<Matrix> list;
  list.reserve(parameters_.size());
  std::vector<f32> zeros;
  for (const Parameter& p : parameters_) {
    const Matrix& data = p.data();
    zeros.resize(std::max(zeros.size(), static_cast<size_t>(data.num_elements())));
    list.emplace_back(core().upload(kind_, {DType::F32, data.shape()}, zeros.data()));
  }
  return list;
}

void OptimizerBase::hold_moments(std::vector<Matrix>* first, std::vector<Matrix>* second) {
  if (first) moments_.push_back(first);
  if (second) moments_.push_back(second);
}

// --- Checkpoints --------------------------------------------------------------------------------

i64 OptimizerBase::element_count() const {
  i64 n = 0;
  for (const Parameter& p : parameters_) n += p.data().num_elements();
  return n;
}

u32 OptimizerBase::device_step() const { return step_.read<u32>()[0]; }

OptimizerState OptimizerBase::checkpoint_state() const {
  OptimizerState state = hyperparameters();
  state.kind = kind_;
  state.learning_rate = static_cast<f32>(rate_value_);
  state.weight_decay = static_cast<f32>(weight_decay_);
  state.step = device_step();
  std::vector<f32>* const targets[] = {&state.first_moment, &state.second_moment};
  for (size_t k = 0; k < moments_.size(); ++k) {
    targets[k]->reserve(static_cast<size_t>(element_count()));
    for (const Matrix& m : *moments_[k]) {
      const std::vector<f32> part = m.read_f32();
      targets[k]->insert(targets[k]->end(), part.begin(), part.end());
    }
  }
  return state;
}

void OptimizerBase::validate_checkpoint_state(const OptimizerState& state) const {
  if (state.kind != kind_) {
    invalid(kind_, "the state is of another optimizer, got {}, expected {}", state.kind, kind_);
  }
  need_rate(kind_, "learning rate in the state", static_cast<f64>(state.learning_rate));
  need_rate(kind_, "weight decay in the state", static_cast<f64>(state.weight_decay));
  check_hyperparameters(state);
  if (state.step < 0 || state.step > std::numeric_limits<u32>::max()) {
    invalid(kind_, "bad step in the state, got {}, expected 0 to {}", state.step,
            std::numeric_limits<u32>::max());
  }
  const auto n = static_cast<size_t>(element_count());
  const std::vector<f32>* const stored[] = {&state.first_moment, &state.second_moment};
  for (size_t k = 0; k < 2; ++k) {
    const size_t expected = k < moments_.size() ? n : 0;
    if (!stored[k]->empty() && stored[k]->size() != expected) {
      invalid(kind_, "moments of the state do not fit, got {} numbers, expected {}",
              stored[k]->size(), expected);
    }
  }
}

void OptimizerBase::restore_checkpoint_state(const OptimizerState& state) {
  validate_checkpoint_state(state);
  const OptimizerState before = hyperparameters();
  const f64 decay = weight_decay_;
  const std::vector<f32>* const stored[] = {&state.first_moment, &state.second_moment};
  for (size_t k = 0; k < moments_.size(); ++k) {
    size_t at = 0;
    for (const Matrix& m : *moments_[k]) {
      const auto n = static_cast<size_t>(m.num_elements());
      if (stored[k]->empty()) {
        m.write<f32>(std::vector<f32>(n));
      } else {
        m.write<f32>(std::span(*stored[k]).subspan(at, n));
      }
      at += n;
    }
  }
  rate_value_ = restored(state.learning_rate, rate_value_);
  write_rates(std::vector<f32>(kRates, static_cast<f32>(rate_value_)));
  schedule_ = nullptr;
  weight_decay_ = restored(state.weight_decay, weight_decay_);
  step_.write<u32>(std::vector<u32>{static_cast<u32>(state.step), 0});
  step_count_ = static_cast<u64>(state.step);
  turns_ = 0;
  set_hyperparameters(state);
  const OptimizerState now = hyperparameters();
  const bool same = before.beta1 == now.beta1 && before.beta2 == now.beta2 &&
                    before.epsilon == now.epsilon && decay == weight_decay_;
  if (!same) ++revision_;
}

}  // namespace oa::ml
