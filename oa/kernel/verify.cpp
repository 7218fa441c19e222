#include "oa/kernel/verify.h"

#include <bit>

#include "oa/core/error.h"
#include "oa/kernel/op_info.h"
#include "oa/kernel/print.h"
#include "oa/kernel/uniformity.h"

namespace oa::kernel {
namespace {

bool is_value_scalar(Scalar s) { return value_scalar(s) == s; }
bool is_scalar(const Type& t) { return t.lanes == 1 && !t.is_fragment(); }
bool is_index(const Type& t) { return is_scalar(t) && is_integer(t.scalar); }

class Verifier {
 public:
  Verifier(const Kernel& k, const VerifyLimits& limits)
      : k_(k), limits_(limits), state_(k.instrs.size(), State::Unseen) {}

  void run() {
    kernel();
    region(k_.body, false);
    if (collectives_) flow(k_.body, Uniformity(k_), kNoValue);
  }

 private:
  enum class State : u8 { Unseen, Visible, Hidden };

  template <class... Args>
  [[noreturn]] void bad(fmt::format_string<Args...> text, Args&&... args) const {
    fail(ErrorKind::Internal, "kernel::verify", "{}: {}", k_.name,
         fmt::format(text, std::forward<Args>(args)...));
  }

  // A fault of the instruction under test.
  template <class... Args>
  [[noreturn]] void wrong(fmt::format_string<Args...> text, Args&&... args) const {
    bad("{}: {}", print(k_, at_), fmt::format(text, std::forward<Args>(args)...));
  }

  void kernel() const {
    if (k_.width == 0 || !std::has_single_bit(k_.width)) {
      bad("width is no power of two, got {}", k_.width);
    }
    if (k_.subgroup == 0 || !std::has_single_bit(k_.subgroup) || k_.subgroup > k_.width) {
      bad("subgroup is no power of two up to the width, got {} of {}", k_.subgroup, k_.width);
    }
    for (size_t s = 0; s < k_.shared.size(); ++s) {
      if (k_.shared[s].count == 0) bad("shared slot s{} is empty", s);
    }
    if (const u64 bytes = shared_bytes(k_); bytes > limits_.shared_bytes) {
      bad("too much shared memory, got {} bytes, expected at most {}", bytes, limits_.shared_bytes);
    }
    for (size_t v = 0; v < k_.vars.size(); ++v) {
      if (!is_legal(k_.vars[v].type)) {
        bad("variable v{} has no legal type, got {}", v, print(k_.vars[v].type));
      }
    }
  }

  static bool is_legal(const Type& t) {
    if (t.is_fragment()) {
      return t.use <= FragUse::C && t.lanes == 1 && t.rows > 0 && t.cols > 0 &&
             t.scalar != Scalar::Bool;
    }
    return is_value_scalar(t.scalar) && t.rows == 0 && t.cols == 0 &&
           (t.lanes == 1 || t.lanes == 2 || t.lanes == 4);
  }

  void region(const Region& r, bool yields) {
    for (size_t n = 0; n < r.size(); ++n) {
      at_ = r[n];
      if (at_ >= k_.instrs.size()) bad("a region names instruction {}, which does not exist", at_);
      if (state_[at_] != State::Unseen) wrong("stands in more than one place");
      const Instr& i = k_[at_];
      if (i.op > Op::Yield) wrong("unknown operation");
      const bool last = n + 1 == r.size();
      if (i.op == Op::Yield && !(yields && last)) {
        wrong("may only end the first region of a while");
      }
      if (yields && last && i.op != Op::Yield)
        wrong("the condition of a while must end in a yield");
      check(i);
      collectives_ |= info(i.op).collective;
      state_[at_] = State::Visible;
      nested(i);
    }
    if (yields && r.empty()) wrong("the condition of a while must end in a yield");
    for (ValueId id : r) state_[id] = State::Hidden;
  }

  void nested(const Instr& i) {
    const ValueId self = at_;
    for (size_t n = 0; n < i.regions.size(); ++n) {
      region(i.regions[n], i.op == Op::While && n == 0);
      at_ = self;
    }
    // The index of a loop exists only inside its body.
    if (i.op == Op::For) state_[self] = State::Hidden;
  }

  // Operations of the whole group stand only where every lane comes by; `varying` is the control
  // flow around that may send lanes different ways. The structure is known to be legal.
  void flow(const Region& r, const Uniformity& uniformity, ValueId varying) {
    for (ValueId id : r) {
      const Instr& i = k_[id];
      at_ = id;
      if (info(i.op).collective) {
        if (varying != kNoValue) {
          wrong("stands in control flow that may differ between lanes, `{}`", print(k_, varying));
        }
        uniform_operands(i, uniformity);
      }
      const bool splits = !i.regions.empty() && !uniformity.uniform_flow(id);
      for (const Region& inner : i.regions) flow(inner, uniformity, splits ? id : varying);
    }
  }

