// 16-bit floats in memory: to and from f32, to nearest even, NaN kept (and made quiet).
#include "oa/codegen/llvm/lower.h"

namespace oa::codegen {

LlvmValue Lowering::half_to_float(LlvmValue v) {
  const LlvmType real = Builder::like(b_.f32, v);
  if (target_.has("f16c")) {
    return LLVMBuildFPExt(b_.at, b_.bitcast(v, Builder::like(b_.half, v)), real, "");
  }
  // The exponent is moved by a multiplication, which is exact and treats subnormals right.
  const LlvmType type = Builder::like(b_.i32, v);
  const auto num = [&](u32 x) { return b_.integer(type, x); };
  const LlvmValue bits = b_.zext(v, b_.i32);
  const LlvmValue magnitude = b_.and_(bits, num(0x7fff));
  const LlvmValue shifted = LLVMBuildShl(b_.at, magnitude, num(13), "");
  const LlvmValue scaled =
      LLVMBuildFMul(b_.at, b_.bitcast(shifted, real), b_.real(real, 0x1p112), "");
  const LlvmValue special = b_.icmp(LLVMIntUGE, magnitude, num(0x7c00));
  const LlvmValue nan = b_.icmp(LLVMIntUGT, magnitude, num(0x7c00));
  const LlvmValue large =
      b_.or_(b_.or_(shifted, num(0x7f800000)), b_.select(nan, num(0x00400000), num(0)));
  const LlvmValue finite = b_.bitcast(scaled, type);
  const LlvmValue sign = LLVMBuildShl(b_.at, b_.and_(bits, num(0x8000)), num(16), "");
  return b_.bitcast(b_.or_(b_.select(special, large, finite), sign), real);
}

LlvmValue Lowering::float_to_half(LlvmValue v) {
  if (target_.has("f16c")) {
    const LlvmValue half = LLVMBuildFPTrunc(b_.at, v, Builder::like(b_.half, v), "");
    return b_.bitcast(half, Builder::like(b_.i16, v));
  }
  const LlvmType real = Builder::like(b_.f32, v);
  const LlvmType type = Builder::like(b_.i32, v);
  const auto num = [&](u32 x) { return b_.integer(type, x); };
  const auto shr = [&](LlvmValue x, u32 n) { return LLVMBuildLShr(b_.at, x, num(n), ""); };
  const LlvmValue bits = b_.bitcast(v, type);
  const LlvmValue magnitude = b_.and_(bits, num(0x7fffffff));
  // Normal results: round the 13 dropped bits to even, with a carry into the exponent.
  const LlvmValue odd = b_.and_(shr(magnitude, 13), num(1));
  const LlvmValue rounded = b_.add(b_.add(magnitude, num(0xfff)), odd);
  const LlvmValue normal = b_.sub(shr(rounded, 13), num(112u << 10));
  // Subnormal results: an addition whose last place is 2^-24 does the rounding.
  const LlvmValue sum = LLVMBuildFAdd(b_.at, b_.bitcast(magnitude, real), b_.real(real, 0.5), "");
  const LlvmValue small = b_.sub(b_.bitcast(sum, type), num(0x3f000000));
  LlvmValue half = b_.select(b_.icmp(LLVMIntULT, magnitude, num(0x38800000)), small, normal);
  half = b_.select(b_.icmp(LLVMIntUGE, magnitude, num(0x477ff000)), num(0x7c00), half);
  const LlvmValue payload = b_.or_(num(0x7e00), b_.and_(shr(magnitude, 13), num(0x3ff)));
  half = b_.select(b_.icmp(LLVMIntUGT, magnitude, num(0x7f800000)), payload, half);
  return b_.trunc(b_.or_(half, b_.and_(shr(bits, 16), num(0x8000))), b_.i16);
}

LlvmValue Lowering::float_to_bfloat(LlvmValue v) {
  const LlvmType type = Builder::like(b_.i32, v);
  const auto num = [&](u32 x) { return b_.integer(type, x); };
  const auto high = [&](LlvmValue x) { return LLVMBuildLShr(b_.at, x, num(16), ""); };
  const LlvmValue bits = b_.bitcast(v, type);
  const LlvmValue odd = b_.and_(high(bits), num(1));
  const LlvmValue rounded = high(b_.add(b_.add(bits, num(0x7fff)), odd));
  const LlvmValue quiet = b_.or_(high(bits), num(0x40));
  const LlvmValue nan = b_.fcmp(LLVMRealUNO, v, v);
  return b_.trunc(b_.select(nan, quiet, rounded), b_.i16);
}

}  // namespace oa::codegen
