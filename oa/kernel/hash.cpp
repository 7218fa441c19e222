#include "oa/kernel/hash.h"

#include "oa/core/error.h"

namespace oa::kernel {
namespace {

class Walk {
 public:
  explicit Walk(const Kernel& k) : k_(k), number_(k.instrs.size(), kNoValue) {}

  Hash128 run() {
    u32x(k_.width), u32x(k_.subgroup), u32x(k_.params);
    u32x(static_cast<u32>(k_.shared.size()));
    for (const SharedSlot& s : k_.shared) u32x(static_cast<u32>(s.elem)), u32x(s.count);
    u32x(static_cast<u32>(k_.vars.size()));
    for (const VarSlot& v : k_.vars) type(v.type);
    region(k_.body);
    flush();
    return hasher_.finish();
  }

 private:
  void u32x(u32 x) {
    if (used_ == std::size(buffer_)) flush();
    buffer_[used_++] = x;
  }

  void flush() {
    hasher_.bytes(buffer_, used_ * sizeof(u32));
    used_ = 0;
  }

  void type(const Type& t) {
    u32x(static_cast<u32>(t.scalar) | static_cast<u32>(t.lanes) << 8 |
         static_cast<u32>(t.use) << 16);
    u32x(static_cast<u32>(t.rows) | static_cast<u32>(t.cols) << 8);
  }

  void region(const Region& r) {
    u32x(static_cast<u32>(r.size()));
    for (ValueId id : r) {
      OA_CHECK(id < k_.instrs.size());
      instr(id);
    }
  }

  // An instruction gets its number before its regions, so a For's body can name the index.
  void instr(ValueId id) {
    const Instr& i = k_.instrs[id];
    number_[id] = next_++;
    u32x(static_cast<u32>(i.op) | static_cast<u32>(i.args.size()) << 8 |
         static_cast<u32>(i.regions.size()) << 16);
    if (yields_value(i.op)) type(i.type);
    if (touches_memory(i.op)) u32x(static_cast<u32>(i.elem));
    u32x(i.slot);
    u32x(static_cast<u32>(i.imm)), u32x(static_cast<u32>(i.imm >> 32));
    for (ValueId a : i.args) u32x(a < number_.size() ? number_[a] : kNoValue);
    for (const Region& r : i.regions) region(r);
  }

  static bool touches_memory(Op op) {
    switch (op) {
      case Op::Load:
      case Op::Store:
      case Op::Atomic:
      case Op::AtomicCas:
      case Op::SharedLoad:
      case Op::SharedStore:
      case Op::SharedAtomic:
      case Op::FragLoad:
      case Op::FragStore: return true;
      default: return false;
    }
  }

  const Kernel& k_;
  std::vector<u32> number_;
  u32 next_ = 0;
  Hasher hasher_;
  u32 buffer_[64];
  size_t used_ = 0;
};

}  // namespace

Hash128 hash(const Kernel& kernel) { return Walk(kernel).run(); }

}  // namespace oa::kernel
