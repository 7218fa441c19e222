// Memory, lanes and fragments.
#include <algorithm>
#include <bit>

#include "oa/codegen/spirv/lowering.h"

namespace oa::codegen::spirv {

using kernel::AtomicOp;
using kernel::FragUse;
using kernel::Instr;
using kernel::kDeviceMemory;
using kernel::Kernel;
using kernel::kNoSlot;
using kernel::kSharedMemory;
using kernel::Op;
using kernel::Scalar;
using kernel::Type;
using kernel::ValueId;

namespace {

constexpr u32 id_of(spv::Scope scope) { return static_cast<u32>(scope); }

u32 shared_cell_bytes(Scalar elem, const VulkanTarget& target) {
  if (size_bytes(elem) == 1 && !target.int8) return 4;
  if (elem == Scalar::BF16 && !target.int16) return 4;
  return size_bytes(elem);
}

// The largest power of two, at most `limit`, that divides an integer value for certain. `depth`
// bounds the walk over shared operands.
u32 known_divisor(const Kernel& k, ValueId id, u32 limit, u32 depth = 6) {
  const Instr& i = k[id];
  if (depth == 0) return 1;
  const auto of = [&](size_t arg) { return known_divisor(k, i.args[arg], limit, depth - 1); };
  switch (i.op) {
    case Op::Const:
      return i.imm == 0 ? limit
                        : static_cast<u32>(std::min<u64>(limit, 1ull << std::countr_zero(i.imm)));
    case Op::Add:
    case Op::Sub:
    case Op::Or: return std::min(of(0), of(1));
    case Op::And: return std::max(of(0), of(1));
    case Op::Mul: return std::min(limit, of(0) * of(1));
    case Op::Shl: {
      const Instr& count = k[i.args[1]];
      const u32 shift = count.op == Op::Const ? static_cast<u32>(std::min<u64>(count.imm, 8)) : 0;
      return std::min(limit, of(0) << shift);
    }
    case Op::Select: return std::min(of(1), of(2));
    case Op::For: return std::min(of(0), of(2));
    default: return 1;
  }
}

// Instructions that nothing reaches do not count.
template <class Visit>
void for_each_instr(const Kernel& k, const kernel::Region& region, const Visit& visit) {
  for (ValueId id : region) {
    visit(k[id]);
    for (const kernel::Region& inner : k[id].regions) for_each_instr(k, inner, visit);
  }
}

}  // namespace

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
        most = std::min(most, known_divisor(k, instr.args[0], 4));
        most = std::min(most, known_divisor(k, instr.args[1], 4));
        break;
      }
      default: break;
    }
  });
  for (size_t slot = 0; slot < k.shared.size(); ++slot) {
    facts.shared[slot].lanes = std::min(facts.shared[slot].lanes, limit[slot]);
  }
  return facts;
}

// --- Elements ---------------------------------------------------------------------------------

Id Lowering::cell_type(Scalar elem, u32 cell_bytes) {
  if (elem == Scalar::F16) return b_.type_float(16);
  if (cell_bytes < 4 || elem == Scalar::BF16 || elem == Scalar::U8 || elem == Scalar::Bool) {
    return b_.type_int(8 * cell_bytes);
  }
  return scalar_type(elem);
}

// The value that a cell holds.
Id Lowering::decode(Scalar elem, u32 cell_bytes, u32 lanes, Id cell) {
  const Id u32_type = b_.type_vector(b_.type_int(32), lanes);
  const auto splat = [&](u32 x) { return b_.constant_splat(u32_type, b_.constant_u32(x), lanes); };
  const auto widened = [&] {
    return cell_bytes == 4 ? cell : b_.emit(spv::Op::OpUConvert, u32_type, {cell});
  };
  switch (elem) {
    case Scalar::U8: return widened();
    case Scalar::Bool:
      return b_.emit(spv::Op::OpINotEqual, b_.type_vector(b_.type_bool(), lanes),
                     {widened(), splat(0)});
    case Scalar::F16:
      return b_.emit(spv::Op::OpFConvert, b_.type_vector(b_.type_float(32), lanes), {cell});
    case Scalar::BF16: {
      const Id bits = b_.emit(spv::Op::OpShiftLeftLogical, u32_type, {widened(), splat(16)});
      return b_.emit(spv::Op::OpBitcast, b_.type_vector(b_.type_float(32), lanes), {bits});
    }
    default: return cell;
  }
}

