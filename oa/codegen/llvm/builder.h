// Short spelling of the LLVM C interface: types, constants and instructions that work alike on
// scalars and on vectors. The C interface, because LLVM's C++ headers take seconds per file.
#pragma once

#include <llvm-c/Core.h>

#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "oa/core/types.h"
#include "oa/kernel/ir.h"

namespace oa::codegen {

using LlvmType = LLVMTypeRef;
using LlvmValue = LLVMValueRef;
using LlvmBlock = LLVMBasicBlockRef;

class Builder {
 public:
  explicit Builder(LLVMModuleRef module);
  ~Builder();
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  LLVMContextRef context;
  LLVMModuleRef module;
  LLVMBuilderRef at;  // where instructions go
  LlvmType i1, i8, i16, i32, i64, half, f32, f64, ptr;

  // Types. A count of 0 means a scalar.
  LlvmType int_type(u32 bits) const { return LLVMIntTypeInContext(context, bits); }
  static LlvmType vector(LlvmType elem, u32 n) { return n ? LLVMVectorType(elem, n) : elem; }
  static LlvmType type_of(LlvmValue v) { return LLVMTypeOf(v); }
  static LlvmType elem_of(LlvmType t) { return is_vector(t) ? LLVMGetElementType(t) : t; }
  static bool is_vector(LlvmType t) { return LLVMGetTypeKind(t) == LLVMVectorTypeKind; }
  static u32 count(LlvmType t) { return is_vector(t) ? LLVMGetVectorSize(t) : 0; }
  static u32 count(LlvmValue v) { return count(type_of(v)); }
  // `elem` with the vector length of `v`.
  static LlvmType like(LlvmType elem, LlvmValue v) { return vector(elem, count(v)); }
  LlvmType value_type(kernel::Scalar s) const;   // as a value
  LlvmType memory_type(kernel::Scalar s) const;  // as an element in memory

  // Constants; the type may be a vector.
  LlvmValue integer(LlvmType type, u64 x) const;
  LlvmValue real(LlvmType type, double x) const;
  LlvmValue zero(LlvmType type) const { return LLVMConstNull(type); }
  LlvmValue undefined(LlvmType type) const { return LLVMGetPoison(type); }
  LlvmValue steps(LlvmType elem, u32 n, std::int64_t first,
                  std::int64_t step) const;  // <first, first+step, ...>
  LlvmValue all_ones(LlvmType type) const { return LLVMConstAllOnes(type); }

  // Arithmetic
  LlvmValue add(LlvmValue a, LlvmValue b) { return LLVMBuildAdd(at, a, b, ""); }
  LlvmValue sub(LlvmValue a, LlvmValue b) { return LLVMBuildSub(at, a, b, ""); }
  LlvmValue mul(LlvmValue a, LlvmValue b) { return LLVMBuildMul(at, a, b, ""); }
  LlvmValue and_(LlvmValue a, LlvmValue b) { return LLVMBuildAnd(at, a, b, ""); }
  LlvmValue or_(LlvmValue a, LlvmValue b) { return LLVMBuildOr(at, a, b, ""); }
  LlvmValue not_(LlvmValue a) { return LLVMBuildNot(at, a, ""); }
  LlvmValue icmp(LLVMIntPredicate p, LlvmValue a, LlvmValue b) {
    return LLVMBuildICmp(at, p, a, b, "");
  }
  LlvmValue fcmp(LLVMRealPredicate p, LlvmValue a, LlvmValue b) {
    return LLVMBuildFCmp(at, p, a, b, "");
  }
  LlvmValue select(LlvmValue c, LlvmValue a, LlvmValue b) {
    return LLVMBuildSelect(at, c, a, b, "");
  }
  LlvmValue zext(LlvmValue v, LlvmType elem) { return LLVMBuildZExt(at, v, like(elem, v), ""); }
  LlvmValue sext(LlvmValue v, LlvmType elem) { return LLVMBuildSExt(at, v, like(elem, v), ""); }
  LlvmValue trunc(LlvmValue v, LlvmType elem) { return LLVMBuildTrunc(at, v, like(elem, v), ""); }
  LlvmValue bitcast(LlvmValue v, LlvmType type) { return LLVMBuildBitCast(at, v, type, ""); }
  LlvmValue call(std::string_view intrinsic, std::initializer_list<LlvmType> overloads,
                 std::initializer_list<LlvmValue> args);

  // Vectors
  LlvmValue splat(LlvmValue scalar, u32 n);
  LlvmValue extract(LlvmValue v, LlvmValue index) {
    return LLVMBuildExtractElement(at, v, index, "");
  }
  LlvmValue extract(LlvmValue v, u64 index) { return extract(v, integer(i64, index)); }
  LlvmValue insert(LlvmValue v, LlvmValue x, LlvmValue index) {
    return LLVMBuildInsertElement(at, v, x, index, "");
  }
  LlvmValue shuffle(LlvmValue a, LlvmValue b, std::span<const u32> lanes);
  LlvmValue shuffle(LlvmValue a, std::span<const u32> lanes) {
    return shuffle(a, undefined(type_of(a)), lanes);
  }

  // Memory
  LlvmValue element(LlvmType elem, LlvmValue base, LlvmValue index) {
    return LLVMBuildGEP2(at, elem, base, &index, 1, "");
  }
  LlvmValue load(LlvmType type, LlvmValue from, u32 align);
  void store(LlvmValue v, LlvmValue to, u32 align);
  void store_streaming(LlvmValue v, LlvmValue to, u32 bytes);  // past the caches where aligned

  // Blocks
  LlvmBlock block() const { return LLVMGetInsertBlock(at); }
  LlvmBlock new_block(const char* name);
  void enter(LlvmBlock b) { LLVMPositionBuilderAtEnd(at, b); }
  void jump(LlvmBlock to) { LLVMBuildBr(at, to); }
  void branch(LlvmValue c, LlvmBlock yes, LlvmBlock no) { LLVMBuildCondBr(at, c, yes, no); }
  LlvmValue phi(LlvmType type) { return LLVMBuildPhi(at, type, ""); }
  static void incoming(LlvmValue phi, LlvmValue v, LlvmBlock from) {
    LLVMAddIncoming(phi, &v, &from, 1);
  }
};

}  // namespace oa::codegen
