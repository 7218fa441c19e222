// The recorded graph: nodes with meaning, and the values (tensors) that users hold.
//
// A Tensor is either pending (the output of a node of some graph) or ready (elements in a Storage).
// Recording checks shapes and dtypes at the call and runs nothing.
#pragma once

#include <functional>
#include <vector>

#include "oa/device/device.h"
#include "oa/graph/op.h"

namespace oa::graph {

class Graph;
struct LeafOwner;

// Where an op applied to values is recorded: the engine's pending graph, or a graph under
// construction by a compile stage.
class Recorder : public RefCounted {
 public:
  virtual ~Recorder() = default;
  virtual Graph& graph() = 0;
  // Throws FailedPrecondition if values of this engine can no longer be used.
  virtual void check_open(std::string_view op) = 0;
  // True while a stage rewrites a graph: its leaves are fixed, so every value must come from them
  // through nodes.
  virtual bool rewriting() const { return false; }
  // What products are computed in that do not say themselves; not Precision::Engine.
  virtual Precision precision() const { return Precision::F32; }
  // What products are computed in that ask for `p`: F32 where the device cannot round operands.
  virtual Precision usable(Precision p) const { return p; }
  // Of a value without elements: "operand 1 " and this, for the error.
  virtual std::string_view why_missing() const {
    return "was never computed because its batch failed or its engine was closed";
  }
};

// Elements in device memory, shared by the tensors that are views of them.
class Storage : public RefCounted {
 public:
  // `bytes` from `offset` on in `memory`; `release` gives it back when the last holder lets go.
  Storage(const device::Memory& memory, u64 offset, u64 bytes, std::function<void()> release);
  ~Storage() { release_(); }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  u64 address() const { return memory_.address + offset_; }
  u64 bytes() const { return bytes_; }
  const device::Memory& memory() const { return memory_; }
  u64 offset() const { return offset_; }
  // Tells storages apart, also those that have the same memory one after the other.
  u64 serial() const { return serial_; }

  u64 version = 0;  // counts replacements of the elements

  // The pending assignment that last wrote this storage, within one graph: readers recorded after
  // it see its value.
  u64 writer_graph = 0;  // Graph::serial()
  u32 writer_node = 0;
  // The first leaf of one graph that has its elements here.
  u64 leaf_graph = 0;
  u32 leaf = 0;

 private:
  device::Memory memory_;
  u64 offset_;
  u64 bytes_;
  u64 serial_;
  std::function<void()> release_;
};
using StorageRef = Ref<Storage>;

inline constexpr u32 kNoNode = ~0u;

// A value: shape and dtype, and where its elements are or will come from.
class Tensor : public RefCounted {
 public:
  Tensor(Recorder& recorder, Spec spec);
  // The elements of `of` under another shape, whatever becomes of them: what is assigned to one is
  // in the other. `of` may be pending, and is no part of a graph that a stage rewrites.
  static TensorRef view(const TensorRef& of, const Shape& shape);
  ~Tensor();
  const Spec& spec() const { return spec_; }
  const Shape& shape() const { return spec_.shape; }
  DType dtype() const { return spec_.dtype; }
  Recorder& recorder() const { return *recorder_; }

  bool pending() const { return graph() != nullptr; }
  Graph* graph() const { return base_ ? base_->graph_ : graph_; }
  u32 node() const { return base_ ? base_->node_ : node_; }
  u32 output() const { return base_ ? base_->output_ : output_; }
  const StorageRef& storage() const { return base_ ? base_->storage_ : storage_; }
  // Equal for values that share their elements.
  const void* elements() const {
    if (storage()) return storage().get();
    return base_ ? base_.get() : this;
  }

  // Grows whenever the elements are replaced in place, here or through another view of them.
  u64 version() const {
    if (base_) return base_->version();
    return version_ + (storage_ ? storage_->version : 0);
  }

  // Set by who owns this value as a parameter of a model; null for others.
  LeafOwner* owner = nullptr;

  void bind_node(Graph* graph, u32 node, u32 output);
  void bind_storage(StorageRef storage);  // ready

 private:
  friend class Graph;
  Ref<Recorder> recorder_;
  Spec spec_;
  Graph* graph_ = nullptr;
  u32 node_ = kNoNode;
  u32 output_ = 0;
  StorageRef storage_;
  TensorRef base_;      // of a view of what had no storage yet: the value itself, no view
  u64 version_ = 0;     // replacements while there was no storage
  u64 leaf_graph_ = 0;  // serial of the graph that last read this tensor, as its leaf `leaf_`
  u32 leaf_ = 0;
};

// One operand: an output of an earlier node, or a leaf (node == kNoNode, output = leaf index).
struct Operand {
  u32 node = kNoNode;
  u32 output = 0;
  bool is_leaf() const { return node == kNoNode; }
  bool operator==(const Operand&) const = default;
};

struct Output {
  Spec spec;
  Tensor* holder = nullptr;  // the value that a user (or an earlier leaf) holds; null when dropped
};

struct Node {
  const OpDef* op = nullptr;
  AttrsPtr attrs;
  std::vector<Operand> inputs;
  std::vector<Output> outputs;
  u32 first_scalar = 0;  // of Graph::scalars
  u32 target = kNoNode;  // Effect: the leaf whose storage is written
  const void* attr() const { return attrs->get(); }
};

struct Leaf {
  Spec spec;
  TensorRef tensor;  // ready; keeps the storage alive until the program has run
  u32 first = 0;     // the first leaf with the same storage; this one if there is no other
};

class Graph {
 public:
  explicit Graph(Recorder& recorder);
  virtual ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Checks and appends one op; the results are pending tensors. Throws before any change.
  std::vector<TensorRef> record(const OpDef& op, AttrsPtr attrs, std::span<const TensorRef> inputs);

  // Records that `target` (ready, or pending in this graph with storage from an earlier assignment)
  // takes the elements of `value` in place. Equal shapes and dtypes.
  void record_assign(const TensorRef& target, const TensorRef& value);

  // A value that stands for an operand of this graph while a stage rewrites it. Drop it before the
  // graph.
  TensorRef stand_in(Operand operand);
  Operand operand_of(const TensorRef& tensor);

  bool empty() const { return nodes.empty(); }
  const Spec& spec(const Operand& operand) const {
    return operand.is_leaf() ? leaves[operand.output].spec
                             : nodes[operand.node].outputs[operand.output].spec;
  }
  Recorder& recorder() const { return *recorder_; }
  u64 serial() const { return serial_; }

  // Structure without runtime scalars: equal hashes mean the same compiled program.
  Hash128 structure() const;

  std::vector<Node> nodes;  // in recording order, which is a topological order
  std::vector<Leaf> leaves;
  std::vector<Scalar> scalars;  // runtime values, in node order

 private:
  u32 leaf_of(const TensorRef& tensor);
  Operand reshaped(Operand operand, const Spec& spec);
  Recorder* recorder_;
  u64 serial_;  // tells graphs apart that lived at the same address
};

const OpDef& assign_op();

}  // namespace oa::graph
