#include "oa/kernel/simplify.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "oa/core/error.h"
#include "oa/kernel/dead_code.h"
#include "oa/kernel/op_info.h"
#include "oa/kernel/simplify_rules.h"

namespace oa::kernel {
namespace {

// What a region of the input does to memory, everything nested included.
struct Effects {
  bool device = false;      // writes device memory
  bool shared = false;      // writes workgroup memory
  std::vector<u32> stores;  // variables

  bool writes() const { return device || shared; }
  void add(const Effects& e) {
    device |= e.device;
    shared |= e.shared;
    stores.insert(stores.end(), e.stores.begin(), e.stores.end());
  }
};

class Simplifier : public Builder {
 public:
  explicit Simplifier(const Kernel& in) : in_(in), map_(in.instrs.size(), kNoValue) {
    out_.name = in.name;
    out_.width = in.width;
    out_.subgroup = in.subgroup;
    out_.params = in.params;
    out_.extents = in.extents;
    out_.shared = in.shared;
    out_.vars = in.vars;
    out_.instrs.reserve(in.instrs.size() + in.instrs.size() / 4 + 16);
    buckets_.assign(std::bit_ceil(2 * in.instrs.size() + 64), kNoNode);
    vars_.assign(in.vars.size(), kNoValue);
    effects_.resize(in.instrs.size());
    collect(in.body);
  }

  Kernel run() {
    open(false);
    walk(in_.body);
    out_.body = close();
    return remove_dead_code(std::move(out_));
  }

  ValueId emit(Instr i) override {
    if (!info(i.op).pure) return place(std::move(i), depth(), 0);
    if (i.op != Op::Const) {
      if (const ValueId v = apply_rules(*this, i); v != kNoValue) return v;
    }
    const u32 level = level_for(i);
    return share(std::move(i), 0, level);
  }

 private:
  static constexpr u32 kNoNode = ~0u;

  struct Scope {
    Region region;
    bool loop;       // runs again and again
    u32 serial;      // of the innermost loop scope around, 0 for none
    size_t var_log;  // size of var_log_ at entry
    size_t facts;    // size of facts_ at entry
  };

  struct Node {
    u64 hash;
    u64 tag;  // what else must agree: the state of memory for loads
    ValueId id;
    u32 next;
  };

  // ---- the input

  Effects& collect(const Region& r, Effects& sum) {
    for (ValueId id : r) {
      const Instr& i = in_[id];
      Effects& own = effects_[id];
      switch (i.op) {
        case Op::Store:
        case Op::Atomic:
        case Op::AtomicCas: own.device = true; break;
        case Op::SharedStore:
        case Op::SharedAtomic: own.shared = true; break;
        case Op::Barrier: own.device = own.shared = true; break;
        case Op::FragStore: (i.slot == kNoSlot ? own.device : own.shared) = true; break;
        case Op::VarStore: own.stores.push_back(i.slot); break;
        default:
          for (const Region& inner : i.regions) collect(inner, own);
      }
      sum.add(own);
    }
    return sum;
  }

  void collect(const Region& r) {
    Effects all;
    collect(r, all);
  }

  // ---- scopes of the output

  u32 depth() const { return static_cast<u32>(scopes_.size() - 1); }

  void open(bool loop) {
    const u32 serial = loop ? ++loops_ : scopes_.empty() ? 0 : scopes_.back().serial;
    scopes_.push_back({{}, loop, serial, var_log_.size(), facts_.size()});
  }

  Region close() {
    Scope& s = scopes_.back();
    while (var_log_.size() > s.var_log) {
      vars_[var_log_.back().first] = var_log_.back().second;
      var_log_.pop_back();
    }
    facts_.resize(s.facts);
    for (ValueId id : s.region) visible_[id] = false;
    Region r = std::move(s.region);
    scopes_.pop_back();
    return r;
  }

  // The outermost scope in which a pure instruction may stand: it leaves the loops that it does
  // not depend on. Sources stand at the top, where every branch shares them, but for parameters
  // that are too many to be held at once.
  u32 level_for(const Instr& i) const {
    const bool held = i.op != Op::Param || in_.params <= kMostHeldParams;
    if (i.args.empty() && held) return 0;
    u32 needed = 0;
    for (ValueId a : i.args) needed = std::max(needed, levels_[a]);
    u32 level = depth();
    while (level > needed && scopes_[level].loop) --level;
    return level;
  }

  ValueId place(Instr i, u32 level, u32 index_level) {
    const auto id = static_cast<ValueId>(out_.instrs.size());
    Range args[4] = {};
    for (size_t a = 0; a < std::min<size_t>(4, i.args.size()); ++a) args[a] = ranges_[i.args[a]];
    ranges_.push_back(yields_value(i.op) ? range_of(out_, i, args) : Range{});
    levels_.push_back(std::max(level, index_level));
    visible_.push_back(true);
    out_.instrs.push_back(std::move(i));
    if (index_level == 0) scopes_[level].region.push_back(id);
    return id;
  }

