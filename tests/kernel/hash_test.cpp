// Hash of kernels: what counts and what does not.
#include "oa/kernel/hash.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "oa/kernel/lang.h"

namespace oa::kernel {
namespace {

Kernel sample() {
  return trace("sample", Target{}, 16, [] {
    Buffer x = param_buffer(Scalar::F32), y = param_buffer(Scalar::F16);
    U32 n = param_u32();
    Shared s(Scalar::F32, 32);
    Var<F32> sum(0.0f);
    For(lane(), n, U32(width()),
        [&](U32 i) { If(i < U32(7), [&] { sum += F32(x[i]); }, [&] { sum = F32(x[i]) * 2.0f; }); });
    s[lane()] = *sum;
    barrier();
    y[lane()] = s[lane() ^ U32(1)];
    x.atomic(AtomicOp::Add, U32(0), U32(1));
  });
}

// Renumbers every value to 3*id+5 and leaves junk in between.
Kernel spread(const Kernel& k) {
  Kernel out = k;
  out.name = "other name";
  out.instrs.assign(k.instrs.size() * 3 + 9, Instr{.op = Op::Barrier, .imm = 99});
  const auto to = [](ValueId id) { return id * 3 + 5; };
  const std::function<void(Region&)> fix = [&](Region& r) {
    for (ValueId& id : r) id = to(id);
  };
  for (size_t id = 0; id < k.instrs.size(); ++id) {
    Instr i = k.instrs[id];
    for (ValueId& a : i.args) a = to(a);
    for (Region& r : i.regions) fix(r);
    out.instrs[to(static_cast<ValueId>(id))] = i;
  }
  fix(out.body);
  return out;
}

TEST(KernelHash, IgnoresNameNumberingAndDeadEntries) {
  const Kernel k = sample();
  EXPECT_EQ(hash(k), hash(sample()));
  EXPECT_EQ(hash(k), hash(spread(k)));
}

TEST(KernelHash, IgnoresFieldsThatAnInstructionDoesNotHave) {
  Kernel k = sample();
  const Hash128 before = hash(k);
  for (Instr& i : k.instrs) {
    if (i.op == Op::Add) i.elem = Scalar::Bool;
    if (!yields_value(i.op)) i.type = Type{Scalar::I64};
  }
  EXPECT_EQ(hash(k), before);
}

TEST(KernelHash, CoversEverySemanticField) {
  std::set<Hash128> seen = {hash(sample())};
  const auto differs = [&](const char* what, const std::function<void(Kernel&)>& change) {
    Kernel k = sample();
    change(k);
    EXPECT_TRUE(seen.insert(hash(k)).second) << what;
  };
  const auto find = [](Kernel& k, Op op) -> Instr& {
    for (Instr& i : k.instrs) {
      if (i.op == op) return i;
    }
    throw std::logic_error("no such instruction");
  };
  differs("width", [](Kernel& k) { k.width = 32; });
  differs("subgroup", [](Kernel& k) { k.subgroup = 8; });
  differs("params", [](Kernel& k) { k.params++; });
  differs("shared count", [](Kernel& k) { k.shared[0].count++; });
  differs("shared elem", [](Kernel& k) { k.shared[0].elem = Scalar::U32; });
  differs("another shared slot", [](Kernel& k) { k.shared.push_back({Scalar::F32, 1}); });
  differs("variable type", [](Kernel& k) { k.vars[0].type.scalar = Scalar::U32; });
  differs("op", [&](Kernel& k) { find(k, Op::Mul).op = Op::Add; });
  differs("constant", [&](Kernel& k) { find(k, Op::Const).imm ^= 1; });
  differs("high half of a constant", [&](Kernel& k) { find(k, Op::Const).imm ^= 1ull << 40; });
  differs("type", [&](Kernel& k) { find(k, Op::Mul).type.scalar = Scalar::F64; });
  differs("lanes", [&](Kernel& k) { find(k, Op::Load).type.lanes = 4; });
  differs("fragment", [&](Kernel& k) { find(k, Op::Mul).type.use = FragUse::A; });
  differs("rows", [&](Kernel& k) { find(k, Op::Mul).type.rows = 16; });
  differs("cols", [&](Kernel& k) { find(k, Op::Mul).type.cols = 16; });
  differs("element of a store", [&](Kernel& k) { find(k, Op::Store).elem = Scalar::BF16; });
  differs("slot", [&](Kernel& k) { find(k, Op::SharedStore).slot = 1; });
  differs("scope", [&](Kernel& k) { find(k, Op::Barrier).imm = 3; });
  differs("operand",
          [&](Kernel& k) { std::swap(find(k, Op::Lt).args[0], find(k, Op::Lt).args[1]); });
  differs("branches",
          [&](Kernel& k) { std::swap(find(k, Op::If).regions[0], find(k, Op::If).regions[1]); });
  differs("order", [](Kernel& k) { std::swap(k.body[0], k.body[1]); });
  differs("a missing instruction", [](Kernel& k) { k.body.pop_back(); });
  differs("an instruction moved out of a loop", [&](Kernel& k) {
    Region& loop = find(k, Op::For).regions[0];
    k.body.push_back(loop.back());
    loop.pop_back();
  });
}

}  // namespace
}  // namespace oa::kernel
