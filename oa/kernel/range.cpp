#include "oa/kernel/range.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "oa/kernel/op_info.h"

namespace oa::kernel {
namespace {

constexpr i64 kMin = std::numeric_limits<i64>::min();
constexpr i64 kMax = std::numeric_limits<i64>::max();

// The range if it fits into the type, else everything: the operation may have wrapped.
Range fitted(Scalar s, i64 lo, i64 hi) {
  const Range whole = full_range(s);
  if (s == Scalar::U64) return lo >= 0 ? Range{true, lo, hi} : whole;
  return lo >= whole.lo && hi <= whole.hi ? Range{true, lo, hi} : whole;
}

Range constant_range(Scalar s, u64 bits) {
  switch (s) {
    case Scalar::I32: return {true, static_cast<i32>(bits), static_cast<i32>(bits)};
    case Scalar::U64:
      if (bits > static_cast<u64>(kMax)) return full_range(s);
      return {true, static_cast<i64>(bits), static_cast<i64>(bits)};
    case Scalar::F32:
    case Scalar::F64: return {};
    default: return {true, static_cast<i64>(bits), static_cast<i64>(bits)};
  }
}

Range add(Scalar s, const Range& a, const Range& b) {
  i64 lo, hi;
  if (__builtin_add_overflow(a.lo, b.lo, &lo) || __builtin_add_overflow(a.hi, b.hi, &hi)) {
    return full_range(s);
  }
  return fitted(s, lo, hi);
}

Range sub(Scalar s, const Range& a, const Range& b) {
  i64 lo, hi;
  if (__builtin_sub_overflow(a.lo, b.hi, &lo) || __builtin_sub_overflow(a.hi, b.lo, &hi)) {
    return full_range(s);
  }
  return fitted(s, lo, hi);
}

Range mul(Scalar s, const Range& a, const Range& b) {
  i64 corner[4];
  if (__builtin_mul_overflow(a.lo, b.lo, &corner[0]) ||
      __builtin_mul_overflow(a.lo, b.hi, &corner[1]) ||
      __builtin_mul_overflow(a.hi, b.lo, &corner[2]) ||
      __builtin_mul_overflow(a.hi, b.hi, &corner[3])) {
    return full_range(s);
  }
  return fitted(s, *std::min_element(corner, corner + 4), *std::max_element(corner, corner + 4));
}

// Largest number with as many bits as x (x >= 0).
i64 all_bits(i64 x) {
  return x == 0 ? 0 : static_cast<i64>(~0ull >> std::countl_zero(static_cast<u64>(x)));
}

Range integer_op(const Instr& i, const Range& a, const Range& b) {
  const Scalar s = i.type.scalar;
  const bool positive = a.lo >= 0 && b.lo >= 0;
  switch (i.op) {
    case Op::Add: return add(s, a, b);
    case Op::Sub: return sub(s, a, b);
    case Op::Mul: return mul(s, a, b);
    case Op::Min: return {true, std::min(a.lo, b.lo), std::min(a.hi, b.hi)};
    case Op::Max: return {true, std::max(a.lo, b.lo), std::max(a.hi, b.hi)};
    case Op::Div:
      if (a.lo >= 0 && b.lo > 0) return {true, a.lo / b.hi, a.hi / b.lo};
      break;
    case Op::Rem:
      if (a.lo >= 0 && b.lo > 0) return {true, 0, std::min(a.hi, b.hi - 1)};
      break;
    case Op::And:
      if (positive) return {true, 0, std::min(a.hi, b.hi)};
      break;
    case Op::Or:
    case Op::Xor:
      if (positive) return {true, 0, all_bits(a.hi | b.hi)};
      break;
    case Op::Shr:
      if (positive && b.hi < 63) return {true, a.lo >> b.hi, a.hi >> b.lo};
      break;
    case Op::Shl:
      if (positive && b.hi < 62) return mul(s, a, {true, i64{1} << b.lo, i64{1} << b.hi});
      break;
    default: break;
  }
  return full_range(s);
}

}  // namespace

Range full_range(Scalar s) {
  switch (s) {
    case Scalar::Bool: return {true, 0, 1};
    case Scalar::U8: return {true, 0, 255};
    case Scalar::I32:
      return {true, std::numeric_limits<i32>::min(), std::numeric_limits<i32>::max()};
    case Scalar::U32: return {true, 0, std::numeric_limits<u32>::max()};
    case Scalar::I64: return {true, kMin, kMax};
    default: return {};
  }
}

Range range_of(const Kernel& kernel, const Instr& i, const Range* args) {
  const Scalar s = i.type.scalar;
  if (i.type.lanes != 1 || i.type.is_fragment()) return {};
  const auto both = [&] { return args[0].known && args[1].known; };
  switch (i.op) {
    case Op::Const: return constant_range(s, i.imm);
    case Op::LaneId: return {true, 0, i64{kernel.width} - 1};
    case Op::GroupId: return {true, 0, i64{std::numeric_limits<u32>::max()} - 1};
    case Op::GroupCount: return {true, 1, std::numeric_limits<u32>::max()};
    case Op::Load:
    case Op::SharedLoad: return i.elem == Scalar::U8 ? full_range(Scalar::U8) : full_range(s);
    case Op::Select:
      if (!args[1].known || !args[2].known) return full_range(s);
      return {true, std::min(args[1].lo, args[2].lo), std::max(args[1].hi, args[2].hi)};
    case Op::Cast:
    case Op::Bitcast:
      if (!is_integer(s) || !args[0].known) return full_range(s);
      return fitted(s, args[0].lo, args[0].hi);
    case Op::For:  // the index inside the body
      if (!both() || args[1].hi == kMin) return full_range(s);
      return args[0].lo < args[1].hi ? Range{true, args[0].lo, args[1].hi - 1} : full_range(s);
    default: break;
  }
  if (!is_integer(s) || i.op < Op::Add || i.op > Op::Shr) return full_range(s);
  if (i.op == Op::And && s == Scalar::U64 && args[0].known != args[1].known) {
    const Range& r = args[0].known ? args[0] : args[1];
    return r.lo >= 0 ? Range{true, 0, r.hi} : full_range(s);
  }
  return both() ? integer_op(i, args[0], args[1]) : full_range(s);
}

Verdict compare_ranges(Op op, const Range& a, const Range& b) {
  if (!a.known || !b.known) return Verdict::Unknown;
  const auto verdict = [](bool yes, bool no) {
    return yes ? Verdict::True : no ? Verdict::False : Verdict::Unknown;
  };
  switch (op) {
    case Op::Lt: return verdict(a.hi < b.lo, a.lo >= b.hi);
    case Op::Le: return verdict(a.hi <= b.lo, a.lo > b.hi);
    case Op::Gt: return verdict(a.lo > b.hi, a.hi <= b.lo);
    case Op::Ge: return verdict(a.lo >= b.hi, a.hi < b.lo);
    case Op::Eq: return verdict(a.exact() && b.exact() && a.lo == b.lo, a.hi < b.lo || a.lo > b.hi);
    case Op::Ne: return verdict(a.hi < b.lo || a.lo > b.hi, a.exact() && b.exact() && a.lo == b.lo);
    default: return Verdict::Unknown;
  }
}

Trips trips_of(Scalar s, const Range& begin, const Range& end, const Range& step) {
  if (!begin.known || !end.known) return Trips::Unknown;
  if (begin.lo >= end.hi) return Trips::None;
  if (begin.hi >= end.lo) return Trips::Unknown;
  // One trip if the next index is past the end, and is an index at all (it must not wrap).
  const i64 most = s == Scalar::U64 ? kMax : full_range(s).hi;
  i64 next;
  if (step.known && step.lo > 0 && !__builtin_add_overflow(begin.hi, step.hi, &next) &&
      next <= most && begin.lo + step.lo >= end.hi) {
    return Trips::One;
  }
  return Trips::Some;
}

}  // namespace oa::kernel
