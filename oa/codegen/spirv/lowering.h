// The state of one lowering; private to this folder. lower.cpp walks the kernel, the other lower_*
// files have the instructions by subject.
#pragma once

#include <string_view>
#include <vector>

#include "oa/codegen/spirv/builder.h"
#include "oa/codegen/spirv/lower.h"

namespace oa::codegen::spirv {

// How a shared slot is laid out in workgroup memory.
struct SharedLayout {
  u32 cell_bytes = 4;  // of one element
  u32 lanes = 1;       // the array's elements are vectors of so many cells
};

// What a look over the whole kernel finds before lowering starts.
struct KernelFacts {
  bool fragments = false;
  bool unaligned_pairs = false;      // a fragment in a U32 slot whose place may not be a whole cell
  bool device_barrier = false;       // some barrier orders device memory
  bool vulkan_model = false;         // the Vulkan memory model, else GLSL's
  std::vector<SharedLayout> shared;  // per slot
};

// The largest power of two, at most `limit`, that divides an integer value for certain. `depth`
// bounds the walk over shared operands.
u32 known_divisor(const kernel::Kernel& k, kernel::ValueId id, u32 limit, u32 depth = 10);

KernelFacts survey(const kernel::Kernel& kernel, const VulkanTarget& target);

// The parts of an IEEE float that the corrections need.
struct FloatFormat {
  kernel::Scalar bits;  // integer of the same width
  u32 width;
  u32 mantissa_bits;  // stored ones
  u32 exponent_mask;  // all ones
  u64 sign() const { return 1ull << (width - 1); }
  u64 mantissa_mask() const { return (1ull << mantissa_bits) - 1; }
  u32 bias() const { return exponent_mask >> 1; }
  u64 one() const { return static_cast<u64>(bias()) << mantissa_bits; }
};

inline FloatFormat format(kernel::Scalar s) {
  if (s == kernel::Scalar::F64) return {kernel::Scalar::U64, 64, 52, 0x7ff};
  return {kernel::Scalar::U32, 32, 23, 0xff};
}

class Lowering {
 public:
  Lowering(const kernel::Kernel& kernel, const VulkanTarget& target);
  std::vector<u32> run();

 private:
  using Instr = kernel::Instr;
  using Scalar = kernel::Scalar;
  using Type = kernel::Type;
  using ValueId = kernel::ValueId;

  // --- lower.cpp
  [[noreturn]] void missing(std::string_view what) const;
  [[noreturn]] void malformed(const Instr& instr, std::string_view what) const;
  void declare();
  void lower_region(const kernel::Region& region);
  void lower(ValueId id);
  Id lower_value(const Instr& instr);
  void lower_if(const Instr& instr);
  void lower_for(ValueId id, const Instr& instr);
  void lower_while(const Instr& instr);
  Id param(const Instr& instr);
  Id group_id();

  Id scalar_type(Scalar s);
  Id type_of(const Type& type);
  Id value(ValueId id) const;
  const Type& type_of_value(ValueId id) const { return kernel_[id].type; }

  // Constants of a value scalar, from bits.
  Id constant(Scalar s, u64 bits);
  Id float_constant(Scalar s, f64 x);
  Id scope(spv::Scope s) { return b_.constant_u32(static_cast<u32>(s)); }

  // --- lower_math.cpp
  Id lower_math(const Instr& instr);
  Id compare(kernel::Op op, Scalar s, Id a, Id b);
  Id cast(Scalar from, Scalar to, Id a);
  Id saturating_cast(Scalar from, Scalar to, Id a);
  Id integer_divide(const Instr& instr);
  Id float_min_max(kernel::Op op, Scalar s, Id a, Id b);
  Id arithmetic(spv::Op op, Scalar s, std::initializer_list<Id> operands);  // never contracted
  Id is_nan(Id a);
  Id bits_of(Scalar s, Id a);
  Id float_of(Scalar s, Id bits);
  Id select(Id type, Id condition, Id a, Id b) {
    return b_.emit(spv::Op::OpSelect, type, {condition, a, b});
  }

  // --- lower_division.cpp
  Id float_divide(Scalar s, Id a, Id b);
  Id float_sqrt(Scalar s, Id a);
  Id float_remainder(Scalar s, Id a, Id b);
  Id multiply_add(Scalar s, Id a, Id b, Id c);
  Id residual(Scalar s, Id a, Id b, Id c);  // c - a*b, exact where a*b is close to c
  Id to_nearest(Scalar s, Id q, Id left, Id factor, u32 log2_inverse);

  // --- lower_memory.cpp
  Id lower_memory(const Instr& instr);
  Id atomic(const Instr& instr);
  Id shared_load(const Instr& instr);
  void shared_store(const Instr& instr);
  void barrier(const Instr& instr);
  Id cell_type(Scalar elem, u32 cell_bytes);  // how an element is held in memory
  Id decode(Scalar elem, u32 cell_bytes, u32 lanes, Id cell);
  Id encode(Scalar elem, u32 cell_bytes, u32 lanes, Id value, bool device);
  Id element_address(Id address, ValueId index, u32 bytes);
  Id element_pointer(Id address, ValueId index, Scalar elem, u32 lanes, bool constant = false);
  void need_storage(u32 bytes);                   // of elements in device memory
  Id shared_pointer(u32 slot, Id index);          // of one cell
  Id shared_vector_pointer(u32 slot, Id vector);  // of a vector of SharedLayout::lanes cells
  Id index_u32(ValueId index);
  Id vector_index(ValueId index, u32 per);  // index / per, where `per` divides it
  Id index_plus(Id index, u32 offset);
  Id load(Id type, Id pointer, u32 align, bool device);
  void store(Id pointer, Id object, u32 align, bool device);
  std::vector<u32> access(u32 align, bool device) const;

  // --- lower_lanes.cpp
  Id lower_lanes(const Instr& instr);
  Id shuffle(const Instr& instr, Type type, Id v);
  Id lower_fragment(const Instr& instr);
  Id fragment_pointer(const Instr& instr, Id& stride);

  const kernel::Kernel& kernel_;
  const VulkanTarget& target_;
  KernelFacts facts_;
  Builder b_;
  std::vector<Id> values_;
  std::vector<Id> vars_;
  std::vector<Id> shared_;
  PushConstants layout_;
  Id push_ = 0;
  Id lane_ = 0;
  Id group_ = 0;
  Id group_count_ = 0;
  Id block_address_ = 0;
};

}  // namespace oa::codegen::spirv
