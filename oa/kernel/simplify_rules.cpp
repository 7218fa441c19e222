#include "oa/kernel/simplify_rules.h"

#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "oa/kernel/evaluate.h"
#include "oa/kernel/op_info.h"

namespace oa::kernel {
namespace {

u64 ones(Scalar s) {
  if (s == Scalar::Bool) return 1;
  return size_bytes(s) == 8 ? ~0ull : 0xffffffffull;
}

u64 float_bits(Scalar s, f64 x) {
  return s == Scalar::F64 ? std::bit_cast<u64>(x) : std::bit_cast<u32>(static_cast<f32>(x));
}

f64 float_of(Scalar s, u64 bits) {
  return s == Scalar::F64 ? std::bit_cast<f64>(bits)
                          : static_cast<f64>(std::bit_cast<f32>(static_cast<u32>(bits)));
}

class Rules {
 public:
  Rules(Builder& b, Instr& i) : b_(b), i_(i), s_(i.type.scalar) {}

  ValueId run() {
    if (is_arithmetic(i_.op)) {
      if (const ValueId v = fold(); v != kNoValue) return v;
      order_operands();
    }
    switch (i_.op) {
      case Op::Neg:
      case Op::Abs:
      case Op::Not: return unary();
      case Op::Add:
      case Op::Sub:
      case Op::Mul:
      case Op::Div: return is_float(s_) ? float_arithmetic() : integer_arithmetic();
      case Op::Rem: return is_float(s_) ? kNoValue : integer_arithmetic();
      case Op::Min:
      case Op::Max: return extremum();
      case Op::And:
      case Op::Or:
      case Op::Xor: return bits();
      case Op::Shl:
      case Op::Shr: return shift();
      case Op::Fma: return fused();
      case Op::Eq:
      case Op::Ne:
      case Op::Lt:
      case Op::Le:
      case Op::Gt:
      case Op::Ge: return comparison();
      case Op::Select: return select();
      case Op::Cast: return cast();
      case Op::Bitcast: return bitcast();
      case Op::VecBuild: return build();
      case Op::VecExtract: return extract();
      case Op::Shuffle: return same_in_all_lanes(arg(0)) ? arg(0) : kNoValue;
      case Op::ShuffleXor: return i_.imm == 0 || same_in_all_lanes(arg(0)) ? arg(0) : kNoValue;
      case Op::SubgroupAny:
      case Op::SubgroupAll: return same_in_all_lanes(arg(0)) ? arg(0) : kNoValue;
      case Op::FragCast: return i_.type == b_.at(arg(0)).type ? arg(0) : kNoValue;
      default: return kNoValue;
    }
  }

 private:
  ValueId arg(size_t n) const { return i_.args[n]; }
  const Instr& def(size_t n) const { return b_.at(i_.args[n]); }
  std::optional<u64> c(size_t n) const { return b_.constant_of(i_.args[n]); }
  bool is(size_t n, u64 bits) const { return c(n) == bits; }
  bool is_float_constant(size_t n, f64 x) const { return is(n, float_bits(s_, x)); }
  ValueId number(u64 bits) { return b_.constant(s_, bits); }
  ValueId boolean(bool x) { return b_.constant(Scalar::Bool, x); }
  bool not_negative(size_t n) const { return b_.range(arg(n)).known && b_.range(arg(n)).lo >= 0; }

  ValueId make(Op op, std::vector<ValueId> args) {
    return b_.emit({.op = op, .type = i_.type, .args = std::move(args)});
  }

  bool same_in_all_lanes(ValueId id) const {
    const Op op = b_.at(id).op;
    return op == Op::Const || op == Op::Param || op == Op::GroupId || op == Op::GroupCount;
  }

  ValueId fold() {
    u64 args[3] = {};
    if (i_.type.lanes != 1) return kNoValue;
    for (size_t a = 0; a < i_.args.size(); ++a) {
      const auto bits = c(a);
      if (!bits) return kNoValue;
      args[a] = *bits;
    }
    const bool open = i_.op == Op::Div || i_.op == Op::Rem || i_.op == Op::Shl || i_.op == Op::Shr;
    if (open && is_unspecified(i_.op, s_, args)) return kNoValue;
    return number(evaluate(i_.op, s_, def(i_.args.size() - 1).type.scalar, args));
  }

  // Constants to the right, else the older value to the left, so that equal values look equal.
  void order_operands() {
    switch (i_.op) {
      case Op::Add:
      case Op::Mul:
      case Op::MulHi:
      case Op::And:
      case Op::Or:
      case Op::Xor:
      case Op::Eq:
      case Op::Ne: break;
      case Op::Min:
      case Op::Max:
        if (is_float(s_)) return;  // the order may choose the sign of a zero
        break;
      case Op::Fma: break;
      default: return;
    }
    const bool a = c(0).has_value(), b = c(1).has_value();
    if (a != b ? a : arg(0) > arg(1)) std::swap(i_.args[0], i_.args[1]);
  }