// The cell that holds a value. In device memory F16 is rounded by the conversion itself.
Id Lowering::encode(Scalar elem, u32 cell_bytes, u32 lanes, Id value, bool device) {
  const Id u32_type = b_.type_vector(b_.type_int(32), lanes);
  const auto splat = [&](u32 x) { return b_.constant_splat(u32_type, b_.constant_u32(x), lanes); };
  const auto narrowed = [&](Id x) {
    if (cell_bytes == 4) return x;
    return b_.emit(spv::Op::OpUConvert, b_.type_vector(cell_type(elem, cell_bytes), lanes), {x});
  };
  const auto integer = [&](spv::Op op, Id x, u32 y) {
    return b_.emit(op, u32_type, {x, splat(y)});
  };
  switch (elem) {
    case Scalar::U8:
      return narrowed(cell_bytes == 4 ? integer(spv::Op::OpBitwiseAnd, value, 0xff) : value);
    case Scalar::Bool: return narrowed(select(u32_type, value, splat(1), splat(0)));
    case Scalar::F16: {
      const Id half =
          b_.emit(spv::Op::OpFConvert, b_.type_vector(b_.type_float(16), lanes), {value});
      if (device) {
        b_.decorate(half, spv::Decoration::FPRoundingMode,
                    {static_cast<u32>(spv::FPRoundingMode::RTE)});
      }
      return half;
    }
    case Scalar::BF16: {
      const Id bits = b_.emit(spv::Op::OpBitcast, u32_type, {value});
      const Id magnitude = integer(spv::Op::OpBitwiseAnd, bits, 0x7fffffff);
      const Id nan = b_.emit(spv::Op::OpUGreaterThan, b_.type_vector(b_.type_bool(), lanes),
                             {magnitude, splat(0x7f800000)});
      const Id quiet = integer(spv::Op::OpBitwiseOr, bits, 0x00400000);
      const Id odd =
          integer(spv::Op::OpBitwiseAnd, integer(spv::Op::OpShiftRightLogical, bits, 16), 1);
      const Id up = b_.emit(spv::Op::OpIAdd, u32_type, {bits, odd});
      const Id rounded = integer(spv::Op::OpIAdd, up, 0x7fff);
      const Id chosen = select(u32_type, nan, quiet, rounded);
      return narrowed(integer(spv::Op::OpShiftRightLogical, chosen, 16));
    }
    default: return value;
  }
}

// --- Device memory ----------------------------------------------------------------------------

Id Lowering::element_address(Id address, ValueId index, u32 bytes) {
  const Id u64_type = b_.type_int(64);
  const Instr& i = kernel_[index];
  const Scalar s = i.type.scalar;
  if (i.op == Op::Const) {
    u64 x = i.imm;
    if (s == Scalar::I32) x = static_cast<u64>(static_cast<i64>(static_cast<i32>(x)));
    if (x == 0) return address;
    return b_.emit(spv::Op::OpIAdd, u64_type, {address, b_.constant_u64(x * bytes)});
  }
  Id offset = cast(s, s == Scalar::I32 ? Scalar::I64 : Scalar::U64, value(index));
  if (bytes > 1) {
    const u32 shift = static_cast<u32>(std::countr_zero(bytes));
    offset = b_.emit(spv::Op::OpShiftLeftLogical, u64_type, {offset, b_.constant_u32(shift)});
  }
  return b_.emit(spv::Op::OpIAdd, u64_type, {address, offset});
}

