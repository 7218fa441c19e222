// The look over a kernel that decides how its workgroup memory is laid out.
#include <algorithm>
#include <bit>

#include "oa/codegen/spirv/lowering.h"

namespace oa::codegen::spirv {

using kernel::Instr;
using kernel::kDeviceMemory;
using kernel::Kernel;
using kernel::Op;
using kernel::Region;
using kernel::Scalar;
using kernel::ValueId;

namespace {

u32 shared_cell_bytes(Scalar elem, const VulkanTarget& target) {
  if (size_bytes(elem) == 1 && !target.int8) return 4;
  if (elem == Scalar::BF16 && !target.int16) return 4;
  return size_bytes(elem);
}

// Instructions that nothing reaches do not count.
template <class Visit>
void for_each_instr(const Kernel& k, const Region& region, const Visit& visit) {
  for (ValueId id : region) {
    visit(k[id]);
    for (const Region& inner : k[id].regions) for_each_instr(k, inner, visit);
  }
}

}  // namespace

u32 known_divisor(const Kernel& k, ValueId id, u32 limit, u32 depth) {
  const Instr& i = k[id];
  if (depth == 0) return 1;
  const auto of = [&](size_t arg) { return known_divisor(k, i.args[arg], limit, depth - 1); };
  switch (i.op) {
    case Op::Const:
      return i.imm == 0 ? limit
                        : static_cast<u32>(std::min<u64>(limit, 1ull << std::countr_zero(i.imm)));
    case Op::Add:
    case Op::Sub:
    case Op::Rem:
    case Op::Or:
    case Op::Xor:
    case Op::Min:
    case Op::Max: return std::min(of(0), of(1));
    case Op::And: return std::max(of(0), of(1));
    case Op::Mul: return std::min(limit, of(0) * of(1));
    case Op::Shl: {
      const Instr& count = k[i.args[1]];
      const u32 shift = count.op == Op::Const ? static_cast<u32>(std::min<u64>(count.imm, 8)) : 0;
      return std::min(limit, of(0) << shift);
    }
    case Op::Cast: return is_integer(k[i.args[0]].type.scalar) ? of(0) : 1;
    case Op::Select: return std::min(of(1), of(2));
    case Op::For: return std::min(of(0), of(2));
    default: return 1;
  }
}

// A slot becomes an array of vectors where the kernel moves vectors through it, so that the device
// may use wide accesses. Atomics need plain cells; fragments do unless their offsets and strides
// are whole vectors.
KernelFacts survey(const Kernel& k, const VulkanTarget& target) {
  KernelFacts facts;
  facts.shared.resize(k.shared.size());
  std::vector<u32> limit(k.shared.size(), 4);
  for (size_t slot = 0; slot < k.shared.size(); ++slot) {
    facts.shared[slot].cell_bytes = shared_cell_bytes(k.shared[slot].elem, target);
    while (k.shared[slot].count % limit[slot] != 0) limit[slot] /= 2;
  }
  for (const auto& var : k.vars) facts.fragments |= var.type.is_fragment();
  for_each_instr(k, k.body, [&](const Instr& instr) {
    if (instr.op >= Op::FragFill && instr.op <= Op::FragCast) facts.fragments = true;
    if (instr.op == Op::Barrier && (instr.imm & kDeviceMemory)) facts.device_barrier = true;
    const bool memory = instr.op != Op::VarLoad && instr.op != Op::VarStore;
    if (!memory || instr.slot >= k.shared.size()) return;
    u32& lanes = facts.shared[instr.slot].lanes;
    switch (instr.op) {
      case Op::SharedLoad: lanes = std::max<u32>(lanes, instr.type.lanes); break;
      case Op::SharedStore: lanes = std::max<u32>(lanes, k[instr.args[1]].type.lanes); break;
      case Op::SharedAtomic: limit[instr.slot] = 1; break;
      case Op::FragLoad:
      case Op::FragStore: {
        u32& most = limit[instr.slot];
        const u32 per_cell = size_bytes(k.shared[instr.slot].elem) / size_bytes(instr.elem);
        for (u32 arg : {0, 1}) {
          const u32 divisor = known_divisor(k, instr.args[arg], 4 * per_cell);
          if (divisor < per_cell) facts.unaligned_pairs = true;
          most = std::max(1u, std::min(most, divisor / per_cell));
        }
        break;
      }
      default: break;
    }
  });
  for (size_t slot = 0; slot < k.shared.size(); ++slot) {
    facts.shared[slot].lanes = std::min(facts.shared[slot].lanes, limit[slot]);
  }
  // Fragments need the Vulkan memory model. Only there, too, may lanes exchange data through device
  // memory that passes caches of their own.
  facts.vulkan_model = facts.fragments || (facts.device_barrier && target.vulkan_memory_model);
  return facts;
}

}  // namespace oa::codegen::spirv