  ValueId unary() {
    const Instr& x = def(0);
    if (i_.op == Op::Abs) {
      if (x.op == Op::Abs) return arg(0);
      if (is_float(s_) && x.op == Op::Neg) i_.args[0] = x.args[0];
      if (!is_float(s_) && not_negative(0)) return arg(0);
      return kNoValue;
    }
    if (x.op == i_.op) return x.args[0];
    if (i_.op == Op::Not && is_compare(x.op)) {
      const bool ordered = is_float(b_.at(x.args[0]).type.scalar);
      if (ordered && x.op != Op::Eq && x.op != Op::Ne) return kNoValue;  // false on NaN either way
      static constexpr Op kOpposite[] = {Op::Ne, Op::Eq, Op::Ge, Op::Gt, Op::Le, Op::Lt};
      return make(kOpposite[static_cast<int>(x.op) - static_cast<int>(Op::Eq)], x.args);
    }
    return kNoValue;
  }

  ValueId integer_arithmetic() {
    const auto k = c(1);
    const bool power = k && std::has_single_bit(*k) && !(is_signed(s_) && *k > ones(s_) / 2);
    const u64 log = power ? static_cast<u64>(std::countr_zero(*k)) : 0;
    switch (i_.op) {
      case Op::Add:
        if (k == 0) return arg(0);
        if (k && def(0).op == Op::Add) {
          if (const auto inner = b_.constant_of(def(0).args[1])) {
            const u64 sum = (*k + *inner) & ones(s_);
            if (sum >= *k) return make(Op::Add, {def(0).args[0], number(sum)});
          }
        }
        return kNoValue;
      case Op::Sub:
        if (k == 0) return arg(0);
        return arg(0) == arg(1) ? number(0) : kNoValue;
      case Op::Mul:
        if (k == 0) return arg(1);
        if (k == 1) return arg(0);
        return power ? make(Op::Shl, {arg(0), number(log)}) : kNoValue;
      case Op::Div:
        if (k == 1) return arg(0);
        if (power && not_negative_or_unsigned()) return make(Op::Shr, {arg(0), number(log)});
        break;
      default:
        if (k == 1) return number(0);
        if (power && not_negative_or_unsigned()) return make(Op::And, {arg(0), number(*k - 1)});
        break;
    }
    // Division of what is smaller than the divisor.
    const Range &a = b_.range(arg(0)), &d = b_.range(arg(1));
    if (a.known && d.known && a.lo >= 0 && a.hi < d.lo) {
      return i_.op == Op::Div ? number(0) : arg(0);
    }
    return kNoValue;
  }

  bool not_negative_or_unsigned() const { return !is_signed(s_) || not_negative(0); }

  ValueId float_arithmetic() {
    switch (i_.op) {
      case Op::Add: return is_float_constant(1, -0.0) ? arg(0) : kNoValue;
      case Op::Sub: return is_float_constant(1, 0.0) ? arg(0) : kNoValue;
      case Op::Mul: return is_float_constant(1, 1.0) ? arg(0) : kNoValue;
      default: break;
    }
    if (is_float_constant(1, 1.0)) return arg(0);
    // Division by a power of two is multiplication by its inverse, if that is a normal number.
    if (const auto bits = c(1)) {
      const f64 d = float_of(s_, *bits);
      int e = 0;
      const bool power = std::isfinite(d) && std::abs(std::frexp(d, &e)) == 0.5;
      const int limit = s_ == Scalar::F64 ? 1000 : 120;
      if (power && std::abs(e) < limit)
        return make(Op::Mul, {arg(0), number(float_bits(s_, 1 / d))});
    }
    return kNoValue;
  }

  ValueId extremum() {
    if (arg(0) == arg(1)) return arg(0);
    if (is_float(s_)) {
      // Infinity on the far side leaves the other operand, NaN too.
      constexpr f64 kInfinity = std::numeric_limits<f64>::infinity();
      const f64 nothing = i_.op == Op::Min ? kInfinity : -kInfinity;
      if (is_float_constant(0, nothing)) return arg(1);
      return is_float_constant(1, nothing) ? arg(0) : kNoValue;
    }
    const Verdict less = compare_ranges(Op::Le, b_.range(arg(0)), b_.range(arg(1)));
    const Verdict more = compare_ranges(Op::Ge, b_.range(arg(0)), b_.range(arg(1)));
    const bool min = i_.op == Op::Min;
    if (less == Verdict::True) return min ? arg(0) : arg(1);
    if (more == Verdict::True) return min ? arg(1) : arg(0);
    return kNoValue;
  }

