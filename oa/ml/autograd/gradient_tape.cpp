#include "oa/ml/autograd/gradient_tape.h"

#include <unordered_map>

#include "oa/core/error.h"
#include "oa/graph/gradient.h"
#include "oa/graph/reshape.h"
#include "oa/matrix/create.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/random.h"
#include "oa/matrix/record.h"
#include "oa/matrix/reduce.h"
#include "oa/ml/parameter_state.h"

namespace oa::ml {

using graph::AttrsPtr;
using graph::OpDef;
using graph::OpKind;
using graph::Tensor;
using graph::TensorRef;

namespace {

using Values = std::vector<Matrix>;
using Rule = std::function<Values(const Values&)>;

// Step values that the first run of recompute() drew, for the second one.
struct DrawLog {
  Values steps;
  size_t next = 0;
  bool replay = false;
};
thread_local DrawLog* draw_log = nullptr;

bool has_rule(const OpDef& op) {
  return op.gradient || op.info.kind == OpKind::Elementwise || op.info.kind == OpKind::Composite;
}

// A value that is computed again although an equal one exists: the second run of recompute() must
// not be merged with the first.
struct Again {
  static constexpr graph::OpInfo kInfo{
      .name = "again", .kind = OpKind::Elementwise, .cost = 0, .pure = false};
  using Attrs = graph::NoAttrs;
  static void infer(graph::Infer& in, const Attrs&) { in.out(in.dtype(0), in.shape(0)); }
  static kernel::Value emit(graph::Emit& e, const Attrs&) { return e.input(0); }
  static void samples(graph::Samples& s) { s.call({{{5}}}, Attrs{}); }
};

}  // namespace

class GradientTape::Impl final : public graph::Observer {
 public:
  struct Node {
    const OpDef* op = nullptr;  // null: a rule of the caller's own
    AttrsPtr attrs;
    std::vector<TensorRef> inputs, outputs;
    std::vector<u64> versions;         // of the inputs
    std::vector<u64> output_versions;  // rules read results too
    // Maps gradients of the outputs to those of the inputs; may add gradients of other leaves.
    std::function<Values(const Values&, Impl&)> rule;
  };
  struct Leaf {
    TensorRef tensor;
    u64 version;
    bool watched;
  };

  // --- Noting ---

  void open() {
    outer = graph::set_observer(this);
    active = true;
  }
  void close() {
    if (!active) return;
    active = false;
    if (graph::observer() == this) {
      graph::set_observer(outer);
      return;
    }
    // Closed before tapes that were opened later: leave the chain.
    for (auto* o = dynamic_cast<Impl*>(graph::observer()); o; o = dynamic_cast<Impl*>(o->outer)) {
      if (o->outer == this) {
        o->outer = outer;
        return;
      }
    }
  }

  bool tracked(const TensorRef& t) const {
    if (graph::LeafOwner* owner = t->owner; owner && owner->requires_grad) return true;
    return tracked_.contains(t.get());
  }
  bool any_tracked(std::span<const TensorRef> inputs, u32 detached) const {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const bool constant = i < 32 && (detached >> i & 1) != 0;
      if (!constant && tracked(inputs[i])) return true;
    }
    return false;
  }

  void add_leaf(const TensorRef& t, bool watched) {
    if (!tracked_.emplace(t.get(), true).second) return;
    leaves.push_back({t, t->version(), watched});
  }

  void before(const OpDef& op, std::span<const TensorRef> inputs,
              std::span<const graph::Spec> outputs) override {
    if (op.detached || has_rule(op) || !any_tracked(inputs, op.detached_inputs)) return;
    for (const graph::Spec& out : outputs) {
      if (!is_float(out.dtype)) continue;
      fail(ErrorKind::FailedPrecondition, op.name(),
           "the op has no gradient but an operand depends on a parameter, expected detach() around "
           "the operand");
    }
  }

  void after(const OpDef& op, const AttrsPtr& attrs, std::span<const TensorRef> inputs,
             std::span<const TensorRef> outputs) override {
    if (op.detached || !any_tracked(inputs, op.detached_inputs)) return;
    Node node{.op = &op, .attrs = attrs};
    note(std::move(node), inputs, outputs);
  }