  // Where a fragment lies in memory is the same for all lanes of its subgroup. A whole group of
  // several subgroups may differ, so only one subgroup can be judged here.
  void uniform_operands(const Instr& i, const Uniformity& uniformity) const {
    if ((i.op != Op::FragLoad && i.op != Op::FragStore) || k_.subgroup != k_.width) return;
    const size_t n = i.op == Op::FragStore ? i.args.size() - 1 : i.args.size();
    for (size_t a = 0; a < n; ++a) {
      if (!uniformity.uniform(i.args[a])) wrong("operand %{} may differ between lanes", i.args[a]);
    }
  }

  const Type& arg(const Instr& i, size_t n) const { return k_[i.args[n]].type; }

  void check(const Instr& i) const {
    const OpInfo& what = info(i.op);
    if (i.args.size() < what.min_args || i.args.size() > what.max_args) {
      wrong("wrong number of operands, got {}, expected {}", i.args.size(),
            what.min_args == what.max_args ? fmt::format("{}", what.min_args)
                                           : fmt::format("{} to {}", what.min_args, what.max_args));
    }
    if (i.regions.size() != what.regions) {
      wrong("wrong number of regions, got {}, expected {}", i.regions.size(), what.regions);
    }
    for (ValueId a : i.args) {
      if (a >= k_.instrs.size() || state_[a] == State::Unseen) {
        wrong("operand %{} is used before its definition", a);
      }
      if (state_[a] == State::Hidden) wrong("operand %{} is not visible here", a);
      if (!yields_value(k_[a].op)) wrong("operand %{} is no value", a);
    }
    slot(i, what);
    if (yields_value(i.op) && !is_legal(i.type)) {
      wrong("no legal type of a value, got {}", print(i.type));
    }
    if (what.imm == ImmUse::None && i.imm != 0) wrong("immediate of {} has no meaning", i.imm);
    if (what.imm == ImmUse::Hint && i.imm > 1) wrong("unknown hint {}", i.imm);
    types(i);
  }

  // 16-bit elements of a fragment in cells of 32 bits.
  bool is_pairs(const Instr& i) const {
    return i.op == Op::FragLoad && k_.shared[i.slot].elem == Scalar::U32 &&
           (i.elem == Scalar::F16 || i.elem == Scalar::BF16);
  }

  void slot(const Instr& i, const OpInfo& what) const {
    switch (what.slot) {
      case SlotUse::None:
        if (i.slot != kNoSlot) wrong("a slot has no meaning");
        return;
      case SlotUse::OptionalShared:
        if (i.slot == kNoSlot) return;
        [[fallthrough]];
      case SlotUse::Shared:
        if (i.slot >= k_.shared.size()) {
          wrong("shared slot out of range, got {} of {}", i.slot, k_.shared.size());
        }
        if (k_.shared[i.slot].elem != i.elem && !is_pairs(i)) {
          wrong("element type is {}, expected {} as the slot has", name(i.elem),
                name(k_.shared[i.slot].elem));
        }
        return;
      case SlotUse::Var:
        if (i.slot >= k_.vars.size()) {
          wrong("variable out of range, got {} of {}", i.slot, k_.vars.size());
        }
    }
  }

  // The value (of role `what`) must have type `expected`.
  void same(const Type& got, const Type& expected, const char* what) const {
    if (got != expected) wrong("{} is {}, expected {}", what, print(got), print(expected));
  }

  void all_same(const Instr& i) const {
    for (size_t n = 0; n < i.args.size(); ++n) {
      if (arg(i, n) != i.type) {
        wrong("operand %{} is {}, expected {}", i.args[n], print(arg(i, n)), print(i.type));
      }
    }
  }

  void require(bool ok, const Type& got, const char* what, const char* expected) const {
    if (!ok) wrong("{} is {}, expected {}", what, print(got), expected);
  }

