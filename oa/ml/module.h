// Module: what has parameters and computes something from a value; a tree of modules is a model.
//
// A module owns one ModuleRegistry, which lists its parameters, buffers, small states and children
// in the order of registration. That order and the dotted paths ("block_0.attention.q_proj.weight")
// are what checkpoints and optimizers go by.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "oa/ml/parameter.h"

namespace oa::ml {

class Module;

// A small number that belongs to a module and is saved with it. A handle; copies share it.
class StateU32 {
 public:
  explicit StateU32(u32 value = 0) : value_(std::make_shared<u32>(value)) {}
  u32 value() const { return *value_; }
  void set(u32 value) const { *value_ = value; }

 private:
  std::shared_ptr<u32> value_;
};

struct NamedParameter {
  std::string path;
  Parameter parameter;
};
struct NamedBuffer {
  std::string path;
  Matrix data;
  bool persistent = true;  // saved in checkpoints
};
struct NamedStateU32 {
  std::string path;
  StateU32 state;
  u32 value() const { return state.value(); }
};

class ModuleRegistry {
 public:
  // Names match [A-Za-z_][A-Za-z0-9_]* and are unique over everything that is registered here;
  // else InvalidArgument. Each call returns what it registered.
  Parameter register_parameter(const std::string& name, const Parameter& parameter);
  Matrix register_buffer(const std::string& name, const Matrix& data, bool persistent = true);
  StateU32 register_state_u32(const std::string& name, u32 value);
  // The child takes over this registry's training mode.
  template <class M>
  std::shared_ptr<M> register_module(const std::string& name, std::shared_ptr<M> child) {
    add_child(name, child);
    return child;
  }

  bool is_training() const { return training_; }

 private:
  friend class Module;
  friend class ScopedEval;
  void add_child(const std::string& name, std::shared_ptr<Module> child);
  void need_free(const std::string& name) const;

  std::vector<std::pair<std::string, Parameter>> parameters_;
  std::vector<NamedBuffer> buffers_;
  std::vector<NamedStateU32> states_;
  std::vector<std::pair<std::string, std::shared_ptr<Module>>> children_;
  bool training_ = true;
};

// Puts every module of a tree into evaluation mode, and back into its own mode at the end.
class ScopedEval {
 public:
  explicit ScopedEval(Module& root);
  ~ScopedEval();
  ScopedEval(ScopedEval&& other) noexcept = default;
  ScopedEval& operator=(ScopedEval&&) = delete;

 private:
  std::vector<std::pair<ModuleRegistry*, bool>> before_;
};

class Module {
 public:
  virtual ~Module() = default;
  Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  virtual Matrix forward(const Matrix& input) = 0;
  Matrix operator()(const Matrix& input) { return forward(input); }

  ModuleRegistry& registry() { return registry_; }
  const ModuleRegistry& registry() const { return registry_; }

  // This module's own entries.
  std::vector<Parameter> parameters() const;
  std::vector<NamedParameter> named_parameters() const;
  std::vector<Matrix> buffers() const;
  std::vector<NamedBuffer> named_buffers() const;

  // Of the whole tree: own entries first, then each child's, in the order of registration.
  // FailedPrecondition when a parameter, buffer or module is reached twice.
  std::vector<Parameter> all_parameters() const;
  std::vector<NamedParameter> all_named_parameters() const;
  std::vector<NamedBuffer> all_named_buffers() const;
  std::vector<NamedStateU32> all_named_state_u32() const;
  i64 num_parameters() const;  // scalars

  void train(bool on = true);  // the whole tree
  void eval() { train(false); }
  bool is_training() const { return registry_.training_; }
  ScopedEval scoped_eval() { return ScopedEval(*this); }

 private:
  friend class ModuleRegistry;
  friend class ScopedEval;
  ModuleRegistry registry_;
};

}  // namespace oa::ml