  void note(Node node, std::span<const TensorRef> inputs, std::span<const TensorRef> outputs) {
    bool differentiable = false;
    for (const TensorRef& t : outputs) {
      if (!is_float(t->dtype())) continue;
      differentiable = true;
      tracked_[t.get()] = true;
    }
    if (!differentiable) return;
    for (const TensorRef& t : inputs) {
      if (t->owner && t->owner->requires_grad) add_leaf(t, false);
      node.versions.push_back(t->version());
    }
    node.inputs.assign(inputs.begin(), inputs.end());
    node.outputs.assign(outputs.begin(), outputs.end());
    for (const TensorRef& t : outputs) node.output_versions.push_back(t->version());
    nodes.push_back(std::move(node));
  }

  // --- The way back ---

  // No value that a rule may read has been replaced.
  void check_versions(std::string_view op) const {
    for (const Leaf& leaf : leaves) {
      if (leaf.tensor->version() == leaf.version) continue;
      const std::string name =
          leaf.tensor->owner ? TapeAccess::parameter_of(leaf.tensor->owner).name() : "a value";
      fail(ErrorKind::FailedPrecondition, op,
           "{} was changed since the forward pass, expected it "
           "unchanged",
           name);
    }
    for (const Node& node : nodes) {
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (node.inputs[i]->version() == node.versions[i]) continue;
        fail(ErrorKind::FailedPrecondition, op,
             "operand {} of {} was replaced since the forward pass, expected it unchanged", i,
             node.op ? node.op->name() : "an operation");
      }
      for (size_t i = 0; i < node.outputs.size(); ++i) {
        if (node.outputs[i]->version() == node.output_versions[i]) continue;
        fail(ErrorKind::FailedPrecondition, op,
             "result {} of {} was replaced since the forward pass, expected it unchanged", i,
             node.op ? node.op->name() : "an operation");
      }
    }
  }

  void add(const TensorRef& t, const Matrix& g) {
    Matrix& sum = grads[t.get()];
    sum = sum.valid() ? sum + g : g;
  }

  void pull() {
    while (!nodes.empty()) {
      const Node node = std::move(nodes.back());
      nodes.pop_back();
      Values out(node.outputs.size());
      bool reached = false;
      for (size_t i = 0; i < out.size(); ++i) {
        const auto it = grads.find(node.outputs[i].get());
        if (it == grads.end()) continue;
        out[i] = it->second;
        grads.erase(it);
        reached = true;
      }
      if (!reached) continue;
      const Values in = node.rule ? node.rule(out, *this) : through(node, out);
      for (size_t i = 0; i < in.size(); ++i) {
        if (in[i].valid() && tracked_.contains(node.inputs[i].get())) add(node.inputs[i], in[i]);
      }
    }
  }

  Values through(const Node& node, const Values& out) {
    std::vector<TensorRef> given;
    for (const Matrix& g : out) given.push_back(g.tensor());
    std::vector<u8> wanted;
    for (const TensorRef& t : node.inputs) {
      wanted.push_back(is_float(t->dtype()) && tracked_.contains(t.get()));
    }
    std::vector<TensorRef> result;
    if (node.op->gradient) {
      result = node.op->gradient({node.inputs, node.outputs, given, wanted}, node.attrs->get());
      OA_CHECK(result.size() <= node.inputs.size());
    } else if (node.op->info.kind == OpKind::Elementwise) {
      for (u32 i = 0; i < node.inputs.size(); ++i) {
        result.push_back(wanted[i] ? graph::partial(*node.op, node.attrs, node.inputs, i, given[0])
                                   : TensorRef());
      }
    } else {
      return by_definition(node, out);
    }
    Values in;
    for (u32 i = 0; i < result.size(); ++i) {
      Matrix g(result[i]);
      // Operands of elementwise ops broadcast.
      if (g.valid() && node.op->info.kind == OpKind::Elementwise) {
        g = matrix::sum_to(g, node.inputs[i]->shape());
      }
      in.push_back(wanted[i] ? g : Matrix());
    }
    return in;
  }

  Values by_definition(const Node& node, const Values& out) {
    Impl inner;
    for (const TensorRef& t : node.inputs) {
      if (is_float(t->dtype())) inner.add_leaf(t, true);
    }
    inner.open();
    std::vector<TensorRef> results;
    try {
      results = node.op->define(node.inputs, node.attrs->get());
    } catch (...) {
      inner.close();
      throw;
    }
    inner.close();
    for (size_t i = 0; i < results.size(); ++i) {
      if (out[i].valid()) inner.add(results[i], out[i]);
    }
    inner.pull();
    return inner.taken(node.inputs);
  }

  // The gradients of watched values, each at its first place.
  Values taken(std::span<const TensorRef> inputs) {
    Values in;
    for (const TensorRef& t : inputs) {
      const auto it = grads.find(t.get());
      in.push_back(it == grads.end() ? Matrix() : it->second);
      if (it != grads.end()) grads.erase(it);
    }
    return in;
  }

  std::vector<Node> nodes;
  std::vector<Leaf> leaves;
  std::unordered_map<const Tensor*, Matrix> grads;
  graph::Observer* outer = nullptr;
  bool active = false;
  bool used = false;

 private:
  // Values that depend on a leaf. Nodes and leaves hold them, so an address names one value.
  std::unordered_map<const Tensor*, bool> tracked_;
};

