#include "oa/graph/gradient.h"

#include "oa/graph/emit.h"
#include "oa/kernel/differentiate.h"

namespace oa::graph {
namespace {

thread_local Observer* current = nullptr;

// Attributes of a partial derivative: those of the op, and the input.
struct PartialAttrs {
  const OpDef* op;
  AttrsPtr attrs;
  u32 wrt;
};

class PartialBox final : public AttrsBox {
 public:
  explicit PartialBox(PartialAttrs value) : value_(std::move(value)) {}
  const void* get() const override { return &value_; }
  void hash(Hasher& h) const override {
    h.add(reinterpret_cast<u64>(value_.op));
    h.add(value_.wrt);
    value_.attrs->hash(h);
  }
  void scalars(std::vector<Scalar>& out) const override { value_.attrs->scalars(out); }
  AttrsPtr symbolic(u32 first) const override {
    return std::make_shared<PartialBox>(
        PartialAttrs{value_.op, value_.attrs->symbolic(first), value_.wrt});
  }
  std::vector<AttrValue> values() const override {
    std::vector<AttrValue> list = value_.attrs->values();
    list.emplace_back(std::in_place_type<i64>, static_cast<i64>(value_.wrt));
    return list;
  }

 private:
  PartialAttrs value_;
};

void infer_partial(Infer& in, const void* p) {
  const auto& a = *static_cast<const PartialAttrs*>(p);
  std::vector<const Spec*> own;
  for (u32 i = 0; i + 1 < in.count(); ++i) own.push_back(&in.in(i));
  Infer base(a.op->name(), own);
  a.op->infer(base, a.attrs->get());
  OA_CHECK(base.outputs()[0] == in.in(in.count() - 1));
  in.out(in.dtype(a.wrt), base.outputs()[0].shape);
}

kernel::Value emit_partial(Emit& e, const void* p) {
  const auto& a = *static_cast<const PartialAttrs*>(p);
  const kernel::Value g = e.input(e.count() - 1);
  const kernel::Value x = e.track(a.wrt);
  const kernel::Value y = a.op->emit(e, a.attrs->get());
  const kernel::Value d = kernel::derivative(y, x);
  const kernel::Value zero = kernel::constant(x.scalar(), 0);
  if (!d.valid()) return zero;
  const kernel::Value product = d * g;
  return kernel::cast(kernel::select(g == kernel::constant(g.scalar(), 0),
                                     kernel::constant(g.scalar(), 0), product),
                      x.scalar());
}

const OpDef& partial_op() {
  static const OpDef def = [] {
    OpDef d;
    d.info = {.name = "partial", .kind = OpKind::Elementwise, .cost = 16};
    d.infer = infer_partial;
    d.emit = emit_partial;
    return d;
  }();
  return def;
}

}  // namespace

Observer* observer() { return current; }
Observer* set_observer(Observer* next) { return std::exchange(current, next); }

TensorRef partial(const OpDef& op, const AttrsPtr& attrs, std::span<const TensorRef> inputs,
                  u32 wrt, const TensorRef& grad) {
  std::vector<TensorRef> all(inputs.begin(), inputs.end());
  all.push_back(grad);
  return grad->recorder().graph().record(
      partial_op(), std::make_shared<PartialBox>(PartialAttrs{&op, attrs, wrt}), all)[0];
}

}  // namespace oa::graph
