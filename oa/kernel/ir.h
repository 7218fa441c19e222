// The kernel IR: one small SSA program with structured control flow per kernel.
//
// Read `Op` first: it lists every instruction with its operands. A kernel is traced by the language
// in lang.h, checked by verify.h, cleaned by simplify.h and lowered by oa/codegen. An instruction
// yields at most one value, named by its index in Kernel::instrs. A value may be used only after
// it, in the region that holds it or in regions nested there; state that outlives a region lives in
// a variable slot.
//
// A workgroup of `width` lanes runs a kernel. Memory is addressed by 64-bit device addresses, which
// come from the kernel's parameters (8 bytes each, uniform) or are loaded from memory.
#pragma once

#include <string>
#include <vector>

#include "oa/core/types.h"

namespace oa::kernel {

// Types of elements in memory and of values. Bool, U8, F16 and BF16 exist as elements only in
// memory (and in fragments): a load of U8 yields U32, a load of F16 or BF16 yields F32, and a store
// narrows again (U8 by truncation, 16-bit floats to nearest even). Bool is one byte in memory.
enum class Scalar : u8 { Bool, U8, I32, U32, I64, U64, F16, BF16, F32, F64 };

constexpr u32 size_bytes(Scalar s) {
  switch (s) {
    case Scalar::Bool:
    case Scalar::U8: return 1;
    case Scalar::F16:
    case Scalar::BF16: return 2;
    case Scalar::I64:
    case Scalar::U64:
    case Scalar::F64: return 8;
    default: return 4;
  }
}
constexpr bool is_float(Scalar s) { return s >= Scalar::F16; }
constexpr bool is_signed(Scalar s) { return s == Scalar::I32 || s == Scalar::I64; }
constexpr bool is_integer(Scalar s) { return s >= Scalar::U8 && s <= Scalar::U64; }

// The type of the value that a load of element `s` yields.
constexpr Scalar value_scalar(Scalar s) {
  if (s == Scalar::U8) return Scalar::U32;
  if (s == Scalar::F16 || s == Scalar::BF16) return Scalar::F32;
  return s;
}

// Role of a matrix fragment in D = A x B + C. None: the type is a plain value.
enum class FragUse : u8 { None, A, B, C };

// Type of a value. `lanes` counts vector components held by one invocation (1, 2 or 4); vectors
// exist only between memory and VecExtract/VecBuild. A fragment (`use` != None) is a rows x cols
// matrix that a subgroup holds together; A is rows=M, cols=K; B is rows=K, cols=N; C is M x N.
struct Type {
  Scalar scalar = Scalar::F32;
  u8 lanes = 1;
  FragUse use = FragUse::None;
  u8 rows = 0;
  u8 cols = 0;

  bool operator==(const Type&) const = default;
  bool is_fragment() const { return use != FragUse::None; }
};

using ValueId = u32;
inline constexpr ValueId kNoValue = ~0u;

// clang-format off
enum class Op : u8 {
  // Sources
  Const,          // imm = bits of the value in its own width (f64 bits for F64, 0/1 for Bool)
  Param,          // imm = index of the parameter; uniform; type U64, I64, U32, I32 or F32 (low bits of the 8-byte slot)
  LaneId,         // U32 index of the lane in the workgroup; 0 .. width-1
  GroupId,        // U32 linear index of the workgroup; uniform
  GroupCount,     // U32 number of workgroups; uniform

  // Arithmetic: (a) or (a, b); operand types equal the result type unless said
  Neg, Abs, Not,                        // Not: Bool or bitwise on integers
  Sqrt,                                 // correctly rounded
  Floor, Ceil, Trunc, RoundEven,        // floats
  Add, Sub, Mul,                        // integers wrap
  Div, Rem,                             // float Div correctly rounded for normal results; integer division by zero yields an unspecified value, never a trap; Rem truncates (sign of a)
  Min, Max,                             // floats: NaN if either is NaN; the sign of a zero result is unspecified
  MulHi,                                // U32 only: high half of the 64-bit product
  And, Or, Xor, Shl, Shr,               // And/Or/Xor also on Bool; Shr is arithmetic on signed types; the count (same type) is below the bit width
  Fma,                                  // (a, b, c): a*b + c with one rounding where the device has it (CPU always)
  Eq, Ne, Lt, Le, Gt, Ge,               // result Bool; floats: ordered, except Ne, which is true on NaN
  Select,                               // (cond Bool, a, b): a or b, also on vectors
  Cast,                                 // numeric conversion; float to integer truncates and saturates, NaN to 0; Bool to number 0/1; number to Bool: != 0
  Bitcast,                              // same size: F32/U32/I32, F64/U64/I64

  // Vectors of 2 or 4 components
  VecBuild,                             // (c0, c1, ...)
  VecExtract,                           // (v), imm = component

