#include "oa/kernel/evaluate.h"

#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "oa/core/dtype.h"
#include "oa/core/error.h"

namespace oa::kernel {
namespace {

template <class T>
T as(u64 bits) {
  if constexpr (std::is_same_v<T, f32>) return std::bit_cast<f32>(static_cast<u32>(bits));
  if constexpr (std::is_same_v<T, f64>) return std::bit_cast<f64>(bits);
  if constexpr (std::is_integral_v<T>) return static_cast<T>(bits);
}

template <class T>
u64 raw(T x) {
  if constexpr (std::is_same_v<T, f32>) return std::bit_cast<u32>(x);
  if constexpr (std::is_same_v<T, f64>) return std::bit_cast<u64>(x);
  if constexpr (std::is_integral_v<T>) return static_cast<std::make_unsigned_t<T>>(x);
}

// As raw(), for results of float arithmetic.
template <class T>
u64 canonical(T x) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(x)) return raw(std::numeric_limits<T>::quiet_NaN());
  }
  return raw(x);
}

[[noreturn]] void unsupported(Op op, Scalar s) {
  fail(ErrorKind::Internal, fmt::format("kernel::{}", name(op)), "not defined for {}", name(s));
}

template <class T>
u64 float_op(Op op, Scalar s, const u64* args) {
  const T a = as<T>(args[0]);
  const auto b = [&] { return as<T>(args[1]); };
  constexpr u64 kSign = u64{1} << (8 * sizeof(T) - 1);
  switch (op) {
    case Op::Neg: return args[0] ^ kSign;
    case Op::Abs: return args[0] & ~kSign;
    case Op::Sqrt: return canonical(std::sqrt(a));
    case Op::Floor: return canonical(std::floor(a));
    case Op::Ceil: return canonical(std::ceil(a));
    case Op::Trunc: return canonical(std::trunc(a));
    case Op::RoundEven: return canonical(std::nearbyint(a));
    case Op::Add: return canonical(a + b());
    case Op::Sub: return canonical(a - b());
    case Op::Mul: return canonical(a * b());
    case Op::Div: return canonical(a / b());
    case Op::Rem: return canonical(std::fmod(a, b()));
    case Op::Min:
      if (std::isnan(a) || std::isnan(b())) return canonical(a + b());
      return raw(a < b() ? a : b());
    case Op::Max:
      if (std::isnan(a) || std::isnan(b())) return canonical(a + b());
      return raw(a > b() ? a : b());
    case Op::Fma: return canonical(std::fma(a, b(), as<T>(args[2])));
    default: unsupported(op, s);
  }
}

// Unsigned arithmetic wraps, so signed types compute in their unsigned counterpart.
template <class T>
u64 integer_op(Op op, Scalar s, const u64* args) {
  using U = std::make_unsigned_t<T>;
  const T a = as<T>(args[0]);
  const U ua = static_cast<U>(a);
  const auto b = [&] { return as<T>(args[1]); };
  const auto ub = [&] { return as<U>(args[1]); };
  constexpr U kBits = 8 * sizeof(T);
  switch (op) {
    case Op::Neg: return raw(static_cast<U>(U{0} - ua));
    case Op::Abs: return raw(a < 0 ? static_cast<U>(U{0} - ua) : ua);
    case Op::Not: return raw(static_cast<U>(~ua));
    case Op::Add: return raw(static_cast<U>(ua + ub()));
    case Op::Sub: return raw(static_cast<U>(ua - ub()));
    case Op::Mul: return raw(static_cast<U>(ua * ub()));
    case Op::Div:
      if (b() == 0) return 0;
      if (std::is_signed_v<T> && ub() == static_cast<U>(-1)) return raw(static_cast<U>(U{0} - ua));
      return raw(static_cast<T>(a / b()));
    case Op::Rem:
      if (b() == 0) return raw(ua);
      if (std::is_signed_v<T> && ub() == static_cast<U>(-1)) return 0;
      return raw(static_cast<T>(a % b()));
    case Op::Min: return raw(a < b() ? a : b());
    case Op::Max: return raw(a > b() ? a : b());
    case Op::MulHi: return (static_cast<u64>(static_cast<u32>(ua)) * static_cast<u32>(ub())) >> 32;
    case Op::And: return raw(static_cast<U>(ua & ub()));
    case Op::Or: return raw(static_cast<U>(ua | ub()));
    case Op::Xor: return raw(static_cast<U>(ua ^ ub()));
    case Op::Shl: return raw(static_cast<U>(ua << (ub() % kBits)));
    case Op::Shr: return raw(static_cast<T>(a >> (ub() % kBits)));
    default: unsupported(op, s);
  }
}

u64 bool_op(Op op, const u64* args) {
  switch (op) {
    case Op::Not: return args[0] ^ 1;
    case Op::And: return args[0] & args[1];
    case Op::Or: return args[0] | args[1];
    case Op::Xor: return args[0] ^ args[1];
    default: unsupported(op, Scalar::Bool);
  }
}

template <class T>
u64 compare_op(Op op, const u64* args) {
  const T a = as<T>(args[0]), b = as<T>(args[1]);
  switch (op) {
    case Op::Eq: return a == b;
    case Op::Ne: return a != b;
    case Op::Lt: return a < b;
    case Op::Le: return a <= b;
    case Op::Gt: return a > b;
    default: return a >= b;
  }
}

