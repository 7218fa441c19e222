#include "oa/graph/graph.h"

#include <atomic>

#include "oa/graph/gradient.h"
#include "oa/graph/reshape.h"

namespace oa::graph {
namespace {

// Assignment: the only effect on storage. Its input is the value; Node::target is the leaf written.
struct Assign {
  static constexpr OpInfo kInfo{.name = "assign", .kind = OpKind::Effect, .pure = false};
  using Attrs = NoAttrs;
  static void infer(Infer& in, const Attrs&) { in.out(in.dtype(0), in.shape(0)); }
};

u64 next_serial() {
  static std::atomic<u64> serial = 0;  // only tells graphs apart; never part of a result
  return ++serial;
}

}  // namespace

const OpDef& assign_op() { return op_def<Assign>(); }

Storage::Storage(const device::Memory& memory, u64 offset, u64 bytes, std::function<void()> release)
    : memory_(memory),
      offset_(offset),
      bytes_(bytes),
      serial_(next_serial()),
      release_(std::move(release)) {}

Tensor::Tensor(Recorder& recorder, Spec spec) : recorder_(&recorder), spec_(std::move(spec)) {}

TensorRef Tensor::view(const TensorRef& of, const Shape& shape) {
  TensorRef view(new Tensor(of->recorder(), {of->dtype(), shape}));
  if (of->pending()) {
    view->base_ = of->base_ ? of->base_ : of;
  } else {
    view->storage_ = of->storage();
  }
  return view;
}

Tensor::~Tensor() {
  if (graph_) graph_->nodes[node_].outputs[output_].holder = nullptr;
}

void Tensor::bind_node(Graph* graph, u32 node, u32 output) {
  if (graph_) graph_->nodes[node_].outputs[output_].holder = nullptr;
  graph_ = graph;
  node_ = node;
  output_ = output;
  if (graph_) graph_->nodes[node_].outputs[output_].holder = this;
}

void Tensor::bind_storage(StorageRef storage) {
  bind_node(nullptr, kNoNode, 0);
  storage_ = std::move(storage);
}

Graph::Graph(Recorder& recorder) : recorder_(&recorder), serial_(next_serial()) {}

Graph::~Graph() {
  // Values that were never computed become unusable rather than dangling.
  for (Node& node : nodes) {
    for (Output& out : node.outputs) {
      if (out.holder) out.holder->graph_ = nullptr;
    }
  }
}

u32 Graph::leaf_of(const TensorRef& tensor) {
  if (tensor->leaf_graph_ == serial_) return tensor->leaf_;
  tensor->leaf_graph_ = serial_;
  tensor->leaf_ = static_cast<u32>(leaves.size());
  Storage& storage = *tensor->storage();
  if (storage.leaf_graph != serial_) {
    storage.leaf_graph = serial_;
    storage.leaf = tensor->leaf_;
  }
  leaves.push_back({tensor->spec(), tensor, storage.leaf});
  return tensor->leaf_;
}

Operand Graph::operand_of(const TensorRef& tensor) {
  if (tensor->base_ && tensor->pending()) {
    return reshaped(operand_of(tensor->base_), tensor->spec());
  }
  const bool assigned_since = tensor->graph() == this && tensor->storage() &&
                              tensor->storage()->writer_graph == serial_ &&
                              tensor->storage()->writer_node != tensor->node();
  if (tensor->graph() == this && !assigned_since) return {tensor->node(), tensor->output()};
  OA_CHECK(assigned_since || (!tensor->pending() && tensor->storage()));
  const Storage& storage = *tensor->storage();
  if (storage.writer_graph != serial_) return {kNoNode, leaf_of(tensor)};
  // Another view of storage that this graph has assigned: read the assigned value.
  return reshaped({storage.writer_node, 0}, tensor->spec());
}

Operand Graph::reshaped(Operand operand, const Spec& wanted) {
  if (spec(operand) == wanted) return operand;
  Node node{.op = &op_def<Reshape>(), .attrs = make_attrs<Reshape>({wanted.shape})};
  node.inputs = {operand};
  node.outputs = {{wanted, nullptr}};
  node.first_scalar = static_cast<u32>(scalars.size());
  nodes.push_back(std::move(node));
  return {static_cast<u32>(nodes.size() - 1), 0};
}

TensorRef Graph::stand_in(Operand operand) {
  TensorRef t(new Tensor(*recorder_, spec(operand)));
  if (operand.is_leaf()) {
    t->bind_storage(leaves[operand.output].tensor->storage());
    t->leaf_graph_ = serial_;
    t->leaf_ = operand.output;
  } else {
    t->bind_node(this, operand.node, operand.output);
  }
  return t;
}

std::vector<TensorRef> Graph::record(const OpDef& op, AttrsPtr attr,
                                     std::span<const TensorRef> inputs) {
  recorder_->check_open(op.name());
  constexpr u32 kSmall = 8;
  const Spec* small[kSmall];
  std::vector<const Spec*> large;
  const Spec** specs = small;
  if (inputs.size() > kSmall) {
    large.resize(inputs.size());
    specs = large.data();
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i]) invalid(op.name(), "operand {} is empty, expected a value", i);
    if (&inputs[i]->recorder() != recorder_) {
      invalid(op.name(), "operand {} belongs to another engine, expected operands of one engine",
              i);
    }
    if (!inputs[i]->pending() && !inputs[i]->storage()) {
      fail(ErrorKind::FailedPrecondition, op.name(), "operand {} {}", i, recorder_->why_missing());
    }
    specs[i] = &inputs[i]->spec();
  }
  Infer infer(op.name(), std::span<const Spec* const>(specs, inputs.size()));
  op.infer(infer, attr->get());
  Observer* const listener = recorder_->rewriting() ? nullptr : observer();
  if (listener) listener->before(op, inputs, infer.outputs());

  Node node{.op = &op, .attrs = std::move(attr)};
  node.inputs.reserve(inputs.size());
  for (const TensorRef& t : inputs) node.inputs.push_back(operand_of(t));
  node.first_scalar = static_cast<u32>(scalars.size());
  node.attrs->scalars(scalars);

  std::vector<TensorRef> results;
  results.reserve(infer.outputs().size());
  node.outputs.reserve(infer.outputs().size());
  for (Spec& spec : infer.outputs()) {
    node.outputs.push_back({spec, nullptr});
    results.emplace_back(new Tensor(*recorder_, std::move(spec)));
  }
  const auto id = static_cast<u32>(nodes.size());
  nodes.push_back(std::move(node));
  for (u32 i = 0; i < results.size(); ++i) results[i]->bind_node(this, id, i);
  if (listener) listener->after(op, nodes[id].attrs, inputs, results);
  return results;
}

