// The inside of a Parameter, for the tape.
#pragma once

#include "oa/graph/gradient.h"
#include "oa/ml/parameter.h"

namespace oa::ml {

struct Parameter::State final : graph::LeafOwner {
  State(std::string n, const Matrix& d) : name(std::move(n)), data(d) {
    data.tensor()->owner = this;
  }
  ~State() override { data.tensor()->owner = nullptr; }
  std::string_view label() const override { return name; }
  std::string name;
  Matrix data;
  std::optional<Matrix> gradient;
  u32 shown_averages = 0;  // that stand in its place for a while
};

// Parameters from the values that hold their elements, and what only the library changes.
class TapeAccess {
 public:
  static u32& shown_averages(const Parameter& p) { return p.held().shown_averages; }
  static Parameter parameter_of(graph::LeafOwner* owner) {
    Parameter p;
    p.state_ = Ref(owner);
    return p;
  }
};

}  // namespace oa::ml
