// The kernel language: C++ functions over typed values that record the kernel IR while they run.
//
//   Kernel k = trace("axpy", target, 16, [] {
//     Buffer x = param_buffer(Scalar::F32), y = param_buffer(Scalar::F32);
//     U64 n = param_u64();
//     For(group() * width() + lane(), cast<U32>(n), group_count() * width(), [&](U32 i) {
//       y[i] = fma(F32(x[i]), 2.0f, F32(y[i]));
//     });
//   });
//
// Host `if` and `for` specialise the kernel; `If`, `For` and `While` record control flow. A kernel
// must work for any power-of-two width. Values are immutable; `Var` is state private to a lane;
// `Shared` is memory of the workgroup. `Value` is a value whose type is known only while tracing
// (generated kernels use it); `F32`, `U32` ... are the same with the type checked by the compiler.
// A type error in a traced operation throws oa::Error (Internal) that names the operation.
#pragma once

#include <concepts>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "oa/kernel/ir.h"

namespace oa::kernel {

template <class T>
concept HostNumber = std::is_arithmetic_v<T>;

class Value {
 public:
  Value() = default;
  Value(ValueId id, Type type) : id(id), type(type) {}
  Scalar scalar() const { return type.scalar; }
  bool valid() const { return id != kNoValue; }

  ValueId id = kNoValue;
  Type type;
};

// Constants. The host number must be representable in the type; floats round to nearest.
Value constant(Scalar s, f64 x);
Value constant_int(Scalar s, i64 x);
template <HostNumber T>
Value literal(Scalar s, T x) {
  if constexpr (std::is_floating_point_v<T>) return constant(s, static_cast<f64>(x));
  return is_float(s) ? constant(s, static_cast<f64>(x)) : constant_int(s, static_cast<i64>(x));
}

// Records one instruction with plain operands; the functions below are its readable spelling.
Value emit(Op op, Type type, std::initializer_list<Value> args, u64 imm = 0);

Value unary(Op op, const Value& a);
Value binary(Op op, const Value& a, const Value& b);   // equal types, same result type
Value compare(Op op, const Value& a, const Value& b);  // equal types, result Bool

#define OA_KERNEL_BINARY(token, op, fn)                                                    \
  inline Value operator token(const Value& a, const Value& b) { return fn(Op::op, a, b); } \
  template <class V, HostNumber T>                                                         \
    requires std::same_as<V, Value>                                                        \
  Value operator token(const V& a, T b) {                                                  \
    return fn(Op::op, a, literal(a.scalar(), b));                                          \
  }                                                                                        \
  template <HostNumber T, class V>                                                         \
    requires std::same_as<V, Value>                                                        \
  Value operator token(T a, const V& b) {                                                  \
    return fn(Op::op, literal(b.scalar(), a), b);                                          \
  }
OA_KERNEL_BINARY(+, Add, binary)
OA_KERNEL_BINARY(-, Sub, binary)
OA_KERNEL_BINARY(*, Mul, binary)
OA_KERNEL_BINARY(/, Div, binary)
OA_KERNEL_BINARY(%, Rem, binary)
OA_KERNEL_BINARY(&, And, binary)
OA_KERNEL_BINARY(|, Or, binary)
OA_KERNEL_BINARY(^, Xor, binary)
OA_KERNEL_BINARY(<<, Shl, binary)
OA_KERNEL_BINARY(>>, Shr, binary)
OA_KERNEL_BINARY(==, Eq, compare)
OA_KERNEL_BINARY(!=, Ne, compare)
OA_KERNEL_BINARY(<, Lt, compare)
OA_KERNEL_BINARY(<=, Le, compare)
OA_KERNEL_BINARY(>, Gt, compare)
OA_KERNEL_BINARY(>=, Ge, compare)
#undef OA_KERNEL_BINARY

inline Value operator-(const Value& a) { return unary(Op::Neg, a); }
inline Value operator!(const Value& a) { return unary(Op::Not, a); }
inline Value operator~(const Value& a) { return unary(Op::Not, a); }

[[noreturn]] void type_mismatch(const char* what, Scalar got, Scalar expected);

// A value of known scalar type. Host numbers convert implicitly, a `Value` explicitly (checked).
template <Scalar S>
class Val : public Value {
 public:
  static constexpr Scalar kScalar = S;

  template <HostNumber T>
  Val(T x) : Value(literal(S, x)) {}  // NOLINT(google-explicit-constructor)
  explicit Val(const Value& v) : Value(v) {
    if (v.type != Type{S}) type_mismatch("value", v.scalar(), S);
  }

