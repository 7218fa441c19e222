#include "oa/ml/parameter.h"

#include "oa/core/error.h"
#include "oa/matrix/elementwise.h"
#include "oa/ml/parameter_state.h"

namespace oa::ml {
namespace {

void need_fit(std::string_view op, const Matrix& value, const Matrix& data) {
  if (!value.valid() || value.shape() != data.shape() || value.dtype() != data.dtype()) {
    invalid(op, "value does not fit, got {} {}, expected {} {}",
            value.valid() ? token(value.dtype()) : "nothing",
            value.valid() ? value.shape() : Shape(), token(data.dtype()), data.shape());
  }
  if (&value.tensor()->recorder() != &data.tensor()->recorder()) {
    invalid(op, "value belongs to another engine, expected the parameter's");
  }
}

}  // namespace

Parameter Parameter::create(std::string name, const Matrix& data) {
  if (!data.valid()) invalid("Parameter", "the value is empty, expected one with elements");
  if (data.dtype() != DType::F32 && data.dtype() != DType::F64) {
    invalid("Parameter", "wrong dtype, got {}, expected f32", token(data.dtype()));
  }
  if (data.tensor()->owner) {
    invalid("Parameter", "the value is a parameter already, expected one of its own");
  }
  Parameter p;
  p.state_ = Ref<graph::LeafOwner>(new State(std::move(name), data));
  return p;
}

Parameter::State& Parameter::held() const {
  if (!state_) invalid("Parameter", "the handle is empty, expected a parameter");
  return static_cast<State&>(*state_);
}

const std::string& Parameter::name() const { return held().name; }
const Matrix& Parameter::data() const { return held().data; }
const std::optional<Matrix>& Parameter::gradient() const { return held().gradient; }
void Parameter::clear_gradient() const { held().gradient.reset(); }

void Parameter::accumulate_gradient(const Matrix& gradient) const {
  State& s = held();
  need_fit("accumulate_gradient", gradient, s.data);
  s.gradient = s.gradient ? *s.gradient + gradient : gradient;
}

void Parameter::set_gradient(const Matrix& gradient) const {
  need_fit("set_gradient", gradient, held().data);
  held().gradient = gradient;
}

void Parameter::set_requires_grad(bool on) const {
  held().requires_grad = on;
  if (!on) clear_gradient();
}
bool Parameter::requires_grad() const { return held().requires_grad; }

void Parameter::replace_data(const Matrix& data) const {
  need_fit("replace_data", data, held().data);
  held().data.assign(data);
}
u64 Parameter::version() const { return held().data.tensor()->version(); }

bool Parameter::operator==(const Parameter& other) const { return state_ == other.state_; }

}  // namespace oa::ml
