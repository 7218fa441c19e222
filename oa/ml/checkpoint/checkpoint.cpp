#include "oa/ml/checkpoint/checkpoint.h"

#include <cstring>

#include "oa/core/error.h"
#include "oa/engine/engine_core.h"
#include "oa/ml/checkpoint/oam.h"
#include "oa/ml/checkpoint/quantize.h"
#include "oa/ml/parameter_state.h"

namespace oa::ml {
namespace {

std::vector<u8> elements_of(const Matrix& m) {
  std::vector<u8> bytes(static_cast<size_t>(m.num_elements()) * size_bytes(m.dtype()));
  m.read_into(m.dtype(), bytes.data());
  return bytes;
}

std::vector<u8> bytes_of(const std::vector<f32>& values) {
  std::vector<u8> bytes(values.size() * sizeof(f32));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::vector<f32> floats_of(std::span<const u8> bytes) {
  std::vector<f32> values(bytes.size() / sizeof(f32));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(f32));
  return values;
}

void need_same_parameters(std::string_view op, const std::vector<NamedParameter>& model,
                          const CheckpointOptimizer& optimizer) {
  const std::vector<Parameter>& list = optimizer.parameters();
  bool same = list.size() == model.size();
  for (size_t i = 0; same && i < list.size(); ++i) same = list[i] == model[i].parameter;
  if (!same) {
    invalid(op,
            "the optimizer's parameters are not the model's, got {} and {}, expected the same ones "
            "in the same order",
            list.size(), model.size());
  }
}

CheckpointInfo info_of(const Oam& file) {
  return {.architecture = file.config.architecture,
          .extra = std::string(reinterpret_cast<const char*>(file.config.extra.data()),
                               file.config.extra.size()),
          .step = file.progress.step,
          .learning_rate = file.progress.learning_rate,
          .best_metric = file.progress.best_metric,
          .lower_is_better = file.progress.lower_is_better,
          .metric_name = file.progress.metric_name};
}

// Where the values of a file go.
struct Destination {
  std::vector<NamedParameter> parameters;
  std::vector<NamedBuffer> buffers;  // persistent ones
  std::vector<NamedStateU32> states;

