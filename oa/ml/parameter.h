// A trainable value: a name, its elements, and the gradient that backward passes add up.
#pragma once

#include <optional>
#include <string>

#include "oa/graph/gradient.h"
#include "oa/matrix/matrix.h"

namespace oa::ml {

// A handle; copies share the state. Parameters belong to their engine's thread.
class Parameter {
 public:
  Parameter() = default;  // empty: usable only to be assigned to
  // `data` is F32 (or F64, for gradient checks) and becomes the parameter's own: optimizers replace
  // its elements in place. InvalidArgument for other dtypes, and when `data` is a parameter's
  // already.
  static Parameter create(std::string name, const Matrix& data);

  bool valid() const { return static_cast<bool>(state_); }
  const std::string& name() const;
  const Matrix& data() const;

  // Empty until a backward pass reaches the parameter.
  const std::optional<Matrix>& gradient() const;
  void clear_gradient() const;
  // Adds to the gradient; equal shape and dtype.
  void accumulate_gradient(const Matrix& gradient) const;
  void set_gradient(const Matrix& gradient) const;  // replaces it

  // Without it backward passes leave the parameter alone; switching it off drops the gradient.
  void set_requires_grad(bool on) const;
  bool requires_grad() const;

  // Replaces the elements (equal shape, dtype and engine).
  void replace_data(const Matrix& data) const;
  // Grows with every replacement of the elements.
  u64 version() const;

  // Handles of one parameter are equal.
  bool operator==(const Parameter& other) const;

 private:
  friend class TapeAccess;
  struct State;
  State& held() const;
  Ref<graph::LeafOwner> state_;  // a State
};

}  // namespace oa::ml
