// Matrix fragments: the gang holds a fragment as one vector per row. 16-bit elements are widened to
// f32 on load.
#include "oa/codegen/llvm/lower.h"
#include "oa/core/error.h"

namespace oa::codegen {

using kernel::Op;

// Rounds to the precision of the fragment's type, which is held in f32.
LlvmValue Lowering::frag_rounded(Scalar s, LlvmValue v) {
  if (s != Scalar::F16 && s != Scalar::BF16) return v;
  return from_memory(s, to_memory(s, v));
}

void Lowering::frag_fill(ValueId id) {
  const Instr& instr = k_[id];
  if (!shape(instr.args[0]).uniform()) {
    fail(ErrorKind::Internal, "codegen", "value of {} in {} differs between lanes",
         kernel::name(instr.op), k_.name);
  }
  const LlvmValue row =
      frag_rounded(instr.type.scalar, b_.splat(scalar(instr.args[0]), instr.type.cols));
  for (u32 r = 0; r < instr.type.rows; ++r) set(id, r, row);
}

// Where row (or column) `outer` of the fragment starts. Offset and stride are uniform.
LlvmValue Lowering::frag_pointer(const Instr& instr, u32 outer) {
  const bool is_shared = instr.slot != kernel::kNoSlot;
  const size_t first = is_shared ? 0 : 1;
  const ValueId offset = instr.args[first], stride = instr.args[first + 1];
  for (const ValueId a : instr.args) {
    if (!shape(a).uniform()) {
      fail(ErrorKind::Internal, "codegen", "operand of {} in {} differs between lanes",
           kernel::name(instr.op), k_.name);
    }
  }
  const LlvmValue base =
      is_shared ? shared_[instr.slot] : LLVMBuildIntToPtr(b_.at, scalar(instr.args[0]), b_.ptr, "");
  const LlvmValue step = b_.mul(wide_index(stride), b_.integer(b_.i64, outer));
  return b_.element(b_.memory_type(instr.elem), base, b_.add(wide_index(offset), step));
}

void Lowering::frag_load(ValueId id) {
  const Instr& instr = k_[id];
  const u32 rows = instr.type.rows, cols = instr.type.cols, size = size_bytes(instr.elem);
  const LlvmType elem = b_.memory_type(instr.elem);
  if (instr.imm == 0) {
    for (u32 r = 0; r < rows; ++r) {
      const LlvmValue v = b_.load(Builder::vector(elem, cols), frag_pointer(instr, r), size);
      set(id, r, from_memory(instr.elem, v));
    }
    return;
  }
  // Column-major: contiguous columns, then one insertion per element.
  std::vector<LlvmValue> out(rows, b_.undefined(Builder::vector(elem, cols)));
  for (u32 c = 0; c < cols; ++c) {
    const LlvmValue column = b_.load(Builder::vector(elem, rows), frag_pointer(instr, c), size);
    for (u32 r = 0; r < rows; ++r) {
      out[r] = b_.insert(out[r], b_.extract(column, r), b_.integer(b_.i64, c));
    }
  }
  for (u32 r = 0; r < rows; ++r) set(id, r, from_memory(instr.elem, out[r]));
}

void Lowering::frag_store(ValueId id) {
  const Instr& instr = k_[id];
  const ValueId value = instr.args.back();
  const kernel::Type& type = k_[value].type;
  const u32 size = size_bytes(instr.elem);
  const LlvmType elem = b_.memory_type(instr.elem);
  if (instr.imm == 0) {
    for (u32 r = 0; r < type.rows; ++r) {
      b_.store(to_memory(instr.elem, scalar(value, r)), frag_pointer(instr, r), size);
    }
    return;
  }
  for (u32 c = 0; c < type.cols; ++c) {
    LlvmValue column = b_.undefined(Builder::vector(elem, type.rows));
    for (u32 r = 0; r < type.rows; ++r) {
      const LlvmValue x = b_.extract(scalar(value, r), c);
      column = b_.insert(column, to_memory(instr.elem, x), b_.integer(b_.i64, r));
    }
    b_.store(column, frag_pointer(instr, c), size);
  }
}

void Lowering::frag_mul_add(ValueId id) {
  const Instr& instr = k_[id];
  const ValueId a = instr.args[0], b = instr.args[1], c = instr.args[2];
  const u32 depth = k_[a].type.cols;
  const bool real = kernel::is_float(instr.type.scalar);
  for (u32 r = 0; r < instr.type.rows; ++r) {
    LlvmValue sum = scalar(c, r);
    for (u32 k = 0; k < depth; ++k) {
      const LlvmValue x = b_.splat(b_.extract(scalar(a, r), k), instr.type.cols);
      if (real) {
        sum = b_.call("llvm.fma", {Builder::type_of(sum)}, {x, scalar(b, k), sum});
      } else {
        sum = b_.add(sum, b_.mul(x, scalar(b, k)));
      }
    }
    set(id, r, frag_rounded(instr.type.scalar, sum));
  }
}

void Lowering::frag_elementwise(ValueId id) {
  const Instr& instr = k_[id];
  const Scalar s = instr.type.scalar;
  const bool real = kernel::is_float(s);
  for (u32 r = 0; r < instr.type.rows; ++r) {
    const LlvmValue a = scalar(instr.args[0], r);
    if (instr.op == Op::FragCast) {
      set(id, r, frag_rounded(s, cast(k_[instr.args[0]].type.scalar, s, a)));
      continue;
    }
    const LlvmValue b = scalar(instr.args[1], r);
    const bool add = instr.op == Op::FragAdd;
    const LlvmValue v = add ? (real ? LLVMBuildFAdd(b_.at, a, b, "") : b_.add(a, b))
                            : (real ? LLVMBuildFMul(b_.at, a, b, "") : b_.mul(a, b));
    set(id, r, frag_rounded(s, v));
  }
}

}  // namespace oa::codegen
