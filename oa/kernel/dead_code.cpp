#include "oa/kernel/dead_code.h"

#include <utility>

#include "oa/kernel/op_info.h"

namespace oa::kernel {
namespace {

class DeadCode {
 public:
  explicit DeadCode(Kernel k)
      : k_(std::move(k)), parent_(k_.instrs.size(), kNoValue), dropped_(k_.instrs.size()) {
    index(k_.body, kNoValue);
  }

  Kernel run() {
    mark();
    std::vector<char> live(k_.vars.size());
    scan(k_.body, live);
    if (any_dropped_) mark();
    return compact();
  }

 private:
  void index(const Region& r, ValueId parent) {
    for (ValueId id : r) {
      parent_[id] = parent;
      order_.push_back(id);
      for (const Region& inner : k_[id].regions) index(inner, id);
    }
  }

  bool reads_memory(const Region& r) const {
    for (ValueId id : r) {
      const Instr& i = k_[id];
      if (i.op == Op::Load || i.op == Op::SharedLoad) return true;
      for (const Region& inner : i.regions) {
        if (reads_memory(inner)) return true;
      }
    }
    return false;
  }

  bool has_effect(const Instr& i) const {
    switch (i.op) {
      case Op::Store:
      case Op::Atomic:
      case Op::AtomicCas:
      case Op::SharedAtomic:
      case Op::Barrier: return true;
      case Op::FragStore: return i.slot == kNoSlot;
      case Op::While: return reads_memory(i.regions[0]);
      default: return false;
    }
  }

  // Everything that an effect depends on is alive, and so is the flow around it. Stores to a slot
  // live once a reader of it does.
  void mark() {
    live_.assign(k_.instrs.size(), false);
    var_read_.assign(k_.vars.size(), false);
    shared_read_.assign(k_.shared.size(), false);
    std::vector<std::vector<ValueId>> var_stores(k_.vars.size()), shared_stores(k_.shared.size());
    for (ValueId id : order_) {
      const Instr& i = k_[id];
      if (dropped_[id]) continue;
      if (i.op == Op::VarStore) var_stores[i.slot].push_back(id);
      if (i.op == Op::SharedStore || (i.op == Op::FragStore && i.slot != kNoSlot)) {
        shared_stores[i.slot].push_back(id);
      }
      if (has_effect(i)) need(id);
    }
    const auto read = [&](std::vector<char>& seen, u32 slot, const std::vector<ValueId>& stores) {
      if (std::exchange(seen[slot], true)) return;
      for (ValueId id : stores) need(id);
    };
    while (!work_.empty()) {
      const ValueId id = work_.back();
      work_.pop_back();
      const Instr& i = k_[id];
      for (ValueId a : i.args) need(a);
      if (parent_[id] != kNoValue) need(parent_[id]);
      if (i.op == Op::While) need(i.regions[0].back());
      if (i.op == Op::VarLoad) read(var_read_, i.slot, var_stores[i.slot]);
      const bool shared = i.op == Op::SharedLoad || i.op == Op::SharedAtomic ||
                          (i.op == Op::FragLoad && i.slot != kNoSlot);
      if (shared) read(shared_read_, i.slot, shared_stores[i.slot]);
    }
  }

  void need(ValueId id) {
    if (std::exchange(live_[id], true)) return;
    work_.push_back(id);
  }

  // Walks a region backwards with the variables that are read later, and drops stores to others.
  void scan(const Region& r, std::vector<char>& live) {
    for (size_t n = r.size(); n-- > 0;) {
      const ValueId id = r[n];
      if (!live_[id]) continue;
      const Instr& i = k_[id];
      if (i.op == Op::VarLoad) live[i.slot] = true;
      if (i.op == Op::VarStore) {
        if (!live[i.slot]) dropped_[id] = any_dropped_ = true;
        live[i.slot] = false;
      }
      if (i.op == Op::If) {
        std::vector<char> other = live;
        scan(i.regions[0], live);
        scan(i.regions[1], other);
        join(live, other);
      }
      if (i.op == Op::For || i.op == Op::While) {
        // Another round may read whatever the loop reads.
        std::vector<char> around = live;
        for (const Region& inner : i.regions) reads(inner, around);
        for (const Region& inner : i.regions) {
          std::vector<char> before = around;
          scan(inner, before);
          join(live, before);
        }
      }
    }
  }

  static void join(std::vector<char>& to, const std::vector<char>& from) {
    for (size_t v = 0; v < to.size(); ++v) to[v] |= from[v];
  }

  void reads(const Region& r, std::vector<char>& live) const {
    for (ValueId id : r) {
      if (!live_[id]) continue;
      if (k_[id].op == Op::VarLoad) live[k_[id].slot] = true;
      for (const Region& inner : k_[id].regions) reads(inner, live);
    }
  }

  // Slots that stay, renumbered.
  template <class Slot>
  static std::vector<u32> keep(std::vector<Slot>& slots, const std::vector<char>& used) {
    std::vector<u32> to(slots.size(), kNoSlot);
    u32 next = 0;
    for (size_t s = 0; s < slots.size(); ++s) {
      if (!used[s]) continue;
      slots[next] = slots[s];
      to[s] = next++;
    }
    slots.resize(next);
    return to;
  }

  Kernel compact() {
    // A slot that is written but never read has no living stores.
    std::vector<char> var_used(k_.vars.size()), shared_used(k_.shared.size());
    for (ValueId id : order_) {
      const Instr& i = k_[id];
      if (!live_[id] || i.slot == kNoSlot) continue;
      (info(i.op).slot == SlotUse::Var ? var_used : shared_used)[i.slot] = true;
    }
    var_slots_ = keep(k_.vars, var_used);
    shared_slots_ = keep(k_.shared, shared_used);
    number_.assign(k_.instrs.size(), kNoValue);
    instrs_.reserve(order_.size());
    k_.body = moved(k_.body);
    k_.instrs = std::move(instrs_);
    return std::move(k_);
  }

  Region moved(const Region& r) {
    Region out;
    out.reserve(r.size());
    for (ValueId id : r) {
      if (!live_[id]) continue;
      const auto to = static_cast<ValueId>(instrs_.size());
      number_[id] = to;
      out.push_back(to);
      instrs_.push_back(std::move(k_.instrs[id]));
      Instr& i = instrs_.back();
      for (ValueId& a : i.args) a = number_[a];
      if (i.slot != kNoSlot) {
        i.slot = (info(i.op).slot == SlotUse::Var ? var_slots_ : shared_slots_)[i.slot];
      }
      std::vector<Region> regions = std::move(i.regions);  // `i` moves when instrs_ grows
      for (Region& inner : regions) inner = moved(inner);
      instrs_[to].regions = std::move(regions);
    }
    return out;
  }

  Kernel k_;
  std::vector<ValueId> parent_;  // the control flow that holds an instruction
  std::vector<ValueId> order_;   // instructions in the order of the text
  std::vector<char> live_, dropped_, var_read_, shared_read_;
  bool any_dropped_ = false;
  std::vector<ValueId> work_;
  std::vector<u32> var_slots_, shared_slots_;
  std::vector<ValueId> number_;
  std::vector<Instr> instrs_;
};

}  // namespace

Kernel remove_dead_code(Kernel kernel) { return DeadCode(std::move(kernel)).run(); }

}  // namespace oa::kernel