  // ---- sharing

  static u64 hash_of(const Instr& i, u64 tag) {
    const auto mix = [](u64 h, u64 x) {
      h = (h ^ x) * 0x9fb21c651e98df25ull;
      return h ^ (h >> 32);
    };
    u64 h = mix(tag, static_cast<u64>(i.op) | static_cast<u64>(i.type.scalar) << 8 |
                         static_cast<u64>(i.type.lanes) << 16 | static_cast<u64>(i.elem) << 24 |
                         static_cast<u64>(i.slot) << 32);
    h = mix(h, i.imm ^ (static_cast<u64>(i.type.rows) << 8 | i.type.cols));
    for (ValueId a : i.args) h = mix(h, a);
    return h;
  }

  static bool equal(const Instr& a, const Instr& b) {
    return a.op == b.op && a.type == b.type && a.imm == b.imm && a.slot == b.slot &&
           a.args == b.args && (a.elem == b.elem || !info(a.op).elem);
  }

  // The visible value that equals `i`, or `i` placed at `level`.
  ValueId share(Instr i, u64 tag, u32 level) {
    const u64 h = hash_of(i, tag);
    u32* link = &buckets_[h & (buckets_.size() - 1)];
    while (*link != kNoNode) {
      Node& n = nodes_[*link];
      if (!visible_[n.id]) {
        *link = n.next;  // its scope is closed
        continue;
      }
      if (n.hash == h && n.tag == tag && equal(out_.instrs[n.id], i)) return n.id;
      link = &n.next;
    }
    const ValueId id = place(std::move(i), level, 0);
    u32& head = buckets_[h & (buckets_.size() - 1)];
    nodes_.push_back({h, tag, id, head});
    head = static_cast<u32>(nodes_.size() - 1);
    return id;
  }

  // ---- the walk

  // What an operand is here: inside a branch its condition is known.
  ValueId mapped(ValueId old) {
    const ValueId v = map_[old];
    if (v == kNoValue) {
      fail(ErrorKind::Internal, "kernel::simplify", "{}: operand %{} has no value yet", in_.name,
           old);
    }
    for (size_t f = facts_.size(); f-- > 0;) {
      if (facts_[f].first == v) return constant(Scalar::Bool, facts_[f].second);
    }
    return v;
  }

  void walk(const Region& r) {
    for (ValueId id : r) visit(id);
  }

  Instr copy(const Instr& i) {
    Instr c{.op = i.op, .slot = i.slot, .imm = i.imm};
    if (yields_value(i.op)) c.type = i.type;
    if (info(i.op).elem) c.elem = i.elem;
    c.args.reserve(i.args.size());
    for (ValueId a : i.args) c.args.push_back(mapped(a));
    return c;
  }

  void visit(ValueId id) {
    const Instr& i = in_[id];
    switch (i.op) {
      case Op::If: return visit_if(id);
      case Op::For: return visit_for(id);
      case Op::While: return visit_while(id);
      case Op::VarLoad: {
        if (vars_[i.slot] == kNoValue) set_var(i.slot, emit(copy(i)));
        map_[id] = vars_[i.slot];
        return;
      }
      case Op::VarStore: {
        Instr c = copy(i);
        const ValueId value = c.args[0];
        if (vars_[i.slot] == value) return;  // holds it already
        emit(std::move(c));
        set_var(i.slot, value);
        return;
      }
      case Op::Load: map_[id] = load(copy(i), device_state_, loops_with_device_writes_); return;
      case Op::SharedLoad:
        map_[id] = load(copy(i), shared_state_, loops_with_shared_writes_);
        return;
      case Op::FragLoad:
        map_[id] = load(copy(i), i.slot == kNoSlot ? device_state_ : shared_state_, 1);
        return;
      default: map_[id] = emit(copy(i));
    }
    // Nothing read before is known after a write; a barrier lets others' writes in.
    touch(effects_[id]);
  }

  void touch(const Effects& e) {
    if (e.device) ++device_state_;
    if (e.shared) ++shared_state_;
  }

  // Loads share a value while memory stays as it is and no loop begins in between (a loop may wait
  // for a change by others). Out of a loop they move only if it writes nothing of the kind and
  // surely runs.
  ValueId load(Instr i, u64 state, u32 writing_loops) {
    u32 level = depth();
    if (writing_loops == 0) {
      u32 needed = 0;
      for (ValueId a : i.args) needed = std::max(needed, levels_[a]);
      while (level > needed && scopes_[level].loop && surely_runs_[level]) --level;
    }
    return share(std::move(i), (state + 1) << 32 | scopes_[level].serial, level);
  }

