// The meaning of every arithmetic instruction, as a host function: the interpreter runs it and the
// simplifier folds constants with it, so both agree with each other bit for bit.
//
// A value is held as its bits in the low end of a u64, the rest zero: Bool as 0 or 1, F32 as its 32
// bits. Arithmetic that yields NaN yields the one quiet positive NaN without payload, whatever the
// host would give. Where ir.h leaves a result open, the choice here is: integer x / 0 = 0,
// x % 0 = x, the smallest integer / -1 wraps, and shift counts wrap at the bit width.
#pragma once

#include "oa/kernel/ir.h"

namespace oa::kernel {

// True for Neg ... Bitcast: the instructions that evaluate() knows.
constexpr bool is_arithmetic(Op op) { return op >= Op::Neg && op <= Op::Bitcast; }

// `result` is the type of the value, `operand` that of the last operand (they differ in comparisons
// and casts). Scalars only.
u64 evaluate(Op op, Scalar result, Scalar operand, const u64* args);

// True where ir.h leaves the result open for these operands, so that machines may differ.
bool is_unspecified(Op op, Scalar result, const u64* args);

u64 cast_bits(Scalar to, Scalar from, u64 bits);

// Memory <-> value: the bits of an element in memory, as loads and stores convert them.
u64 element_to_value(Scalar elem, u64 bits);
u64 value_to_element(Scalar elem, u64 bits);

// Bits of an atomic's new cell content.
u64 evaluate_atomic(AtomicOp op, Scalar elem, u64 old, u64 operand);

}  // namespace oa::kernel