  friend Val operator+(const Val& a, const Val& b) { return Val(binary(Op::Add, a, b)); }
  friend Val operator-(const Val& a, const Val& b) { return Val(binary(Op::Sub, a, b)); }
  friend Val operator*(const Val& a, const Val& b) { return Val(binary(Op::Mul, a, b)); }
  friend Val operator/(const Val& a, const Val& b) { return Val(binary(Op::Div, a, b)); }
  friend Val operator%(const Val& a, const Val& b) { return Val(binary(Op::Rem, a, b)); }
  friend Val operator&(const Val& a, const Val& b) { return Val(binary(Op::And, a, b)); }
  friend Val operator|(const Val& a, const Val& b) { return Val(binary(Op::Or, a, b)); }
  friend Val operator^(const Val& a, const Val& b) { return Val(binary(Op::Xor, a, b)); }
  friend Val operator<<(const Val& a, const Val& b) { return Val(binary(Op::Shl, a, b)); }
  friend Val operator>>(const Val& a, const Val& b) { return Val(binary(Op::Shr, a, b)); }
  friend Val<Scalar::Bool> operator==(const Val& a, const Val& b) {
    return Val<Scalar::Bool>(compare(Op::Eq, a, b));
  }
  friend Val<Scalar::Bool> operator!=(const Val& a, const Val& b) {
    return Val<Scalar::Bool>(compare(Op::Ne, a, b));
  }
  friend Val<Scalar::Bool> operator<(const Val& a, const Val& b) {
    return Val<Scalar::Bool>(compare(Op::Lt, a, b));
  }
  friend Val<Scalar::Bool> operator<=(const Val& a, const Val& b) {
    return Val<Scalar::Bool>(compare(Op::Le, a, b));
  }
  friend Val<Scalar::Bool> operator>(const Val& a, const Val& b) {
    return Val<Scalar::Bool>(compare(Op::Gt, a, b));
  }
  friend Val<Scalar::Bool> operator>=(const Val& a, const Val& b) {
    return Val<Scalar::Bool>(compare(Op::Ge, a, b));
  }
  friend Val operator-(const Val& a) { return Val(unary(Op::Neg, a)); }
  friend Val operator!(const Val& a) { return Val(unary(Op::Not, a)); }
  friend Val operator~(const Val& a) { return Val(unary(Op::Not, a)); }
};

using Bool = Val<Scalar::Bool>;
using I32 = Val<Scalar::I32>;
using U32 = Val<Scalar::U32>;
using I64 = Val<Scalar::I64>;
using U64 = Val<Scalar::U64>;
using F32 = Val<Scalar::F32>;
using F64 = Val<Scalar::F64>;

// Functions on values of any type. Each keeps the static type of its first typed operand.
Value cast(const Value& a, Scalar to);     // see Op::Cast
Value bitcast(const Value& a, Scalar to);  // see Op::Bitcast
template <class T>
T cast(const Value& a) {
  return T(cast(a, T::kScalar));
}
template <class T>
T bitcast(const Value& a) {
  return T(bitcast(a, T::kScalar));
}

Value select(const Value& cond, const Value& a, const Value& b);
Value fma(const Value& a, const Value& b, const Value& c);
inline Value abs(const Value& a) { return unary(Op::Abs, a); }
inline Value sqrt(const Value& a) { return unary(Op::Sqrt, a); }
inline Value floor(const Value& a) { return unary(Op::Floor, a); }
inline Value ceil(const Value& a) { return unary(Op::Ceil, a); }
inline Value trunc(const Value& a) { return unary(Op::Trunc, a); }
inline Value round_even(const Value& a) { return unary(Op::RoundEven, a); }
inline Value min(const Value& a, const Value& b) { return binary(Op::Min, a, b); }
inline Value max(const Value& a, const Value& b) { return binary(Op::Max, a, b); }
inline Value is_nan(const Value& a) { return compare(Op::Ne, a, a); }

template <Scalar S>
Val<S> select(const Bool& cond, const Val<S>& a, const std::type_identity_t<Val<S>>& b) {
  return Val<S>(select(static_cast<const Value&>(cond), static_cast<const Value&>(a),
                       static_cast<const Value&>(b)));
}
template <Scalar S>
Val<S> fma(const Val<S>& a, const std::type_identity_t<Val<S>>& b,
           const std::type_identity_t<Val<S>>& c) {
  return Val<S>(fma(static_cast<const Value&>(a), static_cast<const Value&>(b),
                    static_cast<const Value&>(c)));
}
#define OA_KERNEL_UNARY(name, op)    \
  template <Scalar S>                \
  Val<S> name(const Val<S>& a) {     \
    return Val<S>(unary(Op::op, a)); \
  }
OA_KERNEL_UNARY(abs, Abs)
OA_KERNEL_UNARY(sqrt, Sqrt)
OA_KERNEL_UNARY(floor, Floor)
OA_KERNEL_UNARY(ceil, Ceil)
OA_KERNEL_UNARY(trunc, Trunc)
OA_KERNEL_UNARY(round_even, RoundEven)
#undef OA_KERNEL_UNARY
template <Scalar S>
Val<S> min(const Val<S>& a, const std::type_identity_t<Val<S>>& b) {
  return Val<S>(binary(Op::Min, a, b));
}
template <Scalar S>
Val<S> max(const Val<S>& a, const std::type_identity_t<Val<S>>& b) {
  return Val<S>(binary(Op::Max, a, b));
}
template <Scalar S>
Bool is_nan(const Val<S>& a) {
  return Bool(compare(Op::Ne, a, a));
}
inline U32 mul_hi(const U32& a, const U32& b) { return U32(binary(Op::MulHi, a, b)); }

// Where the kernel runs. Host constants:
const Target& target();
u32 width();           // lanes of the workgroup
u32 subgroup_width();  // lanes of a subgroup
// Values:
U32 lane();  // 0 .. width()-1
U32 group();
U32 group_count();

// A number that may differ from call to call of what is otherwise one kernel, such as the rows of a
// batch: a parameter behind all others, whose value Kernel::extents keeps for the launch. 0 and 1
// stay constants, for code depends on them.
Value extent(Scalar s, i64 x);

// Parameters, in the order of the calls; 8 bytes each.
U64 param_u64();
U32 param_u32();
F32 param_f32();

// Elements in device memory, from an address. Indices are of any integer type; use U32 unless the
// buffer may hold 2^32 elements or more.
class Buffer {
 public:
  class Ref {
   public:
    Ref(const Buffer& buffer, Value index) : buffer_(buffer), index_(index) {}
    void operator=(const Value& v) const { buffer_.store(index_, v); }
    void operator=(const Ref& other) const { buffer_.store(index_, other.load()); }
    Value load() const { return buffer_.load(index_); }
    operator Value() const { return load(); }  // NOLINT(google-explicit-constructor)
    template <Scalar S>
    explicit operator Val<S>() const {
      return Val<S>(load());
    }

