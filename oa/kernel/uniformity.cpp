// Fixpoint of the lane shapes: control flow and variables only ever move from uniform to varying.
#include "oa/kernel/uniformity.h"

#include <algorithm>

namespace oa::kernel {
namespace {

constexpr LaneShape kUniform{.affine = true};
constexpr LaneShape kVarying{};

bool is_index(Scalar s) { return is_integer(s) && s != Scalar::U8; }

// The value as the type holds it after wrapping.
i64 wrapped(Scalar s, i64 x) {
  if (s == Scalar::U32) return static_cast<u32>(x);
  if (s == Scalar::I32) return static_cast<i32>(x);
  return x;
}

LaneShape affine(Scalar s, i64 stride, bool constant, i64 base) {
  return {.affine = true,
          .stride = size_bytes(s) == 4 ? static_cast<i32>(stride) : stride,
          .constant = constant,
          .base = constant ? wrapped(s, base) : 0};
}

i64 wrapping_mul(i64 a, i64 b) {
  return static_cast<i64>(static_cast<u64>(a) * static_cast<u64>(b));
}
i64 wrapping_add(i64 a, i64 b) {
  return static_cast<i64>(static_cast<u64>(a) + static_cast<u64>(b));
}

}  // namespace

Uniformity::Uniformity(const Kernel& kernel)
    : kernel_(kernel),
      values_(kernel.instrs.size()),
      vars_(kernel.vars.size()),
      varying_flow_(kernel.instrs.size(), false) {
  do {
    changed_ = false;
    visit(kernel.body, false);
  } while (changed_);
}

void Uniformity::mark_varying(ValueId id) {
  if (varying_flow_[id]) return;
  varying_flow_[id] = true;
  changed_ = true;
}

void Uniformity::visit(const Region& region, bool varying) {
  for (const ValueId id : region) {
    const Instr& instr = kernel_[id];
    switch (instr.op) {
      case Op::If:
      case Op::For:
      case Op::While: visit_control(id, varying); break;
      case Op::VarStore: store(instr.slot, values_[instr.args[0]], varying); break;
      default: values_[id] = transfer(instr); break;
    }
  }
}

void Uniformity::visit_control(ValueId id, bool varying) {
  const Instr& instr = kernel_[id];
  if (instr.op == Op::If) {
    if (!uniform(instr.args[0])) mark_varying(id);
  } else if (instr.op == Op::For) {
    const LaneShape& begin = values_[instr.args[0]];
    const bool same = (begin.uniform() && uniform(instr.args[1])) || same_trips(instr);
    if (!same) mark_varying(id);
    values_[id] = begin.affine ? affine(instr.type.scalar, begin.stride, false, 0) : kVarying;
  }
  for (const Region& region : instr.regions) {
    visit(region, varying || varying_flow_[id]);
    if (instr.op == Op::While && &region == &instr.regions[0] && !region.empty()) {
      const Instr& yield = kernel_[region.back()];
      if (yield.op == Op::Yield && !uniform(yield.args[0])) mark_varying(id);
    }
  }
}

void Uniformity::store(u32 slot, const LaneShape& shape, bool varying) {
  Var& var = vars_[slot];
  LaneShape merged = shape;
  merged.constant = false;
  merged.base = 0;
  if (varying && kernel_.width > 1) merged = kVarying;
  if (var.stored && merged != var.shape) merged = kVarying;
  if (var.stored && merged == var.shape) return;
  var.stored = true;
  var.shape = merged;
  changed_ = true;
}

LaneShape Uniformity::transfer(const Instr& instr) const {
  const bool all_uniform =
      std::all_of(instr.args.begin(), instr.args.end(), [&](ValueId a) { return uniform(a); });
  switch (instr.op) {
    case Op::Const:
      if (!is_index(instr.type.scalar)) return kUniform;
      return affine(instr.type.scalar, 0, true, static_cast<i64>(instr.imm));
    case Op::LaneId: return affine(Scalar::U32, kernel_.width == 1 ? 0 : 1, true, 0);
    case Op::VarLoad: return vars_[instr.slot].shape;
    case Op::Atomic:
    case Op::AtomicCas:
    case Op::SharedAtomic:  // every lane performs its own and sees its own old value
      return kernel_.width == 1 ? kUniform : kVarying;
    case Op::Shuffle:
      return all_uniform || uniform(instr.args[0]) ||
                     (uniform(instr.args[1]) && kernel_.subgroup == kernel_.width)
                 ? kUniform
                 : kVarying;
    case Op::SubgroupAny:
    case Op::SubgroupAll:
      return kernel_.subgroup == kernel_.width || all_uniform ? kUniform : kVarying;
    case Op::FragFill:
    case Op::FragLoad:
    case Op::FragMulAdd:
    case Op::FragAdd:
    case Op::FragMul:
    case Op::FragCast: return kUniform;  // held by the whole gang
    default: break;
  }
  if (is_index(instr.type.scalar) && instr.type.lanes == 1) {
    const LaneShape shape = affine_arithmetic(instr);
    if (shape.affine) return shape;
  }
  return all_uniform ? kUniform : kVarying;
}

LaneShape Uniformity::affine_arithmetic(const Instr& instr) const {
  const Scalar s = instr.type.scalar;
  const auto arg = [&](size_t i) -> const LaneShape& { return values_[instr.args[i]]; };
  switch (instr.op) {
    case Op::Add:
    case Op::Sub: {
      const LaneShape &a = arg(0), &b = arg(1);
      if (!a.affine || !b.affine) return kVarying;
      const i64 sign = instr.op == Op::Add ? 1 : -1;
      return affine(s, wrapping_add(a.stride, wrapping_mul(sign, b.stride)),
                    a.constant && b.constant, wrapping_add(a.base, wrapping_mul(sign, b.base)));
    }
    case Op::Neg: {
      if (!arg(0).affine) return kVarying;
      return affine(s, wrapping_mul(-1, arg(0).stride), arg(0).constant,
                    wrapping_mul(-1, arg(0).base));
    }
    case Op::Mul: {
      const bool first = arg(0).uniform() && arg(0).constant;
      const LaneShape &factor = arg(first ? 0 : 1), &x = arg(first ? 1 : 0);
      if (!x.affine || !factor.uniform() || !factor.constant) return kVarying;
      return affine(s, wrapping_mul(x.stride, factor.base), x.constant,
                    wrapping_mul(x.base, factor.base));
    }
    case Op::Shl: {
      const LaneShape &x = arg(0), &count = arg(1);
      if (!x.affine || !count.uniform() || !count.constant) return kVarying;
      if (count.base < 0 || count.base >= 8 * static_cast<i64>(size_bytes(s))) return kVarying;
      const i64 factor = static_cast<i64>(1ull << count.base);
      return affine(s, wrapping_mul(x.stride, factor), x.constant, wrapping_mul(x.base, factor));
    }
    case Op::Cast:
    case Op::Bitcast: {
      const Scalar from = kernel_[instr.args[0]].type.scalar;
      if (!is_index(from) || !arg(0).affine) return kVarying;
      return affine(s, arg(0).stride, arg(0).constant, arg(0).base);
    }
    case Op::Select: {
      const LaneShape &a = arg(1), &b = arg(2);
      if (!arg(0).uniform() || !a.affine || !b.affine || a.stride != b.stride) return kVarying;
      return affine(s, a.stride, a.constant && b.constant && a.base == b.base, a.base);
    }
    default: return kVarying;
  }
}

// All lanes leave the loop together: the trip that stops the first lane stops the last one too.
bool Uniformity::same_trips(const Instr& loop) const {
  const LaneShape &begin = values_[loop.args[0]], &end = values_[loop.args[1]],
                  &step = values_[loop.args[2]];
  if (!begin.affine || !begin.constant || begin.stride <= 0) return false;
  if (!end.uniform() || !end.constant || !step.uniform() || !step.constant) return false;
  constexpr i64 kLimit = i64{1} << 40;  // keeps the sums below from overflowing
  for (const i64 x : {begin.base, end.base, step.base, begin.stride}) {
    if (x > kLimit || x < -kLimit) return false;
  }
  if (step.base <= 0) return false;
  const i64 last = begin.base + begin.stride * static_cast<i64>(kernel_.width - 1);
  // Trips of the last lane, which leaves first; then lane 0 must be out as well.
  const i64 trips = last < end.base ? (end.base - last + step.base - 1) / step.base : 0;
  return begin.base + trips * step.base >= end.base;
}

}  // namespace oa::kernel
