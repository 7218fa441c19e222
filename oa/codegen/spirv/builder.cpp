#include "oa/codegen/spirv/builder.h"

#include <algorithm>
#include <bit>

#include "oa/core/error.h"

namespace oa::codegen::spirv {
namespace {

constexpr u32 kVersion = 0x00010500;

u32 word(spv::Op op, size_t words) {
  OA_CHECK(words < 0x10000);
  return static_cast<u32>(words << 16) | static_cast<u32>(op);
}

void append(std::vector<u32>& to, spv::Op op, std::initializer_list<u32> head,
            std::span<const u32> tail = {}) {
  to.push_back(word(op, 1 + head.size() + tail.size()));
  to.insert(to.end(), head);
  to.insert(to.end(), tail.begin(), tail.end());
}

// Text as words: four bytes each, the first in the low byte, ended by a zero byte.
std::vector<u32> text_words(std::string_view text) {
  std::vector<u32> words(text.size() / 4 + 1, 0);
  for (size_t i = 0; i < text.size(); ++i) {
    words[i / 4] |= static_cast<u32>(static_cast<u8>(text[i])) << (8 * (i % 4));
  }
  return words;
}

}  // namespace

void Builder::execution_mode(spv::ExecutionMode mode, std::initializer_list<u32> operands) {
  modes_.emplace_back(mode, operands);
}

void Builder::decorate(Id target, spv::Decoration d, std::initializer_list<u32> operands) {
  append(decorations_, spv::Op::OpDecorate, {target, static_cast<u32>(d)},
         std::span(operands.begin(), operands.size()));
}

void Builder::decorate_member(Id type, u32 member, spv::Decoration d,
                              std::initializer_list<u32> operands) {
  append(decorations_, spv::Op::OpMemberDecorate, {type, member, static_cast<u32>(d)},
         std::span(operands.begin(), operands.size()));
}

Id Builder::shared_global(spv::Op op, Id type, std::span<const u32> operands, u32 variant) {
  const size_t head = type ? 3 : 2;  // opcode, type, id
  u64 hash = (static_cast<u64>(op) << 32 | type) * 0x9e3779b97f4a7c15ull + variant;
  for (u32 w : operands) hash = (std::rotl(hash, 23) ^ w) * 0x9e3779b97f4a7c15ull;
  const u32 first = word(op, head + operands.size());
  const auto [begin, end] = known_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    const u32* words = globals_.data() + it->second.at;
    if (it->second.variant == variant && words[0] == first && (!type || words[1] == type) &&
        std::equal(operands.begin(), operands.end(), words + head)) {
      return words[head - 1];
    }
  }
  const Id id = new_id();
  known_.emplace(hash, Known{globals_.size(), variant});
  if (type) {
    append(globals_, op, {type, id}, operands);
  } else {
    append(globals_, op, {id}, operands);
  }
  return id;
}

Id Builder::global_typed(spv::Op op, Id type, std::initializer_list<u32> operands) {
  return shared_global(op, type, std::span(operands.begin(), operands.size()));
}

Id Builder::global(spv::Op op, std::initializer_list<u32> operands) {
  return global_typed(op, 0, operands);
}

Id Builder::type_vector(Id component, u32 count) {
  if (count == 1) return component;
  return global(spv::Op::OpTypeVector, {component, count});
}

Id Builder::type_array(Id element, u32 count) {
  const Id length = constant_u32(count);
  return global(spv::Op::OpTypeArray, {element, length});
}

Id Builder::type_array_strided(Id element, u32 count, u32 stride) {
  const u32 operands[] = {element, constant_u32(count)};
  const Id unused = next_id_;
  const Id id = shared_global(spv::Op::OpTypeArray, 0, operands, stride);
  if (id == unused) decorate(id, spv::Decoration::ArrayStride, {stride});
  return id;
}

Id Builder::type_struct(std::initializer_list<Id> members) {
  return global(spv::Op::OpTypeStruct, members);
}

Id Builder::type_runtime_block(Id element, u32 stride) {
  const Id unused = next_id_;
  const Id array = global(spv::Op::OpTypeRuntimeArray, {element});
  const Id block = global(spv::Op::OpTypeStruct, {array});
  if (array == unused) {
    decorate(array, spv::Decoration::ArrayStride, {stride});
    decorate(block, spv::Decoration::Block);
    decorate_member(block, 0, spv::Decoration::Offset, {0});
  }
  return block;
}

Id Builder::type_constant_block(Id element) {
  constexpr u32 kVariant = 1;  // other structs of one member are written now and then
  const u32 members[] = {element};
  const Id unused = next_id_;
  const Id block = shared_global(spv::Op::OpTypeStruct, 0, members, kVariant);
  if (block == unused) {
    decorate(block, spv::Decoration::Block);
    decorate_member(block, 0, spv::Decoration::Offset, {0});
    decorate_member(block, 0, spv::Decoration::NonWritable);
  }
  return block;
}

Id Builder::type_block(std::span<const Id> members, std::span<const u32> offsets) {
  const Id id = new_id();
  append(globals_, spv::Op::OpTypeStruct, {id}, members);
  decorate(id, spv::Decoration::Block);
  for (u32 i = 0; i < offsets.size(); ++i) {
    decorate_member(id, i, spv::Decoration::Offset, {offsets[i]});
  }
  return id;
}