GradientTape::GradientTape() : impl_(std::make_unique<Impl>()) { impl_->open(); }
GradientTape::~GradientTape() { impl_->close(); }
void GradientTape::close() { impl_->close(); }

void GradientTape::watch(const Matrix& x) {
  if (!x.valid() || !is_float(x.dtype())) {
    invalid("watch", "bad value, got {}, expected a float value",
            x.valid() ? token(x.dtype()) : "nothing");
  }
  impl_->add_leaf(x.tensor(), true);
}

void GradientTape::backward(const Matrix& root) {
  constexpr std::string_view kOp = "backward";
  Impl& tape = *impl_;
  if (!root.valid() || root.num_elements() != 1 || !is_float(root.dtype())) {
    invalid(kOp, "bad root, got {} {}, expected one f32 element",
            root.valid() ? token(root.dtype()) : "nothing", root.valid() ? root.shape() : Shape());
  }
  if (tape.used) fail(ErrorKind::FailedPrecondition, kOp, "the tape was used, expected a new one");
  if (!tape.tracked(root.tensor())) {
    fail(ErrorKind::FailedPrecondition, kOp,
         "the root was not recorded by this tape, or depends on no parameter");
  }
  if (graph::observer() != nullptr && graph::observer() != &tape) {
    fail(ErrorKind::FailedPrecondition, kOp, "another tape is active on this thread");
  }
  tape.check_versions(kOp);
  tape.close();
  if (graph::observer() != nullptr) {
    fail(ErrorKind::FailedPrecondition, kOp, "another tape is active on this thread");
  }
  tape.used = true;
  tape.add(root.tensor(), matrix::full_like(root, 1));
  tape.pull();
  for (const Impl::Leaf& leaf : tape.leaves) {
    const auto it = tape.grads.find(leaf.tensor.get());
    if (it == tape.grads.end() || leaf.watched || !leaf.tensor->owner) continue;
    TapeAccess::parameter_of(leaf.tensor->owner).accumulate_gradient(it->second);
  }
}

std::optional<Matrix> GradientTape::gradient(const Matrix& watched) const {
  const auto it = impl_->grads.find(watched.tensor().get());
  if (it == impl_->grads.end()) return std::nullopt;
  return it->second;
}

NoGrad::NoGrad() : outer_(graph::set_observer(nullptr)) {}
NoGrad::~NoGrad() { graph::set_observer(static_cast<graph::Observer*>(outer_)); }