  void set_var(u32 slot, ValueId value) {
    var_log_.emplace_back(slot, vars_[slot]);
    vars_[slot] = value;
  }

  void forget_vars(const Effects& e) {
    for (u32 slot : e.stores) {
      if (vars_[slot] != kNoValue) set_var(slot, kNoValue);
    }
  }

  // Conditions that hold in a branch: those joined by And in one that is true, by Or in one that
  // is false.
  void assume(ValueId cond, bool truth) {
    facts_.emplace_back(cond, truth);
    const Instr& i = at(cond);
    if (i.op == Op::Not) return assume(i.args[0], !truth);
    if (i.op == (truth ? Op::And : Op::Or)) {
      const ValueId a = i.args[0], b = i.args[1];
      assume(a, truth), assume(b, truth);
    }
  }

  Region branch(const Region& r, ValueId cond, bool truth) {
    open(false);
    assume(cond, truth);
    walk(r);
    return close();
  }

  void visit_if(ValueId id) {
    const Instr& i = in_[id];
    ValueId cond = mapped(i.args[0]);
    if (const auto k = constant_of(cond)) return walk(i.regions[*k ? 0 : 1]);
    size_t yes = 0;
    if (at(cond).op == Op::Not) cond = at(cond).args[0], yes = 1;
    Instr c{.op = Op::If, .args = {cond}};
    c.regions.push_back(branch(i.regions[yes], cond, true));
    c.regions.push_back(branch(i.regions[1 - yes], cond, false));
    forget_vars(effects_[id]);
    if (c.regions[0].empty() && c.regions[1].empty()) return;
    place(std::move(c), depth(), 0);
  }

  void enter_loop(ValueId id) {
    forget_vars(effects_[id]);
    touch(effects_[id]);  // a later round sees the writes of an earlier one
  }

  void visit_for(ValueId id) {
    const Instr& i = in_[id];
    Instr c = copy(i);
    const Trips trips =
        trips_of(i.type.scalar, range(c.args[0]), range(c.args[1]), range(c.args[2]));
    if (trips == Trips::None) return;
    if (trips == Trips::One) {
      map_[id] = c.args[0];
      return walk(i.regions[0]);
    }
    enter_loop(id);
    const ValueId loop = place(std::move(c), depth(), depth() + 1);
    map_[id] = loop;
    const Effects& e = effects_[id];
    loops_with_device_writes_ += e.device;
    loops_with_shared_writes_ += e.shared;
    open(true);
    surely_runs_.resize(scopes_.size());
    surely_runs_[depth()] = trips == Trips::Some;
    walk(i.regions[0]);
    Region body = close();
    loops_with_device_writes_ -= e.device;
    loops_with_shared_writes_ -= e.shared;
    out_.instrs[loop].regions.push_back(std::move(body));
    scopes_.back().region.push_back(loop);
    forget_vars(e);
  }

  void visit_while(ValueId id) {
    const Instr& i = in_[id];
    enter_loop(id);
    const Effects& e = effects_[id];
    loops_with_device_writes_ += e.device;
    loops_with_shared_writes_ += e.shared;
    Instr c{.op = Op::While};
    for (const Region& r : i.regions) {
      open(true);
      surely_runs_.resize(scopes_.size());
      surely_runs_[depth()] = false;
      walk(r);
      c.regions.push_back(close());
      forget_vars(e);
    }
    loops_with_device_writes_ -= e.device;
    loops_with_shared_writes_ -= e.shared;
    place(std::move(c), depth(), 0);
  }

  const Kernel& in_;
  std::vector<ValueId> map_;      // input value -> output value
  std::vector<Effects> effects_;  // by input instruction
  std::vector<Scope> scopes_;
  std::vector<u32> levels_;    // by output value: index of the scope that holds it
  std::vector<char> visible_;  // by output value
  std::vector<Node> nodes_;
  std::vector<u32> buckets_;
  std::vector<ValueId> vars_;  // what a variable is known to hold
  std::vector<std::pair<u32, ValueId>> var_log_;
  std::vector<std::pair<ValueId, bool>> facts_;
  std::vector<char> surely_runs_;  // by scope: a loop that makes a trip at least
  u64 device_state_ = 0, shared_state_ = 0;
  u32 loops_with_device_writes_ = 0, loops_with_shared_writes_ = 0;
  u32 loops_ = 0;
};

}  // namespace

Kernel simplify(const Kernel& kernel) { return Simplifier(kernel).run(); }

}  // namespace oa::kernel