   private:
    const Buffer& buffer_;
    Value index_;
  };

  Buffer(Scalar elem, U64 address) : elem_(elem), address_(address) {}

  Ref operator[](const Value& index) const { return Ref(*this, index); }
  template <HostNumber T>
  Ref operator[](T index) const {
    return Ref(*this, literal(Scalar::U32, index));
  }
  Value load(const Value& index, u32 lanes = 1) const;
  // The same with the promise that nobody writes the elements while the kernel runs, neither here
  // nor through another address; GPUs have a faster way for those.
  Value load_constant(const Value& index, u32 lanes = 1) const;
  void store(const Value& index,
             const Value& value) const;  // a vector value stores `lanes` elements
  // The same with the hint that nobody reads the elements soon: large results pass the caches by.
  void store_streaming(const Value& index, const Value& value) const;
  Value atomic(AtomicOp op, const Value& index, const Value& value) const;
  Value compare_exchange(const Value& index, const Value& expected, const Value& value) const;

  Scalar elem() const { return elem_; }
  const U64& address() const { return address_; }

 private:
  Value load(const Value& index, u32 lanes, bool constant) const;
  void store(const Value& index, const Value& value, bool streaming) const;
  Scalar elem_;
  U64 address_;
};

Buffer param_buffer(Scalar elem);

// Vectors of 2 or 4 components, for wide memory access.
Value vec(std::initializer_list<Value> components);
Value vec(std::span<const Value> components);
Value extract(const Value& v, u32 component);

// State private to a lane. `*v` reads it.
class VarValue {
 public:
  explicit VarValue(Type type);
  explicit VarValue(const Value& initial) : VarValue(initial.type) { set(initial); }
  Value get() const;
  void set(const Value& v) const;
  Value operator*() const { return get(); }
  void operator=(const Value& v) const { set(v); }

 private:
  u32 slot_;
  Type type_;
};

template <class T>
class Var {
 public:
  explicit Var(const T& initial) : var_(static_cast<const Value&>(initial)) {}
  template <HostNumber N>
  explicit Var(N initial) : Var(T(initial)) {}
  Var(const Var&) = default;
  T operator*() const { return T(var_.get()); }
  void operator=(const T& v) const { var_.set(v); }
  void operator=(const Var& other) const { var_.set(other.var_.get()); }
  void operator+=(const T& v) const { var_.set(**this + v); }
  void operator-=(const T& v) const { var_.set(**this - v); }
  void operator*=(const T& v) const { var_.set(**this * v); }