Id Lowering::element_pointer(Id address, ValueId index, Scalar elem, u32 lanes) {
  const u32 bytes = size_bytes(elem);
  if (bytes == 1) {
    if (!target_.u8_storage) missing("8-bit storage");
    b_.capability(spv::Capability::StorageBuffer8BitAccess);
  }
  if (bytes == 2) {
    if (!target_.f16_storage) missing("16-bit storage");
    b_.capability(spv::Capability::StorageBuffer16BitAccess);
  }
  const Id type = b_.type_pointer(spv::StorageClass::PhysicalStorageBuffer,
                                  b_.type_vector(cell_type(elem, bytes), lanes));
  return b_.emit(spv::Op::OpConvertUToPtr, type, {element_address(address, index, bytes)});
}

// Memory operands. In the Vulkan memory model only non-private accesses are ordered by barriers.
std::vector<u32> Lowering::access(u32 align, bool device) const {
  const bool shared = facts_.fragments && (!device || facts_.device_barrier);
  const u32 mask = (device ? static_cast<u32>(spv::MemoryAccessMask::Aligned) : 0) |
                   (shared ? static_cast<u32>(spv::MemoryAccessMask::NonPrivatePointer) : 0);
  if (mask == 0) return {};
  if (device) return {mask, align};
  return {mask};
}

Id Lowering::load(Id type, Id pointer, u32 align, bool device) {
  std::vector<u32> operands = {pointer};
  for (u32 w : access(align, device)) operands.push_back(w);
  return b_.emit(spv::Op::OpLoad, type, operands);
}

void Lowering::store(Id pointer, Id object, u32 align, bool device) {
  std::vector<u32> operands = {pointer, object};
  for (u32 w : access(align, device)) operands.push_back(w);
  b_.effect(spv::Op::OpStore, operands);
}

Id Lowering::lower_memory(const Instr& instr) {
  const Scalar elem = instr.elem;
  const u32 bytes = size_bytes(elem);
  switch (instr.op) {
    case Op::Load: {
      const u32 lanes = instr.type.lanes;
      const Id pointer = element_pointer(value(instr.args[0]), instr.args[1], elem, lanes);
      const Id type = b_.type_vector(cell_type(elem, bytes), lanes);
      const Id cell = load(type, pointer, std::min(16u, lanes * bytes), true);
      return decode(elem, bytes, lanes, cell);
    }
    case Op::Store: {
      const u32 lanes = type_of_value(instr.args[2]).lanes;
      const Id pointer = element_pointer(value(instr.args[0]), instr.args[1], elem, lanes);
      const Id cell = encode(elem, bytes, lanes, value(instr.args[2]), true);
      store(pointer, cell, std::min(16u, lanes * bytes), true);
      return 0;
    }
    case Op::SharedLoad: return shared_load(instr);
    case Op::SharedStore: shared_store(instr); return 0;
    default: return atomic(instr);
  }
}

Id Lowering::atomic(const Instr& instr) {
  using O = spv::Op;
  const Scalar elem = instr.elem;
  if (elem != Scalar::I32 && elem != Scalar::U32) malformed(instr, "element is not i32 or u32");
  const bool device = instr.op != Op::SharedAtomic;
  const Id type = scalar_type(elem);
  const Id pointer = device ? element_pointer(value(instr.args[0]), instr.args[1], elem, 1)
                            : shared_pointer(instr.slot, index_u32(instr.args[0]));
  // Device scope in the Vulkan memory model is a feature of its own; a queue family is as wide
  // here.
  const auto device_scope = facts_.fragments ? spv::Scope::QueueFamily : spv::Scope::Device;
  const Id scope = b_.constant_u32(id_of(device ? device_scope : spv::Scope::Workgroup));
  const Id relaxed = b_.constant_u32(0);
  const Id operand = value(instr.args.back());
  if (instr.op == Op::AtomicCas) {
    return b_.emit(O::OpAtomicCompareExchange, type,
                   {pointer, scope, relaxed, relaxed, operand, value(instr.args[2])});
  }
  const bool sign = elem == Scalar::I32;
  O op = O::OpAtomicExchange;
  switch (static_cast<AtomicOp>(instr.imm)) {
    case AtomicOp::Add: op = O::OpAtomicIAdd; break;
    case AtomicOp::Min: op = sign ? O::OpAtomicSMin : O::OpAtomicUMin; break;
    case AtomicOp::Max: op = sign ? O::OpAtomicSMax : O::OpAtomicUMax; break;
    case AtomicOp::And: op = O::OpAtomicAnd; break;
    case AtomicOp::Or: op = O::OpAtomicOr; break;
    case AtomicOp::Exchange: op = O::OpAtomicExchange; break;
  }
  return b_.emit(op, type, {pointer, scope, relaxed, operand});
}