Matrix detach(const Matrix& x) {
  if (!x.valid()) invalid("detach", "the value is empty, expected one with elements");
  if (!x.tensor()->recorder().rewriting() && (x.tensor()->pending() || x.tensor()->storage())) {
    return Matrix(Tensor::view(x.tensor(), x.shape()));
  }
  const NoGrad quiet;
  return matrix::record<graph::Reshape>({x}, {x.shape()});
}

// Access to the innermost tape for operations with rules of their own.
class TapeCalls {
 public:
  using Impl = GradientTape::Impl;
  static Impl* innermost() { return dynamic_cast<Impl*>(graph::observer()); }

  static void note(Impl& tape, const Values& inputs, const Values& outputs,
                   std::function<Values(const Values&, Impl&)> rule) {
    std::vector<TensorRef> in, out;
    for (const Matrix& m : inputs) in.push_back(m.tensor());
    for (const Matrix& m : outputs) out.push_back(m.tensor());
    tape.note({.rule = std::move(rule)}, in, out);
  }

  // Outputs of their own, so that none is an input or held elsewhere.
  static Values fresh(const Values& list) {
    Values result;
    for (const Matrix& m : list) result.push_back(detach(m));
    return result;
  }
};

std::vector<Matrix> with_gradient(const Values& inputs, const Rule& forward, const Rule& backward) {
  auto* tape = TapeCalls::innermost();
  Values outputs;
  {
    const NoGrad quiet;
    outputs = forward(inputs);
  }
  if (!tape) return outputs;
  bool tracked = false;
  for (const Matrix& m : inputs) tracked = tracked || tape->tracked(m.tensor());
  if (!tracked) return outputs;
  outputs = TapeCalls::fresh(outputs);
  const size_t count = inputs.size();
  TapeCalls::note(*tape, inputs, outputs, [backward, count](const Values& grads, auto&) {
    Values in = backward(grads);
    if (in.size() != count) {
      invalid("with_gradient", "backward gave {} gradients, expected {}", in.size(), count);
    }
    return in;
  });
  return outputs;
}

std::vector<Matrix> recompute(const Rule& fn, const Values& inputs) {
  auto* tape = TapeCalls::innermost();
  if (!tape) return fn(inputs);
  const auto log = std::make_shared<DrawLog>();
  const auto run = [fn, log](const Values& values) {
    DrawLog* const outer = std::exchange(draw_log, log.get());
    struct Restore {
      DrawLog* outer;
      ~Restore() { draw_log = outer; }
    } restore{outer};
    return fn(values);
  };
  Values outputs;
  {
    const NoGrad quiet;
    outputs = TapeCalls::fresh(run(inputs));
  }
  TapeCalls::note(*tape, inputs, outputs, [run, log, inputs](const Values& grads, auto& outer) {
    log->replay = true;
    log->next = 0;
    using Impl = std::remove_reference_t<decltype(outer)>;
    Impl inner;
    Values again;
    for (const Matrix& m : inputs) {
      again.push_back(matrix::record<Again>({m}));
      if (is_float(m.dtype())) inner.add_leaf(again.back().tensor(), true);
    }
    inner.open();
    Values results;
    try {
      results = run(again);
    } catch (...) {
      inner.close();
      throw;
    }
    inner.close();
    for (size_t i = 0; i < results.size(); ++i) {
      if (grads[i].valid()) inner.add(results[i].tensor(), grads[i]);
    }
    inner.pull();
    // Parameters that fn uses.
    for (const auto& leaf : inner.leaves) {
      const auto it = inner.grads.find(leaf.tensor.get());
      if (leaf.watched || it == inner.grads.end()) continue;
      outer.add_leaf(leaf.tensor, false);
      outer.add(leaf.tensor, it->second);
    }
    std::vector<TensorRef> in;
    for (const Matrix& m : again) in.push_back(m.tensor());
    return inner.taken(in);
  });
  return outputs;
}

Matrix draw_step(const Matrix& counter) {
  if (draw_log && draw_log->replay) return draw_log->steps.at(draw_log->next++);
  const NoGrad quiet;
  const Matrix value = matrix::copy(counter);
  matrix::advance(counter);
  if (draw_log) draw_log->steps.push_back(value);
  return value;
}

}  // namespace oa::ml
