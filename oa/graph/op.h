// What an op is: one struct with its name, shape rule and meaning; `define_op` turns it into data.
//
// A struct of an op has
//   static constexpr OpInfo kInfo;
//   struct Attrs { ... };                       a plain aggregate of at most 8 fields, or NoAttrs
//   static void infer(Infer&, const Attrs&);    checks operands, states the results
//   static void samples(Samples&);              what tests call it with (samples.h)
// and what its kind asks for:
//   Elementwise  static Value emit(Emit&, const Attrs&);            one element of the result
//   Movement     static AffineMap view(const View&, const Attrs&);  where an element comes from
//   Reduction    static ReduceSpec reduce(const Infer&, const Attrs&); axes and how to combine
//   Contraction  static ContractSpec contract(const Infer&, const Attrs&);
//   Kernel       static void lower(Lower&, const Attrs&);           launches of its own kernels
//   Composite    static std::vector<Matrix> define(std::span<const Matrix>, const Attrs&);
//   Effect       the recorder's own: assignment into storage
// An op whose results are constant for every derivative has
//   static constexpr bool kDetached = true;
// one that treats some inputs so has
//   static constexpr u32 kDetachedInputs = ...;   bit i: input i
// and others may state their gradient (gradient.h says when they must):
//   static std::vector<TensorRef> gradient(const Gradient&, const Attrs&);   one per input, or null
// A field of type Scalar is a runtime value of the program: it never enters a hash.
// An op that checks indices may say how many are legal, for the message of the error:
//   static i64 index_limit(const Infer&, const Attrs&);   else the first extent of operand 0
#pragma once

#include <concepts>
#include <memory>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "oa/core/dtype.h"
#include "oa/core/error.h"
#include "oa/core/hash.h"
#include "oa/core/precision.h"
#include "oa/core/ref.h"
#include "oa/core/shape.h"
#include "oa/graph/affine.h"
#include "oa/graph/samples.h"
#include "oa/kernel/lang.h"

namespace oa::graph {

class Emit;
class View;
class Lower;
class Tensor;
using TensorRef = Ref<Tensor>;
struct Gradient;

struct Spec {
  DType dtype = DType::F32;
  Shape shape;
  bool operator==(const Spec&) const = default;
};

enum class OpKind : u8 { Elementwise, Movement, Reduction, Contraction, Kernel, Composite, Effect };
constexpr bool is_pointwise(OpKind k) { return k <= OpKind::Movement; }

struct OpInfo {
  std::string_view name;
  OpKind kind = OpKind::Elementwise;
  // Elementwise ops that read an input at computed positions name it here (bit i: input i); such an
  // input is in memory before the op runs.
  u32 indexed_inputs = 0;
  // Rough cost of one element in additions; decides between computing again and storing.
  f32 cost = 1;
  // Draws on a random stream or has another effect beyond its result: never merged or dropped.
  bool pure = true;
  // Reads its operands from memory and fuses only with ops of this kind: the updates of a model's
  // parameters, whose equal kernels then run side by side as one dispatch.
  bool apart = false;
  // Takes a value from the host that must differ from run to run (an implicit seed): not
  // capturable.
  bool host_state = false;

  bool reads_indexed(size_t input) const {
    return input < 32 && (indexed_inputs >> input & 1) != 0;
  }
};

// A number that may change from run to run without compiling anything. Inside a definition of a
// composite op it is only a name for the runtime value: it may be handed on, not read.
class Scalar {
 public:
  Scalar() = default;
  Scalar(f64 v) : value_(v) {}  // NOLINT(google-explicit-constructor)
  f64 value() const {
    OA_CHECK(source_ == kNone);
    return value_;
  }
  static constexpr u32 kNone = ~0u;
  u32 source() const { return source_; }
  f64 bits() const { return value_; }
  void set_source(u32 source) { source_ = source; }

 private:
  f64 value_ = 0;
  u32 source_ = kNone;  // position among the runtime scalars of the graph being rewritten
};

struct NoAttrs {};

// Operands as the shape rule sees them, and the results that it states.
class Infer {
 public:
  Infer(std::string_view op, std::span<const Spec* const> inputs) : op_(op), inputs_(inputs) {}
  std::string_view op() const { return op_; }
  u32 count() const { return static_cast<u32>(inputs_.size()); }
  const Spec& in(u32 i) const { return *inputs_[i]; }
  const Shape& shape(u32 i) const { return inputs_[i]->shape; }
  DType dtype(u32 i) const { return inputs_[i]->dtype; }
  void out(DType dtype, Shape shape) { outputs_.push_back({dtype, std::move(shape)}); }
  std::vector<Spec>& outputs() { return outputs_; }

  // Throws InvalidArgument that names the op.
  template <class... Args>
  [[noreturn]] void reject(fmt::format_string<Args...> text, Args&&... args) const {
    invalid(op_, text, std::forward<Args>(args)...);
  }