// --- Workgroup memory -------------------------------------------------------------------------

Id Lowering::index_u32(ValueId index) {
  const Scalar s = type_of_value(index).scalar;
  return size_bytes(s) == 8 ? cast(s, Scalar::U32, value(index)) : value(index);
}

Id Lowering::index_plus(Id index, u32 offset) {
  if (offset == 0) return index;
  return b_.emit(spv::Op::OpIAdd, b_.type_int(32), {index, b_.constant_u32(offset)});
}

Id Lowering::shared_pointer(u32 slot, Id index) {
  const SharedLayout& layout = facts_.shared[slot];
  const Id cell = cell_type(kernel_.shared[slot].elem, layout.cell_bytes);
  const Id type = b_.type_pointer(spv::StorageClass::Workgroup, cell);
  if (layout.lanes == 1) return b_.emit(spv::Op::OpAccessChain, type, {shared_[slot], index});
  const Id u32_type = b_.type_int(32);
  const u32 shift = static_cast<u32>(std::countr_zero(layout.lanes));
  const Id whole = b_.emit(spv::Op::OpShiftRightLogical, u32_type, {index, b_.constant_u32(shift)});
  const Id part =
      b_.emit(spv::Op::OpBitwiseAnd, u32_type, {index, b_.constant_u32(layout.lanes - 1)});
  return b_.emit(spv::Op::OpAccessChain, type, {shared_[slot], whole, part});
}

Id Lowering::shared_vector_pointer(u32 slot, Id index) {
  const SharedLayout& layout = facts_.shared[slot];
  const Id cell = cell_type(kernel_.shared[slot].elem, layout.cell_bytes);
  const Id type = b_.type_pointer(spv::StorageClass::Workgroup, b_.type_vector(cell, layout.lanes));
  if (layout.lanes == 1) return b_.emit(spv::Op::OpAccessChain, type, {shared_[slot], index});
  const u32 shift = static_cast<u32>(std::countr_zero(layout.lanes));
  const Id whole =
      b_.emit(spv::Op::OpShiftRightLogical, b_.type_int(32), {index, b_.constant_u32(shift)});
  return b_.emit(spv::Op::OpAccessChain, type, {shared_[slot], whole});
}

Id Lowering::shared_load(const Instr& instr) {
  const SharedLayout& layout = facts_.shared[instr.slot];
  const Scalar elem = kernel_.shared[instr.slot].elem;
  const u32 lanes = instr.type.lanes;
  const Id index = index_u32(instr.args[0]);
  const Id cell = cell_type(elem, layout.cell_bytes);
  const Id type = b_.type_vector(cell, lanes);
  Id cells = 0;
  if (lanes == layout.lanes) {
    cells = load(type, shared_vector_pointer(instr.slot, index), 0, false);
  } else {
    std::vector<u32> parts;
    for (u32 i = 0; i < lanes; ++i) {
      parts.push_back(load(cell, shared_pointer(instr.slot, index_plus(index, i)), 0, false));
    }
    cells = lanes == 1 ? parts[0] : b_.emit(spv::Op::OpCompositeConstruct, type, parts);
  }
  return decode(elem, layout.cell_bytes, lanes, cells);
}

void Lowering::shared_store(const Instr& instr) {
  const SharedLayout& layout = facts_.shared[instr.slot];
  const Scalar elem = kernel_.shared[instr.slot].elem;
  const u32 lanes = type_of_value(instr.args[1]).lanes;
  const Id index = index_u32(instr.args[0]);
  const Id cells = encode(elem, layout.cell_bytes, lanes, value(instr.args[1]), false);
  if (lanes == layout.lanes) {
    return store(shared_vector_pointer(instr.slot, index), cells, 0, false);
  }
  const Id cell = cell_type(elem, layout.cell_bytes);
  for (u32 i = 0; i < lanes; ++i) {
    const Id part = lanes == 1 ? cells : b_.emit(spv::Op::OpCompositeExtract, cell, {cells, i});
    store(shared_pointer(instr.slot, index_plus(index, i)), part, 0, false);
  }
}