  // Device memory: address = U64 device address of element 0 (uniform or not), index = element index of any integer type
  Load,                                 // (address, index); elem; type.lanes > 1 loads consecutive elements, and index is then a multiple of lanes; imm = 1: constant, nobody writes the elements while the kernel runs
  Store,                                // (address, index, value); elem; imm = 1: streaming, a hint that nobody reads the elements soon
  Atomic,                               // (address, index, value); elem I32/U32; imm = AtomicOp; yields the old value; relaxed
  AtomicCas,                            // (address, index, expected, value); elem I32/U32; yields the old value

  // Workgroup memory; slot = index into Kernel::shared
  SharedLoad,                           // (index); slot
  SharedStore,                          // (index, value); slot
  SharedAtomic,                         // (index, value); slot; imm = AtomicOp

  // Variables private to a lane; slot = index into Kernel::vars
  VarLoad,                              // (); slot
  VarStore,                             // (value); slot

  // Lanes of one subgroup (Kernel::subgroup lanes with consecutive LaneId)
  Shuffle,                              // (value, source U32): value of lane `source` (0 .. subgroup-1) of the own subgroup
  ShuffleXor,                           // (value), imm = mask: value of lane (own index xor mask)
  SubgroupAny, SubgroupAll,             // (Bool) -> Bool
  Barrier,                              // imm = BarrierScope bits; control barrier of the workgroup that orders the named memory

  // Matrix fragments; slot = shared slot or ~0 with an address in args[0]; offset and stride count elements
  FragFill,                             // (value)
  FragLoad,                             // (address?, offset, stride); elem; imm = 0 row-major, 1 column-major; 16-bit elements may lie in a U32 slot, two to a cell
  FragStore,                            // (address?, offset, stride, fragment); elem; imm as FragLoad
  FragMulAdd,                           // (a, b, c) -> C
  FragAdd, FragMul,                     // (c, c) elementwise on C fragments
  FragCast,                             // C fragment to another scalar

  // Structured control flow
  If,                                   // (cond); regions[0] then, regions[1] else
  For,                                  // (begin, end, step); regions[0] body; the instruction's own value is the index inside the body; runs while index < end; step > 0, and is uniform; imm = 1: rolled, a hint that unrolling it gains nothing
  While,                                // regions[0] computes the condition and ends with Yield; regions[1] is the body
  Yield,                                // (cond Bool): last instruction of a While's first region
};
// clang-format on

enum class AtomicOp : u8 { Add, Min, Max, And, Or, Exchange };
enum BarrierScope : u64 { kSharedMemory = 1, kDeviceMemory = 2 };
inline constexpr u32 kNoSlot = ~0u;

using Region = std::vector<ValueId>;  // instructions in order

struct Instr {
  Op op = Op::Const;
  Type type;                  // of the value; ignored where the instruction yields none
  Scalar elem = Scalar::F32;  // element type in memory (Load, Store, atomics, fragments)
  u32 slot = kNoSlot;         // shared or variable slot
  u64 imm = 0;                // see Op
  std::vector<ValueId> args;
  std::vector<Region> regions;
};

struct SharedSlot {
  Scalar elem;
  u32 count;
};

struct VarSlot {
  Type type;
};

// A kernel with more parameters than this reads each where it is used; others read all at the top.
inline constexpr u32 kMostHeldParams = 64;

struct Kernel {
  std::string name;  // for people; never part of the hash
  u32 width = 0;     // lanes of a workgroup, a power of two
  u32 subgroup = 0;  // lanes of a subgroup, a power of two, divides width
  u32 params = 0;    // number of 8-byte parameters
  // Values for the last of them, where tracing made parameters of numbers (kernel::extent); never
  // part of the hash.
  std::vector<u64> extents;
  std::vector<SharedSlot> shared;
  std::vector<VarSlot> vars;
  std::vector<Instr> instrs;
  Region body;

  const Instr& operator[](ValueId id) const { return instrs[id]; }
};

// What a kernel may know about the machine it is traced for: plain constants for host `if`s.
struct Target {
  enum class Kind : u8 { Cpu, Vulkan };
  Kind kind = Kind::Cpu;
  u32 width = 16;     // preferred lanes of a workgroup
  u32 subgroup = 16;  // lanes of a subgroup; on the CPU equal to the width of the kernel
  u32 vector_registers =
      16;  // CPU: native vector registers; a gang of f32 takes width*4/vector_bytes of them
  u32 vector_bytes = 32;         // CPU: bytes of a native vector
  u32 shared_bytes = 32 * 1024;  // workgroup memory
  u32 threads =
      1;  // CPU: worker threads; Vulkan: a rough number of workgroups that fill the device
  bool f64 = true;         // F64 arithmetic
  bool fragments = false;  // cooperative matrices, f16 and bf16 with f32 accumulation, 16x16x16
  bool fragments_bf16 = false;
  bool fragments_subnormal = false;  // those of f16 compute with subnormal numbers

  bool is_cpu() const { return kind == Kind::Cpu; }
};

const char* name(Op op);
const char* name(Scalar s);
bool yields_value(Op op);

}  // namespace oa::kernel