 private:
  std::string_view op_;
  std::span<const Spec* const> inputs_;
  std::vector<Spec> outputs_;
};

// How a reduction combines elements. State is a tuple of values of fixed types.
struct Reducer {
  using Value = kernel::Value;
  // The state of no elements.
  std::vector<Value> (*init)(kernel::Scalar in);
  // One more element; `position` is its U32 index along the reduced axes.
  std::vector<Value> (*step)(std::span<const Value> state, const Value& x, const Value& position);
  // Two states of disjoint elements; any order of the two.
  std::vector<Value> (*merge)(std::span<const Value> a, std::span<const Value> b);
  // The result; `count` is the number of elements.
  Value (*finish)(std::span<const Value> state, i64 count, kernel::Scalar out);
  bool uses_position = false;
};

struct ReduceSpec {
  const Reducer* reducer = nullptr;
  std::vector<u32> axes;  // of input 0, ascending
};

// C[b.., m, n] = sum over k of A[b.., m, k] * B[b.., k, n], with operands as given or with their
// last two axes swapped. Batch axes broadcast.
struct ContractSpec {
  bool transpose_a = false;
  bool transpose_b = false;
  Precision precision = Precision::F32;  // of 32-bit floats
};

// One attribute as data: numbers, flags, enums and dtypes as i64, scalars as f64.
using AttrValue = std::variant<i64, f64, Dims>;

// Attributes of one node, type-erased.
class AttrsBox {
 public:
  virtual ~AttrsBox() = default;
  virtual const void* get() const = 0;
  virtual void hash(Hasher& h) const = 0;
  virtual void scalars(std::vector<Scalar>& out) const = 0;
  // A copy whose k-th Scalar names the runtime value first + k.
  virtual std::shared_ptr<const AttrsBox> symbolic(u32 first) const = 0;
  virtual std::vector<AttrValue> values() const = 0;  // in the order of the fields
};
using AttrsPtr = std::shared_ptr<const AttrsBox>;

struct OpDef {
  OpInfo info;
  void (*infer)(Infer&, const void*) = nullptr;
  kernel::Value (*emit)(Emit&, const void*) = nullptr;
  AffineMap (*view)(const View&, const void*) = nullptr;
  ReduceSpec (*reduce)(const Infer&, const void*) = nullptr;
  ContractSpec (*contract)(const Infer&, const void*) = nullptr;
  void (*lower)(Lower&, const void*) = nullptr;
  std::vector<TensorRef> (*define)(std::span<const TensorRef>, const void*) = nullptr;
  std::vector<TensorRef> (*gradient)(const Gradient&, const void*) = nullptr;
  bool detached = false;
  u32 detached_inputs = 0;
  i64 (*index_limit)(const Infer&, const void*) = nullptr;
  void (*samples)(Samples&) = nullptr;
  std::string_view name() const { return info.name; }
};

// --- Attributes by reflection -------------------------------------------------------------------

struct AnyField {
  template <class T>
  operator T() const;  // NOLINT: only counts the fields of an aggregate
};

template <class T, class... Fields>
consteval u32 field_count() {
  if constexpr (requires { T{Fields{}..., AnyField{}}; }) {
    return field_count<T, Fields..., AnyField>();
  } else {
    return sizeof...(Fields);
  }
}

// Calls f on each field of an aggregate, in order.
template <class T, class F>
void for_each_field(T& attrs, F&& f) {
  constexpr u32 n = field_count<std::remove_const_t<T>>();
  static_assert(n <= 8, "attributes have at most 8 fields");
  auto all = [&](auto&... fields) { (f(fields), ...); };
  if constexpr (n == 1) {
    auto& [a] = attrs;
    all(a);
  } else if constexpr (n == 2) {
    auto& [a, b] = attrs;
    all(a, b);
  } else if constexpr (n == 3) {
    auto& [a, b, c] = attrs;
    all(a, b, c);
  } else if constexpr (n == 4) {
    auto& [a, b, c, d] = attrs;
    all(a, b, c, d);
  } else if constexpr (n == 5) {
    auto& [a, b, c, d, e] = attrs;
    all(a, b, c, d, e);
  } else if constexpr (n == 6) {
    auto& [a, b, c, d, e, g] = attrs;
    all(a, b, c, d, e, g);
  } else if constexpr (n == 7) {
    auto& [a, b, c, d, e, g, h] = attrs;
    all(a, b, c, d, e, g, h);
  } else if constexpr (n == 8) {
    auto& [a, b, c, d, e, g, h, i] = attrs;
    all(a, b, c, d, e, g, h, i);
  }
}

inline void hash_field(Hasher&, const Scalar&) {}
inline void hash_field(Hasher& h, const Dims& dims) {
  h.add(dims.size());
  for (i64 d : dims) h.add(d);
}
template <class T>
  requires(std::is_arithmetic_v<T> || std::is_enum_v<T>)
void hash_field(Hasher& h, const T& x) {
  if constexpr (std::same_as<T, bool>) {
    h.add(static_cast<u8>(x));
  } else {
    h.add(x);
  }
}

inline AttrValue field_value(const Scalar& s) { return s.value(); }
inline AttrValue field_value(const Dims& dims) { return dims; }
template <class T>
  requires(std::is_arithmetic_v<T> || std::is_enum_v<T>)
AttrValue field_value(const T& x) {
  return static_cast<i64>(x);
}

template <class T>
class TypedAttrs final : public AttrsBox {
 public:
  explicit TypedAttrs(T value) : value_(std::move(value)) {}
  const void* get() const override { return &value_; }
  void hash(Hasher& h) const override {
    for_each_field(value_, [&](const auto& field) { hash_field(h, field); });
  }
  void scalars(std::vector<Scalar>& out) const override {
    for_each_field(value_, [&](const auto& field) {
      if constexpr (std::same_as<std::decay_t<decltype(field)>, Scalar>) out.push_back(field);
    });
  }
  AttrsPtr symbolic(u32 first) const override {
    auto copy = std::make_shared<TypedAttrs>(value_);
    for_each_field(copy->value_, [&](auto& field) {
      if constexpr (std::same_as<std::decay_t<decltype(field)>, Scalar>) field.set_source(first++);
    });
    return copy;
  }
  std::vector<AttrValue> values() const override {
    std::vector<AttrValue> list;
    for_each_field(value_, [&](const auto& field) { list.push_back(field_value(field)); });
    return list;
  }