void Lowering::barrier(const Instr& instr) {
  using S = spv::MemorySemanticsMask;
  u32 semantics = 0;
  if (instr.imm & kSharedMemory) semantics |= static_cast<u32>(S::WorkgroupMemory);
  if (instr.imm & kDeviceMemory) semantics |= static_cast<u32>(S::UniformMemory);
  if (semantics != 0) {
    semantics |= static_cast<u32>(S::AcquireRelease);
    if (facts_.fragments) {
      semantics |= static_cast<u32>(S::MakeAvailable) | static_cast<u32>(S::MakeVisible);
    }
  }
  const Id scope = b_.constant_u32(id_of(spv::Scope::Workgroup));
  b_.effect(spv::Op::OpControlBarrier, {scope, scope, b_.constant_u32(semantics)});
}

// --- Lanes ------------------------------------------------------------------------------------

Id Lowering::lower_lanes(const Instr& instr) {
  // The kernel's subgroups must be the device's, or the whole (smaller) workgroup.
  if (kernel_.subgroup != std::min(kernel_.width, target_.subgroup)) {
    malformed(instr, "the kernel is traced for other subgroups than the device has");
  }
  b_.capability(spv::Capability::GroupNonUniform);
  const Id v = value(instr.args[0]);
  if (instr.op == Op::SubgroupAny || instr.op == Op::SubgroupAll) {
    b_.capability(spv::Capability::GroupNonUniformVote);
    const auto op =
        instr.op == Op::SubgroupAny ? spv::Op::OpGroupNonUniformAny : spv::Op::OpGroupNonUniformAll;
    return b_.emit(op, b_.type_bool(), {b_.constant_u32(id_of(spv::Scope::Subgroup)), v});
  }
  b_.capability(spv::Capability::GroupNonUniformShuffle);
  return shuffle(instr, type_of_value(instr.args[0]), v);
}

Id Lowering::shuffle(const Instr& instr, Type type, Id v) {
  if (type.scalar == Scalar::Bool) {
    const Type number{Scalar::U32, type.lanes};
    const Id u32_type = type_of(number);
    const auto splat = [&](u32 x) {
      return b_.constant_splat(u32_type, b_.constant_u32(x), type.lanes);
    };
    const Id moved = shuffle(instr, number, select(u32_type, v, splat(1), splat(0)));
    return b_.emit(spv::Op::OpINotEqual, type_of(type), {moved, splat(0)});
  }
  if (type.lanes > 1) {
    std::vector<u32> parts;
    const Type part{type.scalar};
    for (u32 i = 0; i < type.lanes; ++i) {
      parts.push_back(
          shuffle(instr, part, b_.emit(spv::Op::OpCompositeExtract, type_of(part), {v, i})));
    }
    return b_.emit(spv::Op::OpCompositeConstruct, type_of(type), parts);
  }
  if (size_bytes(type.scalar) == 8) {
    // Halves, since 64-bit lanes are an optional feature.
    const Type halves{Scalar::U32, 2};
    const Id split = b_.emit(spv::Op::OpBitcast, type_of(halves), {v});
    return b_.emit(spv::Op::OpBitcast, type_of(type), {shuffle(instr, halves, split)});
  }
  const Id scope = b_.constant_u32(id_of(spv::Scope::Subgroup));
  if (instr.op == Op::Shuffle) {
    return b_.emit(spv::Op::OpGroupNonUniformShuffle, type_of(type),
                   {scope, v, value(instr.args[1])});
  }
  return b_.emit(spv::Op::OpGroupNonUniformShuffleXor, type_of(type),
                 {scope, v, b_.constant_u32(static_cast<u32>(instr.imm))});
}

// --- Fragments --------------------------------------------------------------------------------