// Truncates and saturates; NaN becomes 0. The bounds are exact in f64 (and 2^63, 2^64 as f32 are).
template <class To>
u64 saturate(f64 x) {
  using Limits = std::numeric_limits<To>;
  if (std::isnan(x)) return 0;
  const f64 t = std::trunc(x);
  if (t <= static_cast<f64>(Limits::min())) return raw(Limits::min());
  // max() + 1 is a power of two, so it is exact where max() is not.
  const f64 above = std::ldexp(1.0, Limits::digits);
  if (t >= above) return raw(Limits::max());
  return raw(static_cast<To>(t));
}

template <class From>
u64 cast_from(Scalar to, From x) {
  switch (to) {
    case Scalar::Bool: return x != From{0};
    case Scalar::F32: return canonical(static_cast<f32>(x));
    case Scalar::F64: return canonical(static_cast<f64>(x));
    default: break;
  }
  if constexpr (std::is_floating_point_v<From>) {
    switch (to) {
      case Scalar::I32: return saturate<i32>(x);
      case Scalar::U32: return saturate<u32>(x);
      case Scalar::I64: return saturate<i64>(x);
      case Scalar::U64: return saturate<u64>(x);
      default: break;
    }
  } else {
    switch (to) {
      case Scalar::I32:
      case Scalar::U32: return static_cast<u32>(x);
      case Scalar::I64:
      case Scalar::U64: return static_cast<u64>(static_cast<i64>(x));  // extends a signed x
      default: break;
    }
  }
  unsupported(Op::Cast, to);
}

}  // namespace

u64 cast_bits(Scalar to, Scalar from, u64 bits) {
  if (to == from) return bits;
  switch (from) {
    case Scalar::Bool:
    case Scalar::U32: return cast_from(to, static_cast<u32>(bits));
    case Scalar::I32: return cast_from(to, as<i32>(bits));
    case Scalar::I64: return cast_from(to, as<i64>(bits));
    case Scalar::U64: return cast_from(to, bits);
    case Scalar::F32: return cast_from(to, as<f32>(bits));
    case Scalar::F64: return cast_from(to, as<f64>(bits));
    default: unsupported(Op::Cast, from);
  }
}

u64 evaluate(Op op, Scalar result, Scalar operand, const u64* args) {
  if (op == Op::Select) return args[0] ? args[1] : args[2];
  if (op == Op::Cast) return cast_bits(result, operand, args[0]);
  if (op == Op::Bitcast) return args[0];
  if (op >= Op::Eq && op <= Op::Ge) {
    switch (operand) {
      case Scalar::Bool:
      case Scalar::U32:
      case Scalar::U64: return compare_op<u64>(op, args);
      case Scalar::I32: return compare_op<i32>(op, args);
      case Scalar::I64: return compare_op<i64>(op, args);
      case Scalar::F32: return compare_op<f32>(op, args);
      case Scalar::F64: return compare_op<f64>(op, args);
      default: unsupported(op, operand);
    }
  }
  switch (result) {
    case Scalar::Bool: return bool_op(op, args);
    case Scalar::I32: return integer_op<i32>(op, result, args);
    case Scalar::U32: return integer_op<u32>(op, result, args);
    case Scalar::I64: return integer_op<i64>(op, result, args);
    case Scalar::U64: return integer_op<u64>(op, result, args);
    case Scalar::F32: return float_op<f32>(op, result, args);
    case Scalar::F64: return float_op<f64>(op, result, args);
    default: unsupported(op, result);
  }
}

bool is_unspecified(Op op, Scalar result, const u64* args) {
  const u32 bits = 8 * size_bytes(result);
  if (op == Op::Shl || op == Op::Shr) return args[1] >= bits;
  if (is_integer(result) && (op == Op::Div || op == Op::Rem)) {
    const u64 ones = bits == 64 ? ~0ull : 0xffffffffull;
    return args[1] == 0 ||
           (is_signed(result) && args[1] == ones && args[0] == (u64{1} << (bits - 1)));
  }
  if (is_float(result) && (op == Op::Min || op == Op::Max)) {
    const u64 sign = u64{1} << (bits - 1);
    return ((args[0] | args[1]) & ~sign) == 0 && args[0] != args[1];
  }
  return false;
}

u64 element_to_value(Scalar elem, u64 bits) {
  switch (elem) {
    case Scalar::F16: return std::bit_cast<u32>(f16_to_f32(static_cast<u16>(bits)));
    case Scalar::BF16: return std::bit_cast<u32>(bf16_to_f32(static_cast<u16>(bits)));
    case Scalar::Bool: return bits != 0;
    default: return bits;
  }
}

u64 value_to_element(Scalar elem, u64 bits) {
  switch (elem) {
    case Scalar::U8: return bits & 0xff;
    case Scalar::F16: return f32_to_f16(as<f32>(bits));
    case Scalar::BF16: return f32_to_bf16(as<f32>(bits));
    default: return bits;
  }
}

u64 evaluate_atomic(AtomicOp op, Scalar elem, u64 old, u64 operand) {
  const u64 args[] = {old, operand};
  switch (op) {
    case AtomicOp::Add: return evaluate(Op::Add, elem, elem, args);
    case AtomicOp::Min: return evaluate(Op::Min, elem, elem, args);
    case AtomicOp::Max: return evaluate(Op::Max, elem, elem, args);
    case AtomicOp::And: return evaluate(Op::And, elem, elem, args);
    case AtomicOp::Or: return evaluate(Op::Or, elem, elem, args);
    case AtomicOp::Exchange: return operand;
  }
  fail(ErrorKind::Internal, "kernel::atomic", "unknown operation {}", static_cast<int>(op));
}

}  // namespace oa::kernel