  void types(const Instr& i) const {
    const Scalar s = i.type.scalar;
    switch (i.op) {
      case Op::Const:
        require(is_scalar(i.type), i.type, "result", "a scalar");
        if ((size_bytes(s) < 8 && i.imm >> (8 * size_bytes(s))) ||
            (s == Scalar::Bool && i.imm > 1)) {
          wrong("constant {:#x} does not fit its type", i.imm);
        }
        return;
      case Op::Param:
        require(is_scalar(i.type) && s != Scalar::Bool && s != Scalar::F64, i.type, "result",
                "u64, i64, u32, i32 or f32");
        if (i.imm >= k_.params) wrong("parameter out of range, got {} of {}", i.imm, k_.params);
        return;
      case Op::LaneId:
      case Op::GroupId:
      case Op::GroupCount: return same(i.type, Type{Scalar::U32}, "result");
      case Op::If: return same(arg(i, 0), Type{Scalar::Bool}, "condition");
      case Op::Yield: return same(arg(i, 0), Type{Scalar::Bool}, "condition");
      case Op::For: return loop(i);
      case Op::While: return;
      case Op::Barrier:
        if (i.imm == 0 || i.imm > (kSharedMemory | kDeviceMemory)) {
          wrong("unknown scope {}", i.imm);
        }
        return;
      case Op::VarLoad: return same(i.type, k_.vars[i.slot].type, "result");
      case Op::VarStore: return same(arg(i, 0), k_.vars[i.slot].type, "value");
      default: break;
    }
    if (i.op >= Op::Neg && i.op <= Op::Bitcast) return arithmetic(i);
    if (i.op >= Op::FragFill && i.op <= Op::FragCast) return fragment(i);
    if (i.op >= Op::Load && i.op <= Op::SharedAtomic) return memory(i);
    if (i.op >= Op::Shuffle && i.op <= Op::SubgroupAll) return lanes(i);
    vector(i);
  }

  void loop(const Instr& i) const {
    require(is_index(i.type), i.type, "index", "an integer");
    all_same(i);
    const Instr& step = k_[i.args[2]];
    const u64 sign = u64{1} << (8 * size_bytes(i.type.scalar) - 1);
    if (step.op == Op::Const &&
        (step.imm == 0 || (is_signed(i.type.scalar) && (step.imm & sign)))) {
      wrong("the step is not positive");
    }
  }

  void arithmetic(const Instr& i) const {
    const Scalar s = i.type.scalar;
    if (i.op == Op::Select) {
      same(arg(i, 0), Type{Scalar::Bool}, "condition");
      require(!i.type.is_fragment(), i.type, "result", "a scalar or vector");
      same(arg(i, 1), i.type, "first value");
      return same(arg(i, 2), i.type, "second value");
    }
    if (i.op == Op::Bitcast) {
      const Type& from = arg(i, 0);
      require(!from.is_fragment() && from.scalar != Scalar::Bool, from, "operand", "a number");
      if (i.type.is_fragment() || s == Scalar::Bool || i.type.lanes != from.lanes ||
          size_bytes(s) != size_bytes(from.scalar)) {
        wrong("result is {}, expected the size of {}", print(i.type), print(from));
      }
      return;
    }
    require(is_scalar(i.type), i.type, "result", "a scalar");
    if (i.op == Op::Cast) {
      return require(is_scalar(arg(i, 0)), arg(i, 0), "operand", "a scalar");
    }
    if (is_compare(i.op)) {
      same(i.type, Type{Scalar::Bool}, "result");
      const Type& a = arg(i, 0);
      same(arg(i, 1), a, "second operand");
      const bool order = i.op != Op::Eq && i.op != Op::Ne;
      return require(is_scalar(a) && !(order && a.scalar == Scalar::Bool), a, "operand",
                     order ? "a number" : "a scalar");
    }
    all_same(i);
    const bool integer = is_integer(s);
    switch (i.op) {
      case Op::Abs: return require(is_float(s) || is_signed(s), i.type, "result", "a signed type");
      case Op::Sqrt:
      case Op::Floor:
      case Op::Ceil:
      case Op::Trunc:
      case Op::RoundEven:
      case Op::Fma: return require(is_float(s), i.type, "result", "a float");
      case Op::MulHi: return same(i.type, Type{Scalar::U32}, "result");
      case Op::Shl:
      case Op::Shr: return require(integer, i.type, "result", "an integer");
      case Op::Not:
      case Op::And:
      case Op::Or:
      case Op::Xor:
        return require(integer || s == Scalar::Bool, i.type, "result", "an integer or bool");
      default: return require(s != Scalar::Bool, i.type, "result", "a number");
    }
  }

  void vector(const Instr& i) const {
    if (i.op == Op::VecBuild) {
      require(i.type.lanes == i.args.size() && i.type.lanes > 1, i.type, "result",
              "a vector of the operands");
      for (size_t n = 0; n < i.args.size(); ++n) same(arg(i, n), Type{i.type.scalar}, "component");
      return;
    }
    const Type& v = arg(i, 0);
    require(v.lanes > 1, v, "operand", "a vector");
    same(i.type, Type{v.scalar}, "result");
    if (i.imm >= v.lanes) wrong("component out of range, got {} of {}", i.imm, v.lanes);
  }