  explicit Destination(const Module& model)
      : parameters(model.all_named_parameters()), states(model.all_named_state_u32()) {
    for (NamedBuffer& b : model.all_named_buffers()) {
      if (b.persistent) buffers.push_back(std::move(b));
    }
  }
};

void need_fit(std::string_view op, const TensorView& view, const std::string& name,
              const Matrix& data, bool may_be_quantised) {
  const FileDType expected = to_file(data.dtype());
  if (view.name != name || view.shape != data.shape() || view.dtype != expected ||
      (view.encoding != Encoding::Dense && !may_be_quantised)) {
    invalid(op, "the file does not fit the model, got \"{}\" {} {}, expected \"{}\" {} {}",
            view.name, token(view.dtype), view.shape, name, token(expected), data.shape());
  }
}

void check_fit(std::string_view op, const Engine& engine, const Oam& file, const Destination& to,
               bool may_be_quantised) {
  const size_t states = to.buffers.size() + to.states.size();
  if (file.weights.size() != to.parameters.size() || file.state.size() != states) {
    invalid(op, "the file does not fit the model, got {} weights and {} states, expected {} and {}",
            file.weights.size(), file.state.size(), to.parameters.size(), states);
  }
  const auto need_engine = [&](const Matrix& m) {
    if (&m.tensor()->recorder() != &engine.core()) {
      invalid(op, "the model belongs to another engine, expected the given one");
    }
  };
  for (size_t i = 0; i < file.weights.size(); ++i) {
    if (TapeAccess::shown_averages(to.parameters[i].parameter) > 0) {
      fail(ErrorKind::FailedPrecondition, op,
           "parameter \"{}\" shows its average, whose end gives the old elements back, expected a "
           "call after that",
           to.parameters[i].path);
    }
    need_engine(to.parameters[i].parameter.data());
    need_fit(op, file.weights[i], to.parameters[i].path, to.parameters[i].parameter.data(),
             may_be_quantised);
  }
  for (size_t i = 0; i < to.buffers.size(); ++i) {
    need_engine(to.buffers[i].data);
    need_fit(op, file.state[i], to.buffers[i].path, to.buffers[i].data, false);
  }
  for (size_t i = 0; i < to.states.size(); ++i) {
    const TensorView& view = file.state[to.buffers.size() + i];
    if (view.name != to.states[i].path || view.dtype != FileDType::U32 || view.shape.rank() != 0) {
      invalid(op, "the file does not fit the model, got \"{}\" {} {}, expected \"{}\" u32 []",
              view.name, token(view.dtype), view.shape, to.states[i].path);
    }
  }
}

void replace(const Engine& engine, const Matrix& target, std::span<const u8> bytes) {
  const Matrix value = Matrix::upload(engine, target.shape(), target.dtype(), bytes.data(),
                                      static_cast<size_t>(target.num_elements()));
  target.assign(value);
}

void commit(const Engine& engine, const Oam& file, const Destination& to) {
  for (size_t i = 0; i < to.parameters.size(); ++i) {
    const TensorView& view = file.weights[i];
    const Parameter& p = to.parameters[i].parameter;
    if (view.encoding == Encoding::Dense) {
      replace(engine, p.data(), view.bytes);
    } else {
      replace(engine, p.data(),
              dequantize(view.bytes, static_cast<u64>(p.data().num_elements()), view.encoding));
    }
    p.clear_gradient();
  }
  for (size_t i = 0; i < to.buffers.size(); ++i) {
    replace(engine, to.buffers[i].data, file.state[i].bytes);
  }
  for (size_t i = 0; i < to.states.size(); ++i) {
    u32 value = 0;
    std::memcpy(&value, file.state[to.buffers.size() + i].bytes.data(), sizeof value);
    to.states[i].state.set(value);
  }
}

}  // namespace

void save_checkpoint(const std::filesystem::path& path, const Module& model,
                     const CheckpointOptimizer& optimizer, const CheckpointInfo& info,
                     Durability durability) {
  constexpr std::string_view kOp = "save_checkpoint";
  const Destination from(model);
  need_same_parameters(kOp, from.parameters, optimizer);
  Oam file;
  file.config.architecture = info.architecture;
  file.config.extra = {reinterpret_cast<const u8*>(info.extra.data()), info.extra.size()};
  for (const NamedParameter& p : from.parameters) {
    const Matrix& data = p.parameter.data();
    file.add_weight(p.path, to_file(data.dtype()), data.shape(), elements_of(data));
  }
  for (const NamedBuffer& b : from.buffers) {
    file.add_state(b.path, to_file(b.data.dtype()), b.data.shape(), elements_of(b.data));
  }
  for (const NamedStateU32& s : from.states) file.add_state(s.path, s.value());
  const OptimizerState state = optimizer.checkpoint_state();
  OamOptimizer o{.kind = state.kind,
                 .learning_rate = state.learning_rate,
                 .beta1 = state.beta1,
                 .beta2 = state.beta2,
                 .epsilon = state.epsilon,
                 .weight_decay = state.weight_decay,
                 .step = state.step};
  o.first = file.own(bytes_of(state.first_moment));
  o.second = file.own(bytes_of(state.second_moment));
  file.optimizer = o;
  file.progress.step = info.step;
  file.progress.learning_rate = info.learning_rate;
  file.progress.best_metric = info.best_metric;
  file.progress.lower_is_better = info.lower_is_better;
  file.progress.metric_name = info.metric_name;
  write_oam(path, file, durability);
}

CheckpointInfo load_checkpoint(const Engine& engine, const std::filesystem::path& path,
                               Module& model, CheckpointOptimizer& optimizer) {
  constexpr std::string_view kOp = "load_checkpoint";
  const Oam file = read_oam(path);
  const Destination to(model);
  check_fit(kOp, engine, file, to, false);
  need_same_parameters(kOp, to.parameters, optimizer);
  if (!file.optimizer) invalid(kOp, "the file has no optimizer, expected one");
  const OamOptimizer& o = *file.optimizer;
  OptimizerState state{.kind = o.kind,
                       .learning_rate = o.learning_rate,
                       .beta1 = o.beta1,
                       .beta2 = o.beta2,
                       .epsilon = o.epsilon,
                       .weight_decay = o.weight_decay,
                       .step = o.step,
                       .first_moment = floats_of(o.first),
                       .second_moment = floats_of(o.second)};
  optimizer.validate_checkpoint_state(state);
  commit(engine, file, to);
  optimizer.restore_checkpoint_state(state);
  return info_of(file);
}

CheckpointInfo load_model(const Engine& engine, const std::filesystem::path& path, Module& model) {
  const Oam file = read_oam(path);
  const Destination to(model);
  check_fit("load_model", engine, file, to, true);
  commit(engine, file, to);
  return info_of(file);
}

CheckpointInfo read_checkpoint_info(const std::filesystem::path& path) {
  return info_of(read_oam(path));
}

}  // namespace oa::ml
