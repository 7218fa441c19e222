// Gradients of ops, and who listens to what is recorded.
//
// A rule maps the gradients of an op's results to those of its operands by recording more ops.
// Where an op states none, an elementwise op gets the derivative of its scalar function, and a
// composite op the gradient of its definition. Ops whose results are constant for every derivative
// (comparisons, positions, drawn numbers) say so with kDetached.
#pragma once

#include <span>
#include <vector>

#include "oa/graph/graph.h"

namespace oa::graph {

// What a gradient rule sees.
struct Gradient {
  std::span<const TensorRef> inputs;
  std::span<const TensorRef> outputs;
  std::span<const TensorRef> grads;  // per output; null where nothing depends on it
  std::span<const u8> wanted;        // per input: a rule may leave the others null
};

// Listens to the ops that are recorded on this thread, outside of compile stages.
class Observer {
 public:
  virtual ~Observer() = default;
  // Before an op is recorded: throws to refuse it.
  virtual void before(const OpDef& op, std::span<const TensorRef> inputs,
                      std::span<const Spec> outputs) = 0;
  virtual void after(const OpDef& op, const AttrsPtr& attrs, std::span<const TensorRef> inputs,
                     std::span<const TensorRef> outputs) = 0;
};

// A parameter of a model, as the values that hold its elements know it (Tensor::owner).
struct LeafOwner : RefCounted {
  virtual ~LeafOwner() = default;
  virtual std::string_view label() const { return {}; }  // the parameter's name
  bool requires_grad = true;
};

// The innermost observer of this thread; null if there is none. set_observer returns the one
// before.
Observer* observer();
Observer* set_observer(Observer* next);

// The partial derivative of an elementwise op with respect to one input, times the gradient of the
// result: an elementwise op over the op's inputs and that gradient, with the result's shape.
// Where the gradient is 0 the result is 0, whatever the derivative: what `where` masks out stays
// out.
TensorRef partial(const OpDef& op, const AttrsPtr& attrs, std::span<const TensorRef> inputs,
                  u32 wrt, const TensorRef& grad);

}  // namespace oa::graph
