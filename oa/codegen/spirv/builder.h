// Builds the words of one SPIR-V module with a single entry point "main" and a single function.
//
// Types and constants are shared: asking twice yields the same id. Ids are handed out in the order
// of the requests, so equal requests make equal words.
#pragma once

#include <initializer_list>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "oa/codegen/spirv/extension_ops.h"
#include "oa/core/types.h"

namespace oa::codegen::spirv {

using Id = u32;

class Builder {
 public:
  Id new_id() { return next_id_++; }

  void capability(spv::Capability c) { capabilities_.insert(static_cast<u32>(c)); }
  void extension(std::string_view name) { extensions_.insert(std::string(name)); }
  void execution_mode(spv::ExecutionMode mode, std::initializer_list<u32> operands);
  void decorate(Id target, spv::Decoration d, std::initializer_list<u32> operands = {});
  void decorate_member(Id type, u32 member, spv::Decoration d,
                       std::initializer_list<u32> operands = {});

  Id type_void() { return global(spv::Op::OpTypeVoid, {}); }
  Id type_bool() { return global(spv::Op::OpTypeBool, {}); }
  Id type_int(u32 bits) { return global(spv::Op::OpTypeInt, {bits, 0}); }  // all are unsigned
  Id type_float(u32 bits) { return global(spv::Op::OpTypeFloat, {bits}); }
  Id type_bfloat16() { return global(spv::Op::OpTypeFloat, {16, kFpEncodingBFloat16KHR}); }
  Id type_vector(Id component, u32 count);  // the component itself for a count of 1
  Id type_array(Id element, u32 count);
  Id type_array_strided(Id element, u32 count, u32 stride);
  Id type_struct(std::initializer_list<Id> members);
  // A Block { element data[]; } for pointers that must point into an array.
  Id type_runtime_block(Id element, u32 stride);
  // A Block { element data; } that nobody writes.
  Id type_constant_block(Id element);
  // A new Block with members at the given offsets.
  Id type_block(std::span<const Id> members, std::span<const u32> offsets);
  Id type_pointer(spv::StorageClass storage, Id pointee);
  Id type_cooperative_matrix(Id component, u32 rows, u32 cols, u32 use);

  Id constant_bool(bool x);
  Id constant_u32(u32 x) { return global_typed(spv::Op::OpConstant, type_int(32), {x}); }
  Id constant_u64(u64 x) { return constant_bits(type_int(64), 64, x); }
  Id constant_bits(Id type, u32 bits, u64 x);  // of an integer or float type of `bits`
  Id constant_splat(Id vector_type, Id component, u32 count);

  Id global_variable(spv::StorageClass storage, Id pointee);
  Id builtin(spv::BuiltIn which, Id type);  // an Input variable
  Id local_variable(Id pointee);

  // Instructions, appended to the current block.
  Id emit(spv::Op op, Id type, std::span<const u32> operands);
  Id emit(spv::Op op, Id type, std::initializer_list<u32> operands) {
    return emit(op, type, std::span(operands.begin(), operands.size()));
  }
  void effect(spv::Op op, std::span<const u32> operands);
  void effect(spv::Op op, std::initializer_list<u32> operands) {
    effect(op, std::span(operands.begin(), operands.size()));
  }
  Id glsl(u32 instruction, Id type, std::initializer_list<u32> operands);

  void begin_block(Id label);
  Id current_block() const { return block_; }
  // A phi whose second edge is known only later: set it with `complete_phi`.
  struct Phi {
    Id id;
    size_t second_edge;
  };
  Phi phi(Id type, Id first_value, Id first_block);
  void complete_phi(const Phi& phi, Id second_value, Id second_block);

  // The whole module. Call once, after the last block has ended.
  std::vector<u32> finish(spv::MemoryModel memory_model);

 private:
  // A type or constant: where its words stand in globals_.
  struct Known {
    size_t at;
    u32 variant;
  };

  Id global(spv::Op op, std::initializer_list<u32> operands);
  Id global_typed(spv::Op op, Id type, std::initializer_list<u32> operands);
  // `variant` tells apart what the operands do not (a stride).
  Id shared_global(spv::Op op, Id type, std::span<const u32> operands, u32 variant = 0);

  Id next_id_ = 1;
  Id glsl_ = 0;
  Id main_ = 0;
  Id block_ = 0;
  std::set<u32> capabilities_;
  std::set<std::string> extensions_;
  std::unordered_multimap<u64, Known> known_;  // by a hash of what follows
  std::vector<Id> interface_;
  std::vector<std::pair<spv::ExecutionMode, std::vector<u32>>> modes_;
  std::vector<u32> decorations_;
  std::vector<u32> globals_;
  std::vector<u32> locals_;
  std::vector<u32> code_;
};

}  // namespace oa::codegen::spirv