 private:
  VarValue var_;
};

// Memory of the workgroup. Cells written by one lane may be read by another only after barrier().
class Shared {
 public:
  class Ref {
   public:
    Ref(const Shared& shared, Value index) : shared_(shared), index_(index) {}
    void operator=(const Value& v) const { shared_.store(index_, v); }
    void operator=(const Ref& other) const { shared_.store(index_, other.load()); }
    Value load() const { return shared_.load(index_); }
    operator Value() const { return load(); }  // NOLINT(google-explicit-constructor)
    template <Scalar S>
    explicit operator Val<S>() const {
      return Val<S>(load());
    }

   private:
    const Shared& shared_;
    Value index_;
  };

  Shared(Scalar elem, u32 count);
  Ref operator[](const Value& index) const { return Ref(*this, index); }
  template <HostNumber T>
  Ref operator[](T index) const {
    return Ref(*this, literal(Scalar::U32, index));
  }
  Value load(const Value& index, u32 lanes = 1) const;
  void store(const Value& index, const Value& value) const;
  Value atomic(AtomicOp op, const Value& index, const Value& value) const;

  u32 slot() const { return slot_; }
  Scalar elem() const { return elem_; }

 private:
  u32 slot_;
  Scalar elem_;
};

// Waits for every lane of the workgroup and orders the named memory (BarrierScope bits). Only in
// uniform control flow.
void barrier(u64 scope = kSharedMemory);

// Lanes of the own subgroup.
Value shuffle(const Value& v, const U32& source);
Value shuffle_xor(const Value& v, u32 mask);
Bool subgroup_any(const Bool& v);
Bool subgroup_all(const Bool& v);

// Combines one value of every lane of the subgroup / workgroup in a fixed order; every lane gets
// the result. `combine` must be commutative up to rounding. group_* call barrier().
using Combine = std::function<Value(const Value&, const Value&)>;
Value subgroup_reduce(const Value& v, const Combine& combine);
Value group_reduce(const Value& v, const Combine& combine);
// The same for a tuple of values that combine together (argmax, Welford, ...).
using CombineTuple =
    std::function<std::vector<Value>(std::span<const Value>, std::span<const Value>)>;
std::vector<Value> subgroup_reduce(std::span<const Value> v, const CombineTuple& combine);
std::vector<Value> group_reduce(std::span<const Value> v, const CombineTuple& combine);

// Matrix fragments, held by a subgroup. Offsets and strides count elements of the fragment's type
// and are uniform. Fragments of 16-bit floats may also lie in a Shared of U32, which takes copies
// of 16 bytes: two elements to a cell.
enum class Layout : u8 { RowMajor, ColMajor };
Type fragment_type(FragUse use, Scalar scalar, u32 rows, u32 cols);
Value frag_fill(Type type, const Value& x);
Value frag_load(Type type, const Buffer& from, const Value& offset, const Value& stride,
                Layout layout);
Value frag_load(Type type, const Shared& from, const Value& offset, const Value& stride,
                Layout layout);
void frag_store(const Buffer& to, const Value& offset, const Value& stride, Layout layout,
                const Value& f);
void frag_store(const Shared& to, const Value& offset, const Value& stride, Layout layout,
                const Value& f);
Value frag_mul_add(const Value& a, const Value& b, const Value& c);
Value frag_add(const Value& a, const Value& b);
Value frag_mul(const Value& a, const Value& b);
Value frag_cast(const Value& c, Scalar to);

// Control flow. A body that changes nothing outside itself has no effect, so results leave through
// Var, Shared or Buffer.
void If(const Bool& cond, const std::function<void()>& then);
void If(const Bool& cond, const std::function<void()>& then,
        const std::function<void()>& otherwise);
// for (i = begin; i < end; i += step); `step` is positive and the same in every lane.
// Unroll::Never keeps compilers from unrolling a body that is long enough as it is.
enum class Unroll : u8 { Allowed, Never };
void For(const Value& begin, const Value& end, const Value& step,
         const std::function<void(const Value&)>& body, Unroll unroll = Unroll::Allowed);
template <class Body>
  requires std::invocable<Body, U32>
void For(const U32& begin, const U32& end, const U32& step, Body body) {
  For(static_cast<const Value&>(begin), static_cast<const Value&>(end),
      static_cast<const Value&>(step), [&](const Value& i) { body(U32(i)); });
}
void While(const std::function<Bool()>& cond, const std::function<void()>& body);

// Traces `body` into a kernel of `width` lanes (a power of two).
Kernel trace(std::string name, const Target& target, u32 width, const std::function<void()>& body);

}  // namespace oa::kernel
