// The parts of Builder that are more than one call.
#include "oa/codegen/llvm/builder.h"

#include "oa/core/error.h"

namespace oa::codegen {

using kernel::Scalar;

Builder::Builder(LLVMModuleRef m)
    : context(LLVMGetModuleContext(m)), module(m), at(LLVMCreateBuilderInContext(context)) {
  i1 = LLVMInt1TypeInContext(context);
  i8 = LLVMInt8TypeInContext(context);
  i16 = LLVMInt16TypeInContext(context);
  i32 = LLVMInt32TypeInContext(context);
  i64 = LLVMInt64TypeInContext(context);
  half = LLVMHalfTypeInContext(context);
  f32 = LLVMFloatTypeInContext(context);
  f64 = LLVMDoubleTypeInContext(context);
  ptr = LLVMPointerTypeInContext(context, 0);
}

Builder::~Builder() { LLVMDisposeBuilder(at); }

LlvmType Builder::value_type(Scalar s) const {
  switch (s) {
    case Scalar::Bool: return i1;
    case Scalar::U8:
    case Scalar::I32:
    case Scalar::U32: return i32;
    case Scalar::I64:
    case Scalar::U64: return i64;
    case Scalar::F16:  // values of 16-bit floats exist in fragments only, widened
    case Scalar::BF16:
    case Scalar::F32: return f32;
    case Scalar::F64: return f64;
  }
  OA_CHECK(false);
}

LlvmType Builder::memory_type(Scalar s) const {
  switch (s) {
    case Scalar::Bool:
    case Scalar::U8: return i8;
    case Scalar::F16:
    case Scalar::BF16: return i16;
    default: return value_type(s);
  }
}

LlvmValue Builder::integer(LlvmType type, u64 x) const {
  const LlvmValue one = LLVMConstInt(elem_of(type), x, false);
  if (!is_vector(type)) return one;
  std::vector<LlvmValue> all(count(type), one);
  return LLVMConstVector(all.data(), count(type));
}

LlvmValue Builder::real(LlvmType type, double x) const {
  const LlvmValue one = LLVMConstReal(elem_of(type), x);
  if (!is_vector(type)) return one;
  std::vector<LlvmValue> all(count(type), one);
  return LLVMConstVector(all.data(), count(type));
}

LlvmValue Builder::steps(LlvmType elem, u32 n, std::int64_t first, std::int64_t step) const {
  std::vector<LlvmValue> all(n);
  for (u32 l = 0; l < n; ++l) {
    all[l] = LLVMConstInt(elem, static_cast<u64>(first) + static_cast<u64>(step) * l, false);
  }
  return LLVMConstVector(all.data(), n);
}

LlvmValue Builder::call(std::string_view intrinsic, std::initializer_list<LlvmType> overloads,
                        std::initializer_list<LlvmValue> args) {
  const unsigned id = LLVMLookupIntrinsicID(intrinsic.data(), intrinsic.size());
  if (id == 0) fail(ErrorKind::Internal, "codegen", "unknown LLVM intrinsic, got {}", intrinsic);
  std::vector<LlvmType> types(overloads);
  std::vector<LlvmValue> values(args);
  const LlvmValue fn = LLVMGetIntrinsicDeclaration(module, id, types.data(), types.size());
  const LlvmType type = LLVMIntrinsicGetType(context, id, types.data(), types.size());
  return LLVMBuildCall2(at, type, fn, values.data(), static_cast<unsigned>(values.size()), "");
}

LlvmValue Builder::splat(LlvmValue scalar, u32 n) {
  if (n == 0) return scalar;
  const LlvmType type = vector(type_of(scalar), n);
  if (LLVMIsConstant(scalar)) {
    std::vector<LlvmValue> all(n, scalar);
    return LLVMConstVector(all.data(), n);
  }
  const LlvmValue first = insert(undefined(type), scalar, integer(i64, 0));
  return LLVMBuildShuffleVector(at, first, undefined(type), zero(vector(i32, n)), "");
}

LlvmValue Builder::shuffle(LlvmValue a, LlvmValue b, std::span<const u32> lanes) {
  std::vector<LlvmValue> mask;
  for (const u32 l : lanes) mask.push_back(integer(i32, l));
  return LLVMBuildShuffleVector(
      at, a, b, LLVMConstVector(mask.data(), static_cast<unsigned>(mask.size())), "");
}

LlvmValue Builder::load(LlvmType type, LlvmValue from, u32 align) {
  const LlvmValue v = LLVMBuildLoad2(at, type, from, "");
  LLVMSetAlignment(v, align);
  return v;
}

void Builder::store(LlvmValue v, LlvmValue to, u32 align) {
  LLVMSetAlignment(LLVMBuildStore(at, v, to), align);
}

void Builder::store_streaming(LlvmValue v, LlvmValue to, u32 bytes) {
  // The hardware wants whole aligned vectors; an address that is not aligned takes the plain way.
  const LlvmValue address = LLVMBuildPtrToInt(at, to, i64, "");
  const LlvmValue low = LLVMBuildAnd(at, address, integer(i64, bytes - 1), "");
  const LlvmBlock aligned = new_block("aligned"), plain = new_block("plain"),
                  done = new_block("done");
  branch(icmp(LLVMIntEQ, low, integer(i64, 0)), aligned, plain);
  enter(aligned);
  const LlvmValue streaming = LLVMBuildStore(at, v, to);
  LLVMSetAlignment(streaming, bytes);
  LLVMMetadataRef one = LLVMValueAsMetadata(integer(i32, 1));
  LLVMMetadataRef node = LLVMMDNodeInContext2(context, &one, 1);
  LLVMSetMetadata(streaming, LLVMGetMDKindIDInContext(context, "nontemporal", 11),
                  LLVMMetadataAsValue(context, node));
  jump(done);
  enter(plain);
  store(v, to, 1);
  jump(done);
  enter(done);
}

LlvmBlock Builder::new_block(const char* name) {
  return LLVMAppendBasicBlockInContext(context, LLVMGetBasicBlockParent(block()), name);
}

}  // namespace oa::codegen