Id Builder::type_pointer(spv::StorageClass storage, Id pointee) {
  return global(spv::Op::OpTypePointer, {static_cast<u32>(storage), pointee});
}

Id Builder::type_cooperative_matrix(Id component, u32 rows, u32 cols, u32 use) {
  const Id scope = constant_u32(static_cast<u32>(spv::Scope::Subgroup));
  const Id rows_id = constant_u32(rows);
  const Id cols_id = constant_u32(cols);
  const Id use_id = constant_u32(use);
  return global(kOpTypeCooperativeMatrixKHR, {component, scope, rows_id, cols_id, use_id});
}

Id Builder::constant_bool(bool x) {
  return global_typed(x ? spv::Op::OpConstantTrue : spv::Op::OpConstantFalse, type_bool(), {});
}

Id Builder::constant_bits(Id type, u32 bits, u64 x) {
  const u32 low = static_cast<u32>(x);
  const u32 high = static_cast<u32>(x >> 32);
  if (bits <= 32) return global_typed(spv::Op::OpConstant, type, {low});
  return global_typed(spv::Op::OpConstant, type, {low, high});
}

Id Builder::constant_splat(Id vector_type, Id component, u32 count) {
  if (count == 1) return component;
  const std::vector<u32> parts(count, component);
  return shared_global(spv::Op::OpConstantComposite, vector_type, parts);
}

Id Builder::global_variable(spv::StorageClass storage, Id pointee) {
  const Id type = type_pointer(storage, pointee);
  const Id id = new_id();
  append(globals_, spv::Op::OpVariable, {type, id, static_cast<u32>(storage)});
  interface_.push_back(id);
  return id;
}

Id Builder::builtin(spv::BuiltIn which, Id type) {
  const Id id = global_variable(spv::StorageClass::Input, type);
  decorate(id, spv::Decoration::BuiltIn, {static_cast<u32>(which)});
  return id;
}

Id Builder::local_variable(Id pointee) {
  const Id type = type_pointer(spv::StorageClass::Function, pointee);
  const Id id = new_id();
  append(locals_, spv::Op::OpVariable, {type, id, static_cast<u32>(spv::StorageClass::Function)});
  return id;
}

Id Builder::emit(spv::Op op, Id type, std::span<const u32> operands) {
  const Id id = new_id();
  append(code_, op, {type, id}, operands);
  return id;
}

void Builder::effect(spv::Op op, std::span<const u32> operands) { append(code_, op, {}, operands); }

Id Builder::glsl(u32 instruction, Id type, std::initializer_list<u32> operands) {
  if (!glsl_) glsl_ = new_id();
  const Id id = new_id();
  append(code_, spv::Op::OpExtInst, {type, id, glsl_, instruction},
         std::span(operands.begin(), operands.size()));
  return id;
}

void Builder::begin_block(Id label) {
  append(code_, spv::Op::OpLabel, {label});
  block_ = label;
}

Builder::Phi Builder::phi(Id type, Id first_value, Id first_block) {
  const Id id = new_id();
  append(code_, spv::Op::OpPhi, {type, id, first_value, first_block, 0, 0});
  return {id, code_.size() - 2};
}

void Builder::complete_phi(const Phi& phi, Id second_value, Id second_block) {
  code_[phi.second_edge] = second_value;
  code_[phi.second_edge + 1] = second_block;
}

std::vector<u32> Builder::finish(spv::MemoryModel memory_model) {
  const Id void_type = type_void();
  const Id function_type = global(spv::Op::OpTypeFunction, {void_type});
  main_ = new_id();

  std::vector<u32> out = {spv::MagicNumber, kVersion, 0, 0, 0};
  for (u32 c : capabilities_) append(out, spv::Op::OpCapability, {c});
  for (const std::string& e : extensions_) {
    append(out, spv::Op::OpExtension, {}, text_words(e));
  }
  if (glsl_) append(out, spv::Op::OpExtInstImport, {glsl_}, text_words("GLSL.std.450"));
  append(out, spv::Op::OpMemoryModel,
         {static_cast<u32>(spv::AddressingModel::PhysicalStorageBuffer64),
          static_cast<u32>(memory_model)});
  std::vector<u32> entry = text_words("main");
  entry.insert(entry.end(), interface_.begin(), interface_.end());
  append(out, spv::Op::OpEntryPoint, {static_cast<u32>(spv::ExecutionModel::GLCompute), main_},
         entry);
  for (const auto& [mode, operands] : modes_) {
    append(out, spv::Op::OpExecutionMode, {main_, static_cast<u32>(mode)}, operands);
  }
  out.insert(out.end(), decorations_.begin(), decorations_.end());
  out.insert(out.end(), globals_.begin(), globals_.end());
  append(out, spv::Op::OpFunction, {void_type, main_, 0, function_type});
  // Variables stand at the head of the first block, right after its label (two words).
  out.insert(out.end(), code_.begin(), code_.begin() + 2);
  out.insert(out.end(), locals_.begin(), locals_.end());
  out.insert(out.end(), code_.begin() + 2, code_.end());
  append(out, spv::Op::OpFunctionEnd, {});
  out[3] = next_id_;
  return out;
}

}  // namespace oa::codegen::spirv
