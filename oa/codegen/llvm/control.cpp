// Control flow. Uniform conditions become plain branches and loops. Varying ones run under a mask:
// a body is skipped when no lane is active, and loops run while a lane is.
#include <algorithm>

#include "oa/codegen/llvm/lower.h"
#include "oa/core/error.h"

namespace oa::codegen {

using kernel::Op;

// A variable's home is the region that stores it before any other access, provided that all
// accesses lie inside: whoever enters the region anew never sees what was there before.
void Lowering::find_homes(const Region& region, std::vector<const Region*>& open) {
  open.push_back(&region);
  for (const ValueId id : region) {
    const Instr& instr = k_[id];
    if (instr.op == Op::VarLoad || instr.op == Op::VarStore) {
      const Region*& home = home_of_[instr.slot];
      if (!seen_[instr.slot]) {
        seen_[instr.slot] = true;
        home = instr.op == Op::VarStore ? &region : nullptr;
      } else if (home && std::find(open.begin(), open.end(), home) == open.end()) {
        home = nullptr;
      }
    }
    for (const Region& inner : instr.regions) find_homes(inner, open);
  }
  open.pop_back();
}

void Lowering::under(LlvmValue mask, const Region& body) {
  const LlvmValue outer_mask = mask_;
  const u32 outer_level = level_;
  mask_ = mask;
  level_ = ++last_level_;
  region(body);
  mask_ = outer_mask;
  level_ = outer_level;
}

void Lowering::if_else(ValueId id) {
  const Instr& instr = k_[id];
  const Region &yes = instr.regions[0], &no = instr.regions[1];
  if (shape(instr.args[0]).uniform()) {
    const LlvmBlock then = b_.new_block("then");
    const LlvmBlock otherwise = no.empty() ? nullptr : b_.new_block("else");
    const LlvmBlock join = b_.new_block("join");
    b_.branch(scalar(instr.args[0]), then, otherwise ? otherwise : join);
    b_.enter(then);
    region(yes);
    b_.jump(join);
    if (otherwise) {
      b_.enter(otherwise);
      region(no);
      b_.jump(join);
    }
    b_.enter(join);
    return;
  }
  const LlvmValue cond = vector(instr.args[0]);
  if (!yes.empty()) masked_region(yes, both(mask_, cond));
  if (!no.empty()) masked_region(no, both(mask_, b_.not_(cond)));
}

void Lowering::masked_region(const Region& body, LlvmValue mask) {
  const LlvmValue some_active = any(mask), all_active = all(mask);
  const auto known = [](LlvmValue c, bool value) {
    return LLVMIsAConstantInt(c) && LLVMConstIntGetZExtValue(c) == value;
  };
  if (known(some_active, false)) return;
  if (known(all_active, true)) return under(mask_, body);
  u32 budget = 24;
  if (is_cheap(body, budget)) return under(mask, body);  // selects cost less than a branch
  const LlvmBlock some = b_.new_block("some"), join = b_.new_block("join");
  if (!mask_ && !known(all_active, false) && wants_full_path(body)) {
    const LlvmBlock full = b_.new_block("full"), check = b_.new_block("check");
    b_.branch(all_active, full, check);
    b_.enter(full);
    under(nullptr, body);
    b_.jump(join);
    b_.enter(check);
  }
  b_.branch(some_active, some, join);
  b_.enter(some);
  under(mask, body);
  b_.jump(join);
  b_.enter(join);
}

// Whether a body may run with no lane active, and costs less than a branch that may be
// mispredicted.
bool Lowering::is_cheap(const Region& body, u32& budget) const {
  for (const ValueId id : body) {
    const Instr& instr = k_[id];
    u32 cost = std::max<u32>(instr.type.lanes, 1);
    switch (instr.op) {
      case Op::Const:
      case Op::Param:
      case Op::LaneId:
      case Op::GroupId:
      case Op::GroupCount:
      case Op::VecBuild:
      case Op::VecExtract: cost = 0; break;
      case Op::Neg:
      case Op::Abs:
      case Op::Not:
      case Op::Floor:
      case Op::Ceil:
      case Op::Trunc:
      case Op::RoundEven:
      case Op::Add:
      case Op::Sub:
      case Op::Mul:
      case Op::Min:
      case Op::Max:
      case Op::And:
      case Op::Or:
      case Op::Xor:
      case Op::Shl:
      case Op::Shr:
      case Op::Fma:
      case Op::Eq:
      case Op::Ne:
      case Op::Lt:
      case Op::Le:
      case Op::Gt:
      case Op::Ge:
      case Op::Select:
      case Op::Cast:
      case Op::Bitcast:
      case Op::VarLoad:
      case Op::VarStore: break;
      case Op::Sqrt: cost = 6; break;
      case Op::Div: cost = kernel::is_float(instr.type.scalar) ? 6 : 12; break;
      case Op::If:
        for (const Region& inner : instr.regions) {
          if (!is_cheap(inner, budget)) return false;
        }
        break;
      default: return false;
    }
    if (cost > budget) return false;
    budget -= cost;
  }
  return true;
}

// A second copy without a mask pays where plain loads and stores replace masked ones.
bool Lowering::wants_full_path(const Region& body) const {
  constexpr size_t kLongest = 160;
  if (body.size() > kLongest) return false;
  bool accesses = false;
  for (const ValueId id : body) {
    const Instr& instr = k_[id];
    switch (instr.op) {
      case Op::If:
      case Op::For:
      case Op::While:
      case Op::Atomic:
      case Op::AtomicCas:
      case Op::SharedAtomic: return false;
      case Op::Load:
      case Op::Store: accesses |= !shape(instr.args[1]).uniform(); break;
      case Op::SharedLoad:
      case Op::SharedStore: accesses |= !shape(instr.args[0]).uniform(); break;
      default: break;
    }
  }
  return accesses;
}

LlvmValue Lowering::before(Scalar s, LlvmValue a, LlvmValue b) {
  return b_.icmp(kernel::is_signed(s) ? LLVMIntSLT : LLVMIntULT, a, b);
}

// The counter of a For over `s` holds 64 bits, so 32-bit types never leave its signed range.
LlvmValue Lowering::counter_before(Scalar s, LlvmValue a, LlvmValue b) {
  return b_.icmp(s == Scalar::U64 ? LLVMIntULT : LLVMIntSLT, a, b);
}

// A For index never wraps: it would never reach its end.
LlvmValue Lowering::advance(Scalar s, LlvmValue counter, LlvmValue step) {
  const LlvmValue next = b_.add(counter, step);
  if (LLVMIsAInstruction(next)) {
    if (s == Scalar::U64) {
      LLVMSetNUW(next, true);
    } else {
      LLVMSetNSW(next, true);
    }
  }
  return next;
}

void Lowering::for_loop(ValueId id) {
  const Instr& instr = k_[id];
  const kernel::LaneShape &begin = shape(instr.args[0]), &end = shape(instr.args[1]);
  if (!shape(instr.args[2]).uniform()) {
    fail(ErrorKind::Internal, "codegen", "step of a For in {} differs between lanes", k_.name);
  }
  const Scalar s = instr.type.scalar;
  // The counter has 64 bits, so that it is an induction variable for LLVM's addresses; it never
  // wraps.
  const auto wide = [&](size_t arg) { return widened(s, scalar(instr.args[arg])); };
  if (begin.uniform() && end.uniform()) {
    scalar_loop(id, wide(0), wide(1), wide(2));
    return;
  }
  constexpr i64 kLongestStride = i64{1} << 20;
  const bool forward = begin.affine && begin.stride > 0 && begin.stride < kLongestStride;
  if (!forward || !end.uniform()) return for_varying(id);
  // While the last lane is before the end, all lanes are.
  const LlvmValue last = b_.integer(b_.i64, static_cast<u64>(begin.stride) * (width_ - 1));
  const LlvmValue first = wide(0), stop = wide(1), step = wide(2);
  const LlvmValue limit = size_bytes(s) == 4
                              ? b_.sub(stop, last)
                              : b_.call(kernel::is_signed(s) ? "llvm.ssub.sat" : "llvm.usub.sat",
                                        {b_.i64}, {stop, last});
  const LlvmValue rest = scalar_loop(id, first, limit, step);
  if (!uniformity_.uniform_flow(id)) for_tail(id, rest, stop, step);
}

void Lowering::set_counter(ValueId id, LlvmValue counter) {
  set(id, 0, size_bytes(k_[id].type.scalar) == 8 ? counter : b_.trunc(counter, b_.i32));
  cell(id, 0).wide = counter;
}

// for (i = begin; i < limit; i += step) with the mask in force; returns the first i not run.
LlvmValue Lowering::scalar_loop(ValueId id, LlvmValue begin, LlvmValue limit, LlvmValue step) {
  const Instr& instr = k_[id];
  const Scalar s = instr.type.scalar;
  const LlvmBlock start = b_.block(), loop = b_.new_block("for"), done = b_.new_block("done");
  b_.branch(counter_before(s, begin, limit), loop, done);
  b_.enter(loop);
  const LlvmValue index = b_.phi(b_.i64);
  b_.incoming(index, begin, start);
  set_counter(id, index);
  region(instr.regions[0]);
  const LlvmValue next = advance(s, index, step);
  b_.incoming(index, next, b_.block());
  b_.branch(counter_before(s, next, limit), loop, done);
  const LlvmBlock last = b_.block();
  b_.enter(done);
  const LlvmValue rest = b_.phi(b_.i64);
  b_.incoming(rest, begin, start);
  b_.incoming(rest, next, last);
  return rest;
}

// The trips that only some lanes make.
void Lowering::for_tail(ValueId id, LlvmValue begin, LlvmValue end, LlvmValue step) {
  const Instr& instr = k_[id];
  const Scalar s = instr.type.scalar;
  const i64 stride = shape(instr.args[0]).stride;
  // With a step of a whole gang or more the first such trip is the last.
  const u64 gang = static_cast<u64>(stride) * (width_ - 1);
  const bool once = LLVMIsAConstantInt(step) && LLVMConstIntGetZExtValue(step) >= gang;
  const LlvmBlock start = b_.block(), loop = b_.new_block("tail"), done = b_.new_block("done");
  b_.branch(counter_before(s, begin, end), loop, done);
  b_.enter(loop);
  LlvmValue index = begin;
  if (!once) {
    index = b_.phi(b_.i64);
    b_.incoming(index, begin, start);
  }
  set_counter(id, index);
  const LlvmValue left = b_.call("llvm.umin", {b_.i64},  // at least 1
                                 {b_.sub(end, index), b_.integer(b_.i64, gang + 1)});
  const LlvmValue active = b_.icmp(LLVMIntULT, b_.steps(b_.i32, width_, 0, stride),
                                   b_.splat(b_.trunc(left, b_.i32), width_));
  const LlvmValue mask = both(mask_, active);
  if (mask_) {
    const LlvmBlock some = b_.new_block("some"), latch = b_.new_block("latch");
    b_.branch(any(mask), some, latch);
    b_.enter(some);
    under(mask, instr.regions[0]);
    b_.jump(latch);
    b_.enter(latch);
  } else {
    under(mask, instr.regions[0]);
  }
  if (once) {
    b_.jump(done);
  } else {
    const LlvmValue next = advance(s, index, step);
    b_.incoming(index, next, b_.block());
    b_.branch(counter_before(s, next, end), loop, done);
  }
  b_.enter(done);
}

// Lanes that begin or end at places of their own.
void Lowering::for_varying(ValueId id) {
  const Instr& instr = k_[id];
  const Scalar s = instr.type.scalar;
  const bool one = shape(id).affine;  // then lane 0 stands for all
  const LlvmValue begin = operand(instr.args[0], 0, one);
  const LlvmValue end = vector(instr.args[1]);
  const LlvmValue step = operand(instr.args[2], 0, one);
  const LlvmValue mask = mask_or_all();
  const LlvmBlock start = b_.block(), head = b_.new_block("for"), body = b_.new_block("some"),
                  done = b_.new_block("done");
  b_.jump(head);
  b_.enter(head);
  const Scope scope(*this);
  const LlvmValue index = b_.phi(Builder::type_of(begin));
  const LlvmValue active = b_.phi(Builder::type_of(mask));
  b_.incoming(index, begin, start);
  b_.incoming(active, mask, start);
  set(id, 0, index);
  const LlvmValue going = b_.and_(active, before(s, vector(id), end));
  b_.branch(any(going), body, done);
  b_.enter(body);
  under(going, instr.regions[0]);
  b_.incoming(index, b_.add(index, step), b_.block());  // lanes that are done may wrap
  b_.incoming(active, going, b_.block());
  b_.jump(head);
  b_.enter(done);
}

void Lowering::while_loop(ValueId id) {
  const Instr& instr = k_[id];
  const bool uniform = uniformity_.uniform_flow(id);
  const LlvmBlock start = b_.block(), head = b_.new_block("while"), body = b_.new_block("body"),
                  done = b_.new_block("done");
  const LlvmValue mask = uniform ? nullptr : mask_or_all();
  b_.jump(head);
  b_.enter(head);
  // The condition's values are visible in the branch that follows it.
  const Scope scope(*this);
  if (uniform) {
    region(instr.regions[0]);
    b_.branch(scalar(yield_id_), body, done);
    b_.enter(body);
    region(instr.regions[1]);
    b_.jump(head);
  } else {
    const LlvmValue active = b_.phi(Builder::type_of(mask));
    b_.incoming(active, mask, start);
    under(active, instr.regions[0]);
    const LlvmValue going = b_.and_(active, vector(yield_id_));
    b_.branch(any(going), body, done);
    b_.enter(body);
    under(going, instr.regions[1]);
    b_.incoming(active, going, b_.block());
    b_.jump(head);
  }
  b_.enter(done);
}

}  // namespace oa::codegen