 private:
  T value_;
};

// --- From a struct to data ----------------------------------------------------------------------

template <class T>
concept OpStruct = requires(Infer& in, const typename T::Attrs& attrs, Samples& samples) {
  { T::kInfo } -> std::convertible_to<OpInfo>;
  T::infer(in, attrs);
  requires T::kInfo.kind == OpKind::Effect || requires { T::samples(samples); };
};

template <class T>
const typename T::Attrs& attrs_of(const void* p) {
  return *static_cast<const typename T::Attrs*>(p);
}

// The op's data, made once. A struct that lacks what its kind asks for does not compile.
template <OpStruct T>
const OpDef& op_def() {
  static constexpr OpKind kind = T::kInfo.kind;
  static const OpDef def = [] {
    OpDef d;
    d.info = T::kInfo;
    d.infer = [](Infer& in, const void* a) { T::infer(in, attrs_of<T>(a)); };
    if constexpr (kind == OpKind::Elementwise) {
      d.emit = [](Emit& e, const void* a) -> kernel::Value { return T::emit(e, attrs_of<T>(a)); };
    } else if constexpr (kind == OpKind::Movement) {
      d.view = [](const View& v, const void* a) { return T::view(v, attrs_of<T>(a)); };
    } else if constexpr (kind == OpKind::Reduction) {
      d.reduce = [](const Infer& in, const void* a) { return T::reduce(in, attrs_of<T>(a)); };
    } else if constexpr (kind == OpKind::Contraction) {
      d.contract = [](const Infer& in, const void* a) { return T::contract(in, attrs_of<T>(a)); };
    } else if constexpr (kind == OpKind::Kernel) {
      d.lower = [](Lower& l, const void* a) { T::lower(l, attrs_of<T>(a)); };
    } else if constexpr (kind == OpKind::Composite) {
      d.define = [](std::span<const TensorRef> in, const void* a) {
        return T::define(in, attrs_of<T>(a));
      };
    }
    d.index_limit = [](const Infer& in, const void* a) -> i64 {
      if constexpr (requires { T::index_limit(in, attrs_of<T>(a)); }) {
        return T::index_limit(in, attrs_of<T>(a));
      } else {
        return in.count() > 0 && in.shape(0).rank() > 0 ? in.shape(0)[0] : 0;
      }
    };
    if constexpr (requires { T::kDetached; }) d.detached = T::kDetached;
    if constexpr (requires { T::kDetachedInputs; }) d.detached_inputs = T::kDetachedInputs;
    if constexpr (requires(const Gradient& g, const typename T::Attrs& a) { T::gradient(g, a); }) {
      d.gradient = [](const Gradient& g, const void* a) -> std::vector<TensorRef> {
        return T::gradient(g, attrs_of<T>(a));
      };
    }
    if constexpr (kind != OpKind::Effect) d.samples = T::samples;
    return d;
  }();
  return def;
}

// The ops of a family, for the list of all ops.
template <OpStruct... Ts>
std::span<const OpDef* const> op_list() {
  static const OpDef* const list[] = {&op_def<Ts>()...};
  return list;
}

template <OpStruct T>
AttrsPtr make_attrs(typename T::Attrs attrs) {
  return std::make_shared<TypedAttrs<typename T::Attrs>>(std::move(attrs));
}

}  // namespace oa::graph
