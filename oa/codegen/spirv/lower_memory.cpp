// Loads, stores, atomics and barriers of device and workgroup memory.
#include <algorithm>
#include <bit>

#include "oa/codegen/spirv/lowering.h"

namespace oa::codegen::spirv {

using kernel::AtomicOp;
using kernel::Instr;
using kernel::kDeviceMemory;
using kernel::kSharedMemory;
using kernel::Op;
using kernel::Scalar;
using kernel::ValueId;

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

void Lowering::need_storage(u32 bytes) {
  if (bytes == 1) {
    if (!target_.u8_storage) missing("8-bit storage");
    b_.capability(spv::Capability::StorageBuffer8BitAccess);
  }
  if (bytes == 2) {
    if (!target_.f16_storage) missing("16-bit storage");
    b_.capability(spv::Capability::StorageBuffer16BitAccess);
  }
}

// Drivers take the qualifiers of a constant load from the member of a block.
Id Lowering::element_pointer(Id address, ValueId index, Scalar elem, u32 lanes, bool constant) {
  constexpr auto kStorage = spv::StorageClass::PhysicalStorageBuffer;
  const u32 bytes = size_bytes(elem);
  need_storage(bytes);
  const Id cells = b_.type_vector(cell_type(elem, bytes), lanes);
  const Id type = b_.type_pointer(kStorage, cells);
  const Id place = element_address(address, index, bytes);
  if (!constant) return b_.emit(spv::Op::OpConvertUToPtr, type, {place});
  const Id block_type = b_.type_pointer(kStorage, b_.type_constant_block(cells));
  const Id block = b_.emit(spv::Op::OpConvertUToPtr, block_type, {place});
  return b_.emit(spv::Op::OpAccessChain, type, {block, b_.constant_u32(0)});
}

// Memory operands. Barriers order only non-private accesses in the Vulkan memory model, and in
// GLSL's only those that no cache keeps.
std::vector<u32> Lowering::access(u32 align, bool device) const {
  using M = spv::MemoryAccessMask;
  u32 mask = device ? static_cast<u32>(M::Aligned) : 0;
  if (!device || facts_.device_barrier) {
    if (facts_.vulkan_model) {
      mask |= static_cast<u32>(M::NonPrivatePointer);
    } else if (device) {
      mask |= static_cast<u32>(M::Volatile);
    }
  }
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
      const Id pointer =
          element_pointer(value(instr.args[0]), instr.args[1], elem, lanes, instr.imm == 1);
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
  const auto device_scope = facts_.vulkan_model ? spv::Scope::QueueFamily : spv::Scope::Device;
  const Id within = scope(device ? device_scope : spv::Scope::Workgroup);
  const Id relaxed = b_.constant_u32(0);
  const Id operand = value(instr.args.back());
  if (instr.op == Op::AtomicCas) {
    return b_.emit(O::OpAtomicCompareExchange, type,
                   {pointer, within, relaxed, relaxed, operand, value(instr.args[2])});
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
  return b_.emit(op, type, {pointer, within, relaxed, operand});
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

Id Lowering::shared_vector_pointer(u32 slot, Id vector) {
  const SharedLayout& layout = facts_.shared[slot];
  const Id cell = cell_type(kernel_.shared[slot].elem, layout.cell_bytes);
  const Id type = b_.type_pointer(spv::StorageClass::Workgroup, b_.type_vector(cell, layout.lanes));
  return b_.emit(spv::Op::OpAccessChain, type, {shared_[slot], vector});
}

// Divides the terms of a sum one by one, so that constants among them stay constants, which devices
// add for free.
Id Lowering::vector_index(ValueId index, u32 per) {
  if (per == 1) return index_u32(index);
  const Instr& i = kernel_[index];
  const Id u32_type = b_.type_int(32);
  const auto constant_of = [&](ValueId id) { return static_cast<u32>(kernel_[id].imm); };
  if (i.op == Op::Const) return b_.constant_u32(static_cast<u32>(i.imm) / per);
  const auto divides = [&](ValueId id) { return known_divisor(kernel_, id, per) == per; };
  if (i.op == Op::Add && divides(i.args[0]) && divides(i.args[1])) {
    return b_.emit(spv::Op::OpIAdd, u32_type,
                   {vector_index(i.args[0], per), vector_index(i.args[1], per)});
  }
  if (i.op == Op::Mul && kernel_[i.args[1]].op == Op::Const && constant_of(i.args[1]) % per == 0) {
    const u32 factor = constant_of(i.args[1]) / per;
    const Id rest = index_u32(i.args[0]);
    if (factor == 1) return rest;
    return b_.emit(spv::Op::OpIMul, u32_type, {rest, b_.constant_u32(factor)});
  }
  const u32 shift = static_cast<u32>(std::countr_zero(per));
  if (i.op == Op::Shl && kernel_[i.args[1]].op == Op::Const && constant_of(i.args[1]) >= shift) {
    const u32 left = constant_of(i.args[1]) - shift;
    const Id rest = index_u32(i.args[0]);
    if (left == 0) return rest;
    return b_.emit(spv::Op::OpShiftLeftLogical, u32_type, {rest, b_.constant_u32(left)});
  }
  return b_.emit(spv::Op::OpShiftRightLogical, u32_type,
                 {index_u32(index), b_.constant_u32(shift)});
}

Id Lowering::shared_load(const Instr& instr) {
  const SharedLayout& layout = facts_.shared[instr.slot];
  const Scalar elem = kernel_.shared[instr.slot].elem;
  const u32 lanes = instr.type.lanes;
  const Id cell = cell_type(elem, layout.cell_bytes);
  const Id type = b_.type_vector(cell, lanes);
  Id cells = 0;
  if (lanes == layout.lanes) {
    cells =
        load(type, shared_vector_pointer(instr.slot, vector_index(instr.args[0], lanes)), 0, false);
  } else {
    const Id index = index_u32(instr.args[0]);
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
  const Id cells = encode(elem, layout.cell_bytes, lanes, value(instr.args[1]), false);
  if (lanes == layout.lanes) {
    const Id vector = vector_index(instr.args[0], lanes);
    return store(shared_vector_pointer(instr.slot, vector), cells, 0, false);
  }
  const Id index = index_u32(instr.args[0]);
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
    if (facts_.vulkan_model) {
      semantics |= static_cast<u32>(S::MakeAvailable) | static_cast<u32>(S::MakeVisible);
    }
  }
  const Id within = scope(spv::Scope::Workgroup);
  b_.effect(spv::Op::OpControlBarrier, {within, within, b_.constant_u32(semantics)});
}

}  // namespace oa::codegen::spirv
