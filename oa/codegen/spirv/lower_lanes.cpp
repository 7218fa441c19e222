// Operations of a subgroup: shuffles, votes, and fragments as cooperative matrices.
#include <algorithm>
#include <bit>

#include "oa/codegen/spirv/lowering.h"

namespace oa::codegen::spirv {

using kernel::Instr;
using kernel::kNoSlot;
using kernel::Op;
using kernel::Scalar;
using kernel::Type;
using kernel::ValueId;

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
    return b_.emit(op, b_.type_bool(), {scope(spv::Scope::Subgroup), v});
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
  const Id within = scope(spv::Scope::Subgroup);
  if (instr.op == Op::Shuffle) {
    return b_.emit(spv::Op::OpGroupNonUniformShuffle, type_of(type),
                   {within, v, value(instr.args[1])});
  }
  return b_.emit(spv::Op::OpGroupNonUniformShuffleXor, type_of(type),
                 {within, v, b_.constant_u32(static_cast<u32>(instr.imm))});
}

// Points at the first element; `stride` becomes the stride in elements of the pointed-at array.
Id Lowering::fragment_pointer(const Instr& instr, Id& stride) {
  const bool shared = instr.slot != kNoSlot;
  const ValueId offset = instr.args[shared ? 0 : 1];
  const ValueId stride_value = instr.args[shared ? 1 : 2];
  stride = index_u32(stride_value);
  if (shared) {
    const SharedLayout& layout = facts_.shared[instr.slot];
    // A U32 slot may hold two 16-bit elements to a cell.
    const u32 cell = size_bytes(kernel_.shared[instr.slot].elem);
    if (layout.cell_bytes != cell) missing("narrow integers for fragments in workgroup memory");
    if (facts_.unaligned_pairs) {
      malformed(instr, "offset or stride in a u32 slot may be odd, expected an even number");
    }
    // A constant stride stays a constant: drivers choose their loads by it.
    const u32 per = layout.lanes * (cell / size_bytes(instr.elem));
    stride = vector_index(stride_value, per);
    return shared_vector_pointer(instr.slot, vector_index(offset, per));
  }
  const Scalar elem = instr.elem;
  const u32 bytes = size_bytes(elem);
  need_storage(bytes);
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
      {
        const Id id = b_.emit(instr.op == Op::FragAdd ? O::OpFAdd : O::OpFMul, type_of(instr.type),
                              {value(instr.args[0]), value(instr.args[1])});
        b_.decorate(id, spv::Decoration::NoContraction);
        return id;
      }
    case Op::FragCast: return b_.emit(O::OpFConvert, type_of(instr.type), {value(instr.args[0])});
    default: malformed(instr, "has no lowering");
  }
}

}  // namespace oa::codegen::spirv