void Graph::record_assign(const TensorRef& target, const TensorRef& value) {
  recorder_->check_open("assign");
  if (target->spec() != value->spec()) {
    invalid("assign", "value does not fit, got {} {}, expected {} {}", token(value->dtype()),
            value->shape(), token(target->dtype()), target->shape());
  }
  if (&target->recorder() != recorder_ || &value->recorder() != recorder_) {
    invalid("assign", "value belongs to another engine, expected operands of one engine");
  }
  if (!value->pending() && !value->storage()) {
    fail(ErrorKind::FailedPrecondition, "assign", "value {}", recorder_->why_missing());
  }
  const TensorRef& own = target->base_ ? target->base_ : target;
  Node node{.op = &assign_op(), .attrs = make_attrs<Assign>({})};
  node.inputs = {reshaped(operand_of(value), own->spec())};
  node.outputs = {{own->spec(), nullptr}};
  node.first_scalar = static_cast<u32>(scalars.size());
  const StorageRef storage = own->storage();
  if (storage) node.target = leaf_of(own);
  const auto id = static_cast<u32>(nodes.size());
  nodes.push_back(std::move(node));
  own->bind_node(this, id, 0);
  if (storage) {
    storage->writer_graph = serial_;
    storage->writer_node = id;
    ++storage->version;
  } else {
    ++own->version_;
  }
}

Hash128 Graph::structure() const {
  Hasher h;
  h.add(static_cast<u64>(leaves.size()));
  for (const Leaf& leaf : leaves) {
    h.add(leaf.spec.dtype);
    hash_field(h, leaf.spec.shape);
    h.add(leaf.first);  // what may be computed in place depends on who shares memory
  }
  h.add(static_cast<u64>(nodes.size()));
  for (const Node& node : nodes) {
    h.add(reinterpret_cast<u64>(node.op));  // stable within the process; never written to disk
    node.attrs->hash(h);
    h.add(node.target);
    h.add(static_cast<u32>(node.inputs.size()));
    for (const Operand& in : node.inputs) h.add(static_cast<u64>(in.node) << 32 | in.output);
    // Output specs follow from the op and its inputs, so only what is held is added.
    for (const Output& out : node.outputs) h.add(static_cast<u8>(out.holder != nullptr));
  }
  return h.finish();
}

}  // namespace oa::graph