// Points at the first element; `stride` becomes the stride in elements of the pointed-at array.
Id Lowering::fragment_pointer(const Instr& instr, Id& stride) {
  const bool shared = instr.slot != kNoSlot;
  const ValueId offset = instr.args[shared ? 0 : 1];
  const ValueId stride_value = instr.args[shared ? 1 : 2];
  stride = index_u32(stride_value);
  if (shared) {
    if (facts_.shared[instr.slot].cell_bytes != size_bytes(instr.elem)) {
      missing("narrow integers for fragments in workgroup memory");
    }
    const u32 lanes = facts_.shared[instr.slot].lanes;
    if (lanes > 1) {
      const u32 shift = static_cast<u32>(std::countr_zero(lanes));
      stride =
          b_.emit(spv::Op::OpShiftRightLogical, b_.type_int(32), {stride, b_.constant_u32(shift)});
    }
    return shared_vector_pointer(instr.slot, index_u32(offset));
  }
  const Scalar elem = instr.elem;
  const u32 bytes = size_bytes(elem);
  if (bytes == 1) {
    if (!target_.u8_storage) missing("8-bit storage");
    b_.capability(spv::Capability::StorageBuffer8BitAccess);
  }
  if (bytes == 2) {
    if (!target_.f16_storage) missing("16-bit storage");
    b_.capability(spv::Capability::StorageBuffer16BitAccess);
  }
  const Id cell = cell_type(elem, bytes);
  const Id block_type =
      b_.type_pointer(spv::StorageClass::PhysicalStorageBuffer, b_.type_runtime_block(cell, bytes));
  const Id block = b_.emit(spv::Op::OpConvertUToPtr, block_type,
                           {element_address(value(instr.args[0]), offset, bytes)});
  const Id zero = b_.constant_u32(0);
  return b_.emit(spv::Op::OpAccessChain,
                 b_.type_pointer(spv::StorageClass::PhysicalStorageBuffer, cell),
                 {block, zero, zero});
}

Id Lowering::lower_fragment(const Instr& instr) {
  using O = spv::Op;
  const bool device = instr.slot == kNoSlot;
  switch (instr.op) {
    case Op::FragFill: {
      Id x = value(instr.args[0]);
      const Scalar s = instr.type.scalar;
      if (s == Scalar::F16) x = b_.emit(O::OpFConvert, b_.type_float(16), {x});
      const Id type = type_of(instr.type);
      if (s == Scalar::BF16) x = b_.emit(O::OpFConvert, b_.type_bfloat16(), {x});
      return b_.emit(O::OpCompositeConstruct, type, {x});
    }
    case Op::FragLoad: {
      const Id type = type_of(instr.type);
      Id stride = 0;
      const Id pointer = fragment_pointer(instr, stride);
      std::vector<u32> operands = {pointer, b_.constant_u32(static_cast<u32>(instr.imm)), stride};
      for (u32 w : access(size_bytes(instr.elem), device)) operands.push_back(w);
      return b_.emit(kOpCooperativeMatrixLoadKHR, type, operands);
    }
    case Op::FragStore: {
      Id stride = 0;
      const Id pointer = fragment_pointer(instr, stride);
      std::vector<u32> operands = {pointer, value(instr.args.back()),
                                   b_.constant_u32(static_cast<u32>(instr.imm)), stride};
      for (u32 w : access(size_bytes(instr.elem), device)) operands.push_back(w);
      b_.effect(kOpCooperativeMatrixStoreKHR, operands);
      return 0;
    }
    case Op::FragMulAdd:
      return b_.emit(kOpCooperativeMatrixMulAddKHR, type_of(instr.type),
                     {value(instr.args[0]), value(instr.args[1]), value(instr.args[2])});
    case Op::FragAdd:
    case Op::FragMul:
      if (instr.type.scalar == Scalar::BF16) malformed(instr, "on bf16, expected f16 or f32");
      return b_.emit(instr.op == Op::FragAdd ? O::OpFAdd : O::OpFMul, type_of(instr.type),
                     {value(instr.args[0]), value(instr.args[1])});
    case Op::FragCast: return b_.emit(O::OpFConvert, type_of(instr.type), {value(instr.args[0])});
    default: malformed(instr, "has no lowering");
  }
}

}  // namespace oa::codegen::spirv
