#include "oa/kernel/op_info.h"

#include <array>

namespace oa::kernel {
namespace {

constexpr size_t kOps = static_cast<size_t>(Op::Yield) + 1;

constexpr std::array<OpInfo, kOps> table() {
  std::array<OpInfo, kOps> t{};
  const auto at = [&](Op op) -> OpInfo& { return t[static_cast<size_t>(op)]; };
  const auto range = [&](Op first, Op last, OpInfo i) {
    for (auto o = static_cast<size_t>(first); o <= static_cast<size_t>(last); ++o) t[o] = i;
  };
  const auto pure = [](u8 args) {
    return OpInfo{.min_args = args, .max_args = args, .pure = true};
  };
  const auto memory = [](u8 args, SlotUse slot = SlotUse::None) {
    return OpInfo{.min_args = args, .max_args = args, .slot = slot, .elem = true};
  };

  range(Op::Const, Op::GroupCount, pure(0));
  at(Op::Const).imm = ImmUse::Bits;
  at(Op::Param).imm = ImmUse::Number;
  range(Op::Neg, Op::RoundEven, pure(1));
  range(Op::Add, Op::Shr, pure(2));
  at(Op::Fma) = pure(3);
  range(Op::Eq, Op::Ge, pure(2));
  at(Op::Select) = pure(3);
  range(Op::Cast, Op::Bitcast, pure(1));
  at(Op::VecBuild) = {.min_args = 2, .max_args = 4, .pure = true};
  at(Op::VecExtract) = {.min_args = 1, .max_args = 1, .imm = ImmUse::Number, .pure = true};

  at(Op::Load) = memory(2);
  at(Op::Load).imm = ImmUse::Hint;
  at(Op::Store) = memory(3);
  at(Op::Store).imm = ImmUse::Hint;
  at(Op::Atomic) = memory(3);
  at(Op::Atomic).imm = ImmUse::Atomic;
  at(Op::AtomicCas) = memory(4);
  at(Op::SharedLoad) = memory(1, SlotUse::Shared);
  at(Op::SharedStore) = memory(2, SlotUse::Shared);
  at(Op::SharedAtomic) = memory(2, SlotUse::Shared);
  at(Op::SharedAtomic).imm = ImmUse::Atomic;
  at(Op::VarLoad) = {.slot = SlotUse::Var};
  at(Op::VarStore) = {.min_args = 1, .max_args = 1, .slot = SlotUse::Var};

  // Collectives run with every lane present, so they too are functions of their operands.
  at(Op::Shuffle) = pure(2);
  range(Op::ShuffleXor, Op::SubgroupAll, pure(1));
  at(Op::ShuffleXor).imm = ImmUse::Number;
  at(Op::Barrier) = {.imm = ImmUse::Scope};

  at(Op::FragFill) = pure(1);
  at(Op::FragLoad) = {.min_args = 2,
                      .max_args = 3,
                      .imm = ImmUse::Layout,
                      .slot = SlotUse::OptionalShared,
                      .elem = true};
  at(Op::FragStore) = at(Op::FragLoad);
  at(Op::FragStore).min_args = 3, at(Op::FragStore).max_args = 4;
  at(Op::FragMulAdd) = pure(3);
  range(Op::FragAdd, Op::FragMul, pure(2));
  at(Op::FragCast) = pure(1);
  for (auto o = static_cast<size_t>(Op::Shuffle); o <= static_cast<size_t>(Op::FragCast); ++o) {
    t[o].collective = true;
  }

  at(Op::If) = {.min_args = 1, .max_args = 1, .regions = 2};
  at(Op::For) = {.min_args = 3, .max_args = 3, .regions = 1, .imm = ImmUse::Hint};
  at(Op::While) = {.regions = 2};
  at(Op::Yield) = {.min_args = 1, .max_args = 1};
  return t;
}

constexpr std::array<OpInfo, kOps> kTable = table();

}  // namespace

const OpInfo& info(Op op) { return kTable[static_cast<size_t>(op)]; }

const char* hint_name(Op op) {
  return op == Op::Load ? "constant" : op == Op::Store ? "streaming" : "rolled";
}

const char* name(AtomicOp op) {
  static constexpr const char* kNames[] = {"add", "min", "max", "and", "or", "exchange"};
  return kNames[static_cast<int>(op)];
}

}  // namespace oa::kernel
