#include "oa/ml/module.h"

#include <functional>
#include <set>

#include "oa/core/error.h"

namespace oa::ml {
namespace {

bool is_name(const std::string& name) {
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  if (name.empty() || !letter(name[0])) return false;
  for (char c : name) {
    if (!letter(c) && !(c >= '0' && c <= '9')) return false;
  }
  return true;
}

}  // namespace

void ModuleRegistry::need_free(const std::string& name) const {
  constexpr std::string_view kOp = "ModuleRegistry";
  if (!is_name(name)) {
    invalid(kOp, "bad name, got \"{}\", expected a letter or _ first, then letters, digits or _",
            name);
  }
  bool taken = false;
  for (const auto& [other, p] : parameters_) taken = taken || other == name;
  for (const NamedBuffer& b : buffers_) taken = taken || b.path == name;
  for (const NamedStateU32& s : states_) taken = taken || s.path == name;
  for (const auto& [other, child] : children_) taken = taken || other == name;
  if (taken) invalid(kOp, "name \"{}\" is taken, expected a new one", name);
}

Parameter ModuleRegistry::register_parameter(const std::string& name, const Parameter& parameter) {
  need_free(name);
  if (!parameter.valid()) invalid("ModuleRegistry", "parameter \"{}\" is empty", name);
  for (const auto& [other, p] : parameters_) {
    if (p == parameter) {
      invalid("ModuleRegistry", "parameter \"{}\" is registered as \"{}\" already", name, other);
    }
  }
  parameters_.emplace_back(name, parameter);
  return parameter;
}

Matrix ModuleRegistry::register_buffer(const std::string& name, const Matrix& data,
                                       bool persistent) {
  need_free(name);
  if (!data.valid()) invalid("ModuleRegistry", "buffer \"{}\" is empty", name);
  for (const NamedBuffer& b : buffers_) {
    if (b.data.tensor() == data.tensor()) {
      invalid("ModuleRegistry", "buffer \"{}\" is registered as \"{}\" already", name, b.path);
    }
  }
  buffers_.push_back({name, data, persistent});
  return data;
}

StateU32 ModuleRegistry::register_state_u32(const std::string& name, u32 value) {
  need_free(name);
  states_.push_back({name, StateU32(value)});
  return states_.back().state;
}

void ModuleRegistry::add_child(const std::string& name, std::shared_ptr<Module> child) {
  need_free(name);
  if (!child) invalid("ModuleRegistry", "module \"{}\" is empty", name);
  for (const auto& [other, m] : children_) {
    if (m == child) {
      invalid("ModuleRegistry", "module \"{}\" is registered as \"{}\" already", name, other);
    }
  }
  child->train(training_);
  children_.emplace_back(name, std::move(child));
}

std::vector<Parameter> Module::parameters() const {
  std::vector<Parameter> list;
  for (const auto& [name, p] : registry_.parameters_) list.push_back(p);
  return list;
}
std::vector<NamedParameter> Module::named_parameters() const {
  std::vector<NamedParameter> list;
  for (const auto& [name, p] : registry_.parameters_) list.push_back({name, p});
  return list;
}
std::vector<Matrix> Module::buffers() const {
  std::vector<Matrix> list;
  for (const NamedBuffer& b : registry_.buffers_) list.push_back(b.data);
  return list;
}
std::vector<NamedBuffer> Module::named_buffers() const { return registry_.buffers_; }

namespace {

// Calls f(registry owner, path prefix) for each module of a tree in traversal order.
class Walk {
 public:
  // `children_of` hands out the named children of a module.
  using Children =
      std::function<const std::vector<std::pair<std::string, std::shared_ptr<Module>>>&(
          const Module&)>;
  Walk(Children children, std::function<void(const Module&, const std::string&)> visit)
      : children_(std::move(children)), visit_(std::move(visit)) {}

  void run(const Module& m, const std::string& prefix) {
    if (!seen_.insert(&m).second) {
      fail(ErrorKind::FailedPrecondition, "Module",
           "module \"{}\" is reached twice, expected a tree", prefix);
    }
    visit_(m, prefix.empty() ? "" : prefix + ".");
    for (const auto& [name, child] : children_(m)) {
      run(*child, prefix.empty() ? name : prefix + "." + name);
    }
  }

 private:
  Children children_;
  std::function<void(const Module&, const std::string&)> visit_;
  std::set<const Module*> seen_;
};

template <class Key>
void once(std::set<Key>& seen, const Key& key, std::string_view what, const std::string& path) {
  if (!seen.insert(key).second) {
    fail(ErrorKind::FailedPrecondition, "Module", "{} \"{}\" is reached twice, expected one owner",
         what, path);
  }
}

}  // namespace

std::vector<NamedParameter> Module::all_named_parameters() const {
  std::vector<NamedParameter> list;
  std::set<const void*> seen;
  Walk([](const Module& m) -> auto& { return m.registry_.children_; },
       [&](const Module& m, const std::string& prefix) {
         for (const auto& [name, p] : m.registry_.parameters_) {
           once<const void*>(seen, p.data().tensor().get(), "parameter", prefix + name);
           list.push_back({prefix + name, p});
         }
       })
      .run(*this, "");
  return list;
}

std::vector<Parameter> Module::all_parameters() const {
  std::vector<Parameter> list;
  for (NamedParameter& p : all_named_parameters()) list.push_back(std::move(p.parameter));
  return list;
}

std::vector<NamedBuffer> Module::all_named_buffers() const {
  std::vector<NamedBuffer> list;
  std::set<const void*> seen;
  Walk([](const Module& m) -> auto& { return m.registry_.children_; },
       [&](const Module& m, const std::string& prefix) {
         for (const NamedBuffer& b : m.registry_.buffers_) {
           once<const void*>(seen, b.data.tensor().get(), "buffer", prefix + b.path);
           list.push_back({prefix + b.path, b.data, b.persistent});
         }
       })
      .run(*this, "");
  return list;
}

std::vector<NamedStateU32> Module::all_named_state_u32() const {
  std::vector<NamedStateU32> list;
  Walk([](const Module& m) -> auto& { return m.registry_.children_; },
       [&](const Module& m, const std::string& prefix) {
         for (const NamedStateU32& s : m.registry_.states_) {
           list.push_back({prefix + s.path, s.state});
         }
       })
      .run(*this, "");
  return list;
}

i64 Module::num_parameters() const {
  i64 count = 0;
  for (const NamedParameter& p : all_named_parameters()) count += p.parameter.data().num_elements();
  return count;
}

void Module::train(bool on) {
  registry_.training_ = on;
  for (const auto& [name, child] : registry_.children_) child->train(on);
}

ScopedEval::ScopedEval(Module& root) {
  const std::function<void(Module&)> visit = [&](Module& m) {
    before_.emplace_back(&m.registry_, m.registry_.training_);
    m.registry_.training_ = false;
    for (const auto& [name, child] : m.registry_.children_) visit(*child);
  };
  visit(root);
}

ScopedEval::~ScopedEval() {
  for (auto& [registry, training] : before_) registry->training_ = training;
}

}  // namespace oa::ml