  void memory(const Instr& i) const {
    size_t n = 0;
    if (i.op <= Op::AtomicCas) same(arg(i, n++), Type{Scalar::U64}, "address");
    require(is_index(arg(i, n)), arg(i, n), "index", "an integer");
    ++n;
    const bool atomic = i.op == Op::Atomic || i.op == Op::AtomicCas || i.op == Op::SharedAtomic;
    if (atomic) {
      if (i.elem != Scalar::I32 && i.elem != Scalar::U32) {
        wrong("element type is {}, expected i32 or u32", name(i.elem));
      }
      same(i.type, Type{i.elem}, "result");
      for (; n < i.args.size(); ++n) same(arg(i, n), Type{i.elem}, "value");
      if (i.op != Op::AtomicCas && i.imm > static_cast<u64>(AtomicOp::Exchange)) {
        wrong("unknown atomic operation {}", i.imm);
      }
      return;
    }
    const Type& value = n < i.args.size() ? arg(i, n) : i.type;
    if (value.is_fragment() || value.scalar != value_scalar(i.elem)) {
      wrong("value is {}, expected {}", print(value), name(value_scalar(i.elem)));
    }
  }

  void lanes(const Instr& i) const {
    if (i.op == Op::SubgroupAny || i.op == Op::SubgroupAll) {
      same(arg(i, 0), Type{Scalar::Bool}, "operand");
      return same(i.type, Type{Scalar::Bool}, "result");
    }
    require(is_scalar(i.type), i.type, "result", "a scalar");
    same(arg(i, 0), i.type, "value");
    if (i.op == Op::Shuffle) return same(arg(i, 1), Type{Scalar::U32}, "source lane");
    if (i.imm >= k_.subgroup) {
      wrong("mask reaches beyond the subgroup, got {} of {}", i.imm, k_.subgroup);
    }
  }

  void fragment(const Instr& i) const {
    switch (i.op) {
      case Op::FragFill:
        require(i.type.is_fragment(), i.type, "result", "a fragment");
        return same(arg(i, 0), Type{value_scalar(i.type.scalar)}, "value");
      case Op::FragLoad:
      case Op::FragStore: return fragment_memory(i);
      case Op::FragMulAdd: {
        const Type &a = arg(i, 0), &b = arg(i, 1);
        require(a.use == FragUse::A, a, "first operand", "an A fragment");
        require(b.use == FragUse::B, b, "second operand", "a B fragment");
        require(i.type.use == FragUse::C, i.type, "result", "a C fragment");
        same(arg(i, 2), i.type, "third operand");
        if (a.scalar != b.scalar || a.cols != b.rows || a.rows != i.type.rows ||
            b.cols != i.type.cols) {
          wrong("shapes do not fit, got {} x {} -> {}", print(a), print(b), print(i.type));
        }
        return;
      }
      case Op::FragCast: {
        Type from = arg(i, 0);
        require(from.use == FragUse::C, from, "operand", "a C fragment");
        from.scalar = i.type.scalar;
        return same(i.type, from, "result");
      }
      default:
        require(i.type.use == FragUse::C, i.type, "result", "a C fragment");
        return all_same(i);
    }
  }

  void fragment_memory(const Instr& i) const {
    const bool load = i.op == Op::FragLoad;
    const size_t first = i.slot == kNoSlot ? 1 : 0;
    const size_t expected = first + (load ? 2 : 3);
    if (i.args.size() != expected) {
      wrong("wrong number of operands, got {}, expected {}", i.args.size(), expected);
    }
    if (first) same(arg(i, 0), Type{Scalar::U64}, "address");
    require(is_index(arg(i, first)), arg(i, first), "offset", "an integer");
    require(is_index(arg(i, first + 1)), arg(i, first + 1), "stride", "an integer");
    const Type& f = load ? i.type : arg(i, first + 2);
    require(f.is_fragment(), f, load ? "result" : "value", "a fragment");
    if (f.scalar != i.elem) {
      wrong("element type is {}, expected {} as the fragment has", name(i.elem), name(f.scalar));
    }
    if (i.imm > 1) wrong("unknown layout {}", i.imm);
  }

  const Kernel& k_;
  const VerifyLimits& limits_;
  std::vector<State> state_;
  ValueId at_ = 0;
  bool collectives_ = false;
};

}  // namespace

u64 shared_bytes(const Kernel& kernel) {
  u64 total = 0;
  for (const SharedSlot& s : kernel.shared) {
    total = (total + 15) / 16 * 16 + u64{s.count} * size_bytes(s.elem);
  }
  return total;
}

void verify(const Kernel& kernel, const VerifyLimits& limits) { Verifier(kernel, limits).run(); }

}  // namespace oa::kernel
