#include "oa/codegen/spirv/lower.h"

#include <algorithm>
#include <bit>

#include "oa/codegen/spirv/lowering.h"
#include "oa/core/error.h"

namespace oa::codegen::spirv {

using kernel::FragUse;
using kernel::Instr;
using kernel::kNoSlot;
using kernel::kNoValue;
using kernel::Op;
using kernel::Region;
using kernel::Scalar;
using kernel::Type;
using kernel::ValueId;

Lowering::Lowering(const kernel::Kernel& kernel, const VulkanTarget& target)
    : kernel_(kernel),
      target_(target),
      facts_(survey(kernel, target)),
      layout_(push_constants(kernel.params, target.push_constant_bytes)) {
  values_.resize(kernel.instrs.size(), 0);
}

void Lowering::missing(std::string_view what) const {
  fail(ErrorKind::MissingCapability, "compile_spirv", "kernel {} needs {}, which the device lacks",
       kernel_.name, what);
}

void Lowering::malformed(const Instr& instr, std::string_view what) const {
  fail(ErrorKind::Internal, "compile_spirv", "{} in kernel {}: {}", name(instr.op), kernel_.name,
       what);
}

Id Lowering::scalar_type(Scalar s) {
  switch (s) {
    case Scalar::Bool: return b_.type_bool();
    case Scalar::I32:
    case Scalar::U32: return b_.type_int(32);
    case Scalar::I64:
    case Scalar::U64: return b_.type_int(64);
    case Scalar::F32: return b_.type_float(32);
    case Scalar::F64:
      if (!target_.f64) missing("64-bit floats");
      b_.capability(spv::Capability::Float64);
      return b_.type_float(64);
    default:
      fail(ErrorKind::Internal, "compile_spirv", "a value of type {} in kernel {}", name(s),
           kernel_.name);
  }
}

Id Lowering::type_of(const Type& type) {
  if (!type.is_fragment()) return b_.type_vector(scalar_type(type.scalar), type.lanes);
  Id component = 0;
  switch (type.scalar) {
    case Scalar::F32: component = b_.type_float(32); break;
    case Scalar::F16:
      if (!target_.f16) missing("16-bit floats");
      b_.capability(spv::Capability::Float16);
      component = b_.type_float(16);
      break;
    case Scalar::BF16:
      if (!target_.bf16) missing("bfloat16 fragments");
      b_.capability(kCapabilityBFloat16TypeKHR);
      b_.capability(kCapabilityBFloat16CooperativeMatrixKHR);
      b_.extension(kExtensionBFloat16);
      component = b_.type_bfloat16();
      break;
    default:
      fail(ErrorKind::Internal, "compile_spirv", "a fragment of {} in kernel {}, expected a float",
           name(type.scalar), kernel_.name);
  }
  const u32 use = type.use == FragUse::A ? 0 : type.use == FragUse::B ? 1 : 2;
  return b_.type_cooperative_matrix(component, type.rows, type.cols, use);
}

Id Lowering::value(ValueId id) const {
  OA_CHECK(id < values_.size() && values_[id] != 0);
  return values_[id];
}

Id Lowering::constant(Scalar s, u64 bits) {
  if (s == Scalar::Bool) return b_.constant_bool(bits != 0);
  return b_.constant_bits(scalar_type(s), 8 * size_bytes(s), bits);
}

Id Lowering::float_constant(Scalar s, f64 x) {
  return constant(
      s, s == Scalar::F64 ? std::bit_cast<u64>(x) : std::bit_cast<u32>(static_cast<f32>(x)));
}

// Everything outside the function: capabilities, modes, push constants, built-ins, shared arrays.
void Lowering::declare() {
  if (!target_.int64) missing("64-bit integers");
  b_.capability(spv::Capability::Shader);
  b_.capability(spv::Capability::Int64);
  b_.capability(spv::Capability::PhysicalStorageBufferAddresses);
  if (facts_.fragments) {
    if (!target_.coop_matrix) missing("cooperative matrices");
    if (!target_.vulkan_memory_model) missing("the Vulkan memory model");
    if (kernel_.subgroup != target_.subgroup) {
      fail(ErrorKind::Internal, "compile_spirv",
           "kernel {} has fragments, got subgroups of {}, expected {}", kernel_.name,
           kernel_.subgroup, target_.subgroup);
    }
    b_.capability(kCapabilityCooperativeMatrixKHR);
    b_.extension(kExtensionCooperativeMatrix);
  }
  if (facts_.vulkan_model) b_.capability(spv::Capability::VulkanMemoryModel);
  b_.execution_mode(spv::ExecutionMode::LocalSize, {kernel_.width, 1, 1});
  if (target_.preserve_specials_f32) {
    b_.capability(spv::Capability::SignedZeroInfNanPreserve);
    b_.execution_mode(spv::ExecutionMode::SignedZeroInfNanPreserve, {32});
  }
  if (target_.preserve_specials_f64 && target_.f64) {
    b_.capability(spv::Capability::SignedZeroInfNanPreserve);
    b_.execution_mode(spv::ExecutionMode::SignedZeroInfNanPreserve, {64});
  }
  if (target_.round_even_f16) {
    b_.capability(spv::Capability::RoundingModeRTE);
    b_.execution_mode(spv::ExecutionMode::RoundingModeRTE, {16});
  }
  if (target_.round_even_f32) {
    b_.capability(spv::Capability::RoundingModeRTE);
    b_.execution_mode(spv::ExecutionMode::RoundingModeRTE, {32});
  }

  const Id u32_type = b_.type_int(32);
  const Id u64_type = b_.type_int(64);
  std::vector<Id> members = {u32_type, u32_type};
  std::vector<u32> offsets = {0, 4};
  if (layout_.in_block) {
    members.push_back(u64_type);
    offsets.push_back(8);
  } else if (kernel_.params > 0) {
    members.push_back(b_.type_array_strided(u64_type, kernel_.params, 8));
    offsets.push_back(8);
  }
  push_ = b_.global_variable(spv::StorageClass::PushConstant, b_.type_block(members, offsets));

  for (u32 slot = 0; slot < kernel_.shared.size(); ++slot) {
    const auto [elem, count] = kernel_.shared[slot];
    const SharedLayout& layout = facts_.shared[slot];
    if (elem == Scalar::F16) {
      if (!target_.f16) missing("16-bit floats in workgroup memory");
      b_.capability(spv::Capability::Float16);
    }
    if (layout.cell_bytes == 1) b_.capability(spv::Capability::Int8);
    if (elem == Scalar::BF16 && layout.cell_bytes == 2) b_.capability(spv::Capability::Int16);
    const Id cell = b_.type_vector(cell_type(elem, layout.cell_bytes), layout.lanes);
    const u32 cells = std::max(1u, count / layout.lanes);
    shared_.push_back(b_.global_variable(spv::StorageClass::Workgroup, b_.type_array(cell, cells)));
  }
}

// The linear index of the workgroup, and the count that guards it. Grids of two dimensions would
// need their width, which comes from another place than the push constants: 0.3 us later on NVIDIA.
Id Lowering::group_id() {
  const Id u32_type = b_.type_int(32);
  const Id vec3 = b_.type_vector(u32_type, 3);
  const Id push_u32 = b_.type_pointer(spv::StorageClass::PushConstant, u32_type);
  const auto push_load = [&](u32 member) {
    const Id pointer = b_.emit(spv::Op::OpAccessChain, push_u32, {push_, b_.constant_u32(member)});
    return b_.emit(spv::Op::OpLoad, u32_type, {pointer});
  };
  group_count_ = push_load(0);
  const Id base = push_load(1);
  const Id id = b_.emit(spv::Op::OpLoad, vec3, {b_.builtin(spv::BuiltIn::WorkgroupId, vec3)});
  const Id inside = b_.emit(spv::Op::OpCompositeExtract, u32_type, {id, 0});
  return b_.emit(spv::Op::OpIAdd, u32_type, {base, inside});
}

std::vector<u32> Lowering::run() {
  declare();
  b_.begin_block(b_.new_id());
  group_ = group_id();
  const Id lane = b_.builtin(spv::BuiltIn::LocalInvocationIndex, b_.type_int(32));
  lane_ = b_.emit(spv::Op::OpLoad, b_.type_int(32), {lane});
  if (layout_.in_block) {
    const Id u64_type = b_.type_int(64);
    const Id type = b_.type_pointer(spv::StorageClass::PushConstant, u64_type);
    const Id pointer = b_.emit(spv::Op::OpAccessChain, type, {push_, b_.constant_u32(2)});
    block_address_ = b_.emit(spv::Op::OpLoad, u64_type, {pointer});
  }
  for (const auto& var : kernel_.vars) vars_.push_back(b_.local_variable(type_of(var.type)));

  // Uniform in the workgroup, so barriers inside stay legal.
  const Id inside = b_.emit(spv::Op::OpULessThan, b_.type_bool(), {group_, group_count_});
  const Id body = b_.new_id();
  const Id end = b_.new_id();
  b_.effect(spv::Op::OpSelectionMerge, {end, 0});
  b_.effect(spv::Op::OpBranchConditional, {inside, body, end});
  b_.begin_block(body);
  lower_region(kernel_.body);
  b_.effect(spv::Op::OpBranch, {end});
  b_.begin_block(end);
  b_.effect(spv::Op::OpReturn, {});
  return b_.finish(facts_.vulkan_model ? spv::MemoryModel::Vulkan : spv::MemoryModel::GLSL450);
}

void Lowering::lower_region(const Region& region) {
  for (ValueId id : region) lower(id);
}

void Lowering::lower(ValueId id) {
  const Instr& instr = kernel_[id];
  switch (instr.op) {
    case Op::If: return lower_if(instr);
    case Op::For: return lower_for(id, instr);
    case Op::While: return lower_while(instr);
    case Op::Yield: malformed(instr, "outside the condition of a while");
    case Op::Barrier: return barrier(instr);
    default: values_[id] = lower_value(instr);
  }
}

Id Lowering::lower_value(const Instr& instr) {
  switch (instr.op) {
    case Op::Const: return constant(instr.type.scalar, instr.imm);
    case Op::Param: return param(instr);
    case Op::LaneId: return lane_;
    case Op::GroupId: return group_;
    case Op::GroupCount: return group_count_;
    case Op::VarLoad:
      return b_.emit(spv::Op::OpLoad, type_of(kernel_.vars[instr.slot].type), {vars_[instr.slot]});
    case Op::VarStore:
      b_.effect(spv::Op::OpStore, {vars_[instr.slot], value(instr.args[0])});
      return 0;
    case Op::Load:
    case Op::Store:
    case Op::Atomic:
    case Op::AtomicCas:
    case Op::SharedLoad:
    case Op::SharedStore:
    case Op::SharedAtomic: return lower_memory(instr);
    case Op::Shuffle:
    case Op::ShuffleXor:
    case Op::SubgroupAny:
    case Op::SubgroupAll: return lower_lanes(instr);
    case Op::FragFill:
    case Op::FragLoad:
    case Op::FragStore:
    case Op::FragMulAdd:
    case Op::FragAdd:
    case Op::FragMul:
    case Op::FragCast: return lower_fragment(instr);
    default: return lower_math(instr);
  }
}

Id Lowering::param(const Instr& instr) {
  if (instr.imm >= kernel_.params) malformed(instr, "index out of range");
  const Id u64_type = b_.type_int(64);
  const u32 index = static_cast<u32>(instr.imm);
  Id slot = 0;
  if (layout_.in_block) {
    const Id type = b_.type_pointer(spv::StorageClass::PhysicalStorageBuffer, u64_type);
    const Id address = b_.emit(spv::Op::OpIAdd, u64_type,
                               {block_address_, b_.constant_u64(8 * static_cast<u64>(index))});
    const Id pointer = b_.emit(spv::Op::OpConvertUToPtr, type, {address});
    slot = load(u64_type, pointer, 8, true);
  } else {
    const Id type = b_.type_pointer(spv::StorageClass::PushConstant, u64_type);
    const Id pointer =
        b_.emit(spv::Op::OpAccessChain, type, {push_, b_.constant_u32(2), b_.constant_u32(index)});
    slot = b_.emit(spv::Op::OpLoad, u64_type, {pointer});
  }
  const Scalar s = instr.type.scalar;
  if (size_bytes(s) == 8) return s == Scalar::F64 ? float_of(s, slot) : slot;
  if (size_bytes(s) != 4) malformed(instr, "type is not 4 or 8 bytes");
  const Id low = b_.emit(spv::Op::OpUConvert, b_.type_int(32), {slot});
  return s == Scalar::F32 ? float_of(s, low) : low;
}

void Lowering::lower_if(const Instr& instr) {
  const Id merge = b_.new_id();
  const Id yes = b_.new_id();
  const bool has_else = instr.regions.size() > 1 && !instr.regions[1].empty();
  const Id no = has_else ? b_.new_id() : merge;
  b_.effect(spv::Op::OpSelectionMerge, {merge, 0});
  b_.effect(spv::Op::OpBranchConditional, {value(instr.args[0]), yes, no});
  b_.begin_block(yes);
  lower_region(instr.regions[0]);
  b_.effect(spv::Op::OpBranch, {merge});
  if (has_else) {
    b_.begin_block(no);
    lower_region(instr.regions[1]);
    b_.effect(spv::Op::OpBranch, {merge});
  }
  b_.begin_block(merge);
}

void Lowering::lower_for(ValueId id, const Instr& instr) {
  const Scalar s = instr.type.scalar;
  if (!is_integer(s) || s == Scalar::U8) malformed(instr, "index is not an integer");
  const Id type = scalar_type(s);
  const Id begin = value(instr.args[0]);
  const Id before = b_.current_block();
  const Id header = b_.new_id();
  const Id test = b_.new_id();
  const Id body = b_.new_id();
  const Id next_block = b_.new_id();
  const Id merge = b_.new_id();
  b_.effect(spv::Op::OpBranch, {header});
  b_.begin_block(header);
  const Builder::Phi index = b_.phi(type, begin, before);
  values_[id] = index.id;
  const auto control =
      instr.imm == 1 ? spv::LoopControlMask::DontUnroll : spv::LoopControlMask::MaskNone;
  b_.effect(spv::Op::OpLoopMerge, {merge, next_block, static_cast<u32>(control)});
  b_.effect(spv::Op::OpBranch, {test});
  b_.begin_block(test);
  const Id go = compare(Op::Lt, s, index.id, value(instr.args[1]));
  b_.effect(spv::Op::OpBranchConditional, {go, body, merge});
  b_.begin_block(body);
  lower_region(instr.regions[0]);
  b_.effect(spv::Op::OpBranch, {next_block});
  b_.begin_block(next_block);
  const Id next = b_.emit(spv::Op::OpIAdd, type, {index.id, value(instr.args[2])});
  b_.complete_phi(index, next, next_block);
  b_.effect(spv::Op::OpBranch, {header});
  b_.begin_block(merge);
}

void Lowering::lower_while(const Instr& instr) {
  const Region& test = instr.regions[0];
  if (test.empty() || kernel_[test.back()].op != Op::Yield) malformed(instr, "has no yield");
  const Id header = b_.new_id();
  const Id condition = b_.new_id();
  const Id body = b_.new_id();
  const Id next = b_.new_id();
  const Id merge = b_.new_id();
  b_.effect(spv::Op::OpBranch, {header});
  b_.begin_block(header);
  b_.effect(spv::Op::OpLoopMerge, {merge, next, 0});
  b_.effect(spv::Op::OpBranch, {condition});
  b_.begin_block(condition);
  for (size_t i = 0; i + 1 < test.size(); ++i) lower(test[i]);
  b_.effect(spv::Op::OpBranchConditional, {value(kernel_[test.back()].args[0]), body, merge});
  b_.begin_block(body);
  lower_region(instr.regions[1]);
  b_.effect(spv::Op::OpBranch, {next});
  b_.begin_block(next);
  b_.effect(spv::Op::OpBranch, {header});
  b_.begin_block(merge);
}

u64 shared_bytes(const kernel::Kernel& kernel, const VulkanTarget& target) {
  const KernelFacts facts = survey(kernel, target);
  u64 bytes = 0;
  for (size_t slot = 0; slot < kernel.shared.size(); ++slot) {
    bytes += static_cast<u64>(facts.shared[slot].cell_bytes) * kernel.shared[slot].count;
  }
  return bytes;
}

std::vector<u32> compile_spirv(const kernel::Kernel& kernel, const VulkanTarget& target) {
  return Lowering(kernel, target).run();
}

}  // namespace oa::codegen::spirv