  ValueId bits() {
    const bool same = arg(0) == arg(1);
    const auto k = c(1);
    const bool all = k == ones(s_);
    switch (i_.op) {
      case Op::And: {
        if (same || all) return arg(0);
        if (k == 0) return arg(1);
        const Range& r = b_.range(arg(0));
        const bool low_mask = k && (*k & (*k + 1)) == 0;
        if (low_mask && r.known && r.lo >= 0 && static_cast<u64>(r.hi) <= *k) return arg(0);
        break;
      }
      case Op::Or:
        if (same || k == 0) return arg(0);
        if (all) return arg(1);
        break;
      default:
        if (same) return number(0);
        if (k == 0) return arg(0);
        if (all) return make(Op::Not, {arg(0)});
        break;
    }
    return kNoValue;
  }

  ValueId shift() {
    if (is(1, 0) || is(0, 0)) return arg(0);
    const auto k = c(1);
    const Instr& x = def(0);
    if (k && x.op == i_.op) {
      const auto inner = b_.constant_of(x.args[1]);
      const u64 width = 8 * size_bytes(s_);
      if (inner && *k < width && *inner < width && *k + *inner < width) {
        return make(i_.op, {x.args[0], number(*k + *inner)});
      }
    }
    return kNoValue;
  }

  ValueId fused() {
    // After order_operands a constant factor is the second.
    if (is_float_constant(1, 1.0)) return make(Op::Add, {arg(0), arg(2)});
    if (is_float_constant(2, -0.0)) return make(Op::Mul, {arg(0), arg(1)});
    return kNoValue;
  }

  ValueId comparison() {
    const Scalar operand = def(0).type.scalar;
    if (arg(0) == arg(1)) {
      const bool reflexive = i_.op == Op::Eq || i_.op == Op::Le || i_.op == Op::Ge;
      if (!is_float(operand)) return boolean(reflexive);
      if (i_.op == Op::Lt || i_.op == Op::Gt) return boolean(false);
      return kNoValue;
    }
    if (operand == Scalar::Bool) {
      if (const auto k = c(1)) {  // x == true is x, x == false is not x
        if ((*k != 0) == (i_.op == Op::Eq)) return arg(0);
        return make(Op::Not, {arg(0)});
      }
    }
    switch (compare_ranges(i_.op, b_.range(arg(0)), b_.range(arg(1)))) {
      case Verdict::True: return boolean(true);
      case Verdict::False: return boolean(false);
      default: return kNoValue;
    }
  }

  ValueId select() {
    if (arg(1) == arg(2)) return arg(1);
    if (const auto k = c(0)) return *k ? arg(1) : arg(2);
    if (def(0).op == Op::Not) {
      const ValueId cond = def(0).args[0];
      i_.args = {cond, arg(2), arg(1)};
    }
    if (i_.type == Type{Scalar::Bool} && c(1) && c(2)) {  // they differ
      return *c(1) ? arg(0) : make(Op::Not, {arg(0)});
    }
    return kNoValue;
  }

  ValueId cast() {
    const Instr& x = def(0);
    if (x.type == i_.type) return arg(0);
    const Scalar middle = x.type.scalar;
    if (s_ == Scalar::Bool && x.op == Op::Cast && b_.at(x.args[0]).type == i_.type)
      return x.args[0];
    // Integer casts compose when the middle keeps every bit that the result takes.
    if (x.op == Op::Cast && is_integer(s_) && is_integer(middle) &&
        size_bytes(middle) >= size_bytes(s_)) {
      const Type& from = b_.at(x.args[0]).type;
      if (from == i_.type) return x.args[0];
      if (is_integer(from.scalar)) i_.args[0] = x.args[0];
    }
    return kNoValue;
  }

  ValueId bitcast() {
    if (def(0).op == Op::Bitcast) i_.args[0] = def(0).args[0];
    return def(0).type == i_.type ? arg(0) : kNoValue;
  }

  ValueId build() {
    if (def(0).op != Op::VecExtract) return kNoValue;
    const ValueId whole = def(0).args[0];
    if (b_.at(whole).type != i_.type) return kNoValue;
    for (size_t n = 0; n < i_.args.size(); ++n) {
      if (def(n).op != Op::VecExtract || def(n).args[0] != whole || def(n).imm != n)
        return kNoValue;
    }
    return whole;
  }

  ValueId extract() {
    const Instr& v = def(0);
    return v.op == Op::VecBuild ? v.args[i_.imm] : kNoValue;
  }

  Builder& b_;
  Instr& i_;
  Scalar s_;
};

}  // namespace

ValueId apply_rules(Builder& b, Instr& instr) { return Rules(b, instr).run(); }

}  // namespace oa::kernel
