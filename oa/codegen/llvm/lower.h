// One kernel to one LLVM function. lower() in lower.cpp has a row per IR instruction; the other
// files hold their bodies by subject: values, arithmetic, memory, control, fragments.
//
// A uniform value is an LLVM scalar, a varying one a vector of `width` lanes. An affine value (see
// uniformity.h) is kept as the scalar of lane 0 and widened only where lanes need it. `mask_` names
// the active lanes; null means all of them. Code under a mask runs only when a lane is active, so
// uniform loads and stores there are plain ones.
#pragma once

#include <unordered_map>
#include <vector>

#include "oa/codegen/llvm/builder.h"
#include "oa/codegen/llvm/compile.h"
#include "oa/kernel/ir.h"
#include "oa/kernel/uniformity.h"

namespace oa::codegen {

class Lowering {
 public:
  Lowering(const kernel::Kernel& kernel, const CpuTarget& target, LLVMModuleRef module,
           const std::string& symbol);

 private:
  using ValueId = kernel::ValueId;
  using Instr = kernel::Instr;
  using Region = kernel::Region;
  using Scalar = kernel::Scalar;

  // What is known of one component of a value.
  struct Cell {
    LlvmValue scalar = nullptr;  // uniform: the value; affine: lane 0
    LlvmValue vector = nullptr;  // all lanes
    LlvmValue wide = nullptr;    // scalar as a 64-bit index
  };

  // Forgets cached vectors that were made where they do not dominate what follows.
  class Scope {
   public:
    explicit Scope(Lowering& l) : l_(l), mark_(l.cached_.size()) {}
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Lowering& l_;
    size_t mark_;
  };

  // A memory access: elements at `base`, or at the lanes' own addresses when base is null.
  struct Access {
    Scalar elem;
    u32 lanes;
    LlvmValue base;
    ValueId address;
    ValueId index;
  };

  // lower.cpp
  void function(const std::string& symbol);
  void region(const Region& region);
  void lower(ValueId id);
  void param(ValueId id);
  void make_vars();
  void make_shared();
  LlvmValue slot_in_frame(LlvmType type, u32 align);

  // values.cpp
  const kernel::LaneShape& shape(ValueId id) const { return uniformity_.shape(id); }
  static u32 parts(const kernel::Type& type);
  Cell& cell(ValueId id, u32 part) { return cells_[first_cell_[id] + part]; }
  LlvmValue scalar(ValueId id, u32 part = 0);
  LlvmValue vector(ValueId id, u32 part = 0);
  LlvmValue operand(ValueId id, u32 part, bool as_scalar) {
    return as_scalar ? scalar(id, part) : vector(id, part);
  }
  void set(ValueId id, u32 part, LlvmValue v);  // scalar or vector, as the shape says
  LlvmValue wide_index(ValueId id);             // lane 0 of an affine index, in 64 bits
  LlvmValue wide_term(ValueId id);
  bool exact_term(ValueId id);
  bool compute_exact_term(ValueId id);
  LlvmValue wide_lanes(ValueId id);  // every lane's index in 64 bits
  LlvmValue widened(Scalar s, LlvmValue v);
  void remember(LlvmValue& cache, LlvmValue v);

  // arithmetic.cpp
  void arithmetic(ValueId id);
  LlvmValue compute(const Instr& instr, LlvmValue a, LlvmValue b, LlvmValue c);
  LlvmValue divide(const Instr& instr, LlvmValue a, LlvmValue b);
  LlvmValue divide_by_double(kernel::Op op, bool is_signed, LlvmValue a, LlvmValue b);
  LlvmValue min_max(const Instr& instr, LlvmValue a, LlvmValue b);
  LlvmValue compare(kernel::Op op, Scalar s, LlvmValue a, LlvmValue b);
  LlvmValue cast(Scalar from, Scalar to, LlvmValue v);
  LlvmValue float_to_int(Scalar to, LlvmValue v);
  void select(ValueId id);
  void vec_build(ValueId id);
  void vec_extract(ValueId id);
  void lane_id(ValueId id);

  // lanes.cpp
  void shuffle(ValueId id);
  void shuffle_xor(ValueId id);
  LlvmValue permute(LlvmValue v, LlvmValue source);
  void subgroup_vote(ValueId id);
  LlvmValue bits(LlvmValue mask);
  LlvmValue any(LlvmValue mask);
  LlvmValue all(LlvmValue mask);
  LlvmValue first_active();
  LlvmValue last_active();
  LlvmValue mask_or_all();
  LlvmValue both(LlvmValue mask, LlvmValue cond) { return mask ? b_.and_(mask, cond) : cond; }

  // memory.cpp
  Access access(const Instr& instr);
  void load(ValueId id);
  void store(ValueId id);
  void load_strided(ValueId id, const Access& a);
  void load_rows(ValueId id, const Access& a);
  void store_rows(const Access& a, ValueId value);
  void gather(ValueId id, const Access& a);
  void store_contiguous(const Instr& instr, const Access& a, ValueId value);
  void scatter(const Access& a, ValueId value);
  bool is_spread(const Access& a) const;
  LlvmValue spread_pointer(const Access& a, u32 lane, u32 component);
  bool has_masked_lanes(u32 size) const;
  bool has_masked_vectors(u32 size) const;
  LlvmValue instead_of_idle(LlvmValue v);
  LlvmValue lane_pointers(const Access& a, u32 component);
  LlvmValue affine_pointer(const Access& a);
  LlvmValue load_vector(LlvmType elem, LlvmValue from, u32 n, LlvmValue mask, u32 align);
  void store_vector(LlvmValue v, LlvmValue to, LlvmValue mask, u32 align);
  LlvmValue repeated(LlvmValue mask, u32 times);
  LlvmValue reversed(LlvmValue v);
  LlvmValue from_memory(Scalar elem, LlvmValue v);
  LlvmValue to_memory(Scalar elem, LlvmValue v);

  // halves.cpp
  LlvmValue half_to_float(LlvmValue v);
  LlvmValue float_to_half(LlvmValue v);
  LlvmValue float_to_bfloat(LlvmValue v);

  // memory.cpp: variables
  void var_load(ValueId id);
  void var_store(const Instr& instr);

  // atomics.cpp
  void atomic(ValueId id);
  LlvmValue atomic_once(const Instr& instr, LlvmValue pointer, LlvmValue value, LlvmValue expected);

  // control.cpp
  void if_else(ValueId id);
  void masked_region(const Region& region, LlvmValue mask);
  void under(LlvmValue mask, const Region& region);
  bool is_cheap(const Region& region, u32& budget) const;
  bool wants_full_path(const Region& region) const;
  void for_loop(ValueId id);
  LlvmValue scalar_loop(ValueId id, LlvmValue begin, LlvmValue limit, LlvmValue step);
  void for_tail(ValueId id, LlvmValue begin, LlvmValue end, LlvmValue step);
  void set_counter(ValueId id, LlvmValue counter);
  void for_varying(ValueId id);
  void while_loop(ValueId id);
  LlvmValue before(Scalar s, LlvmValue a, LlvmValue b);
  LlvmValue counter_before(Scalar s, LlvmValue a, LlvmValue b);
  LlvmValue advance(Scalar s, LlvmValue counter, LlvmValue step);
  void find_homes(const Region& region, std::vector<const Region*>& open);

  // fragments.cpp
  void frag_fill(ValueId id);
  void frag_load(ValueId id);
  void frag_store(ValueId id);
  void frag_mul_add(ValueId id);
  void frag_elementwise(ValueId id);
  LlvmValue frag_pointer(const Instr& instr, u32 outer);
  LlvmValue frag_rounded(Scalar s, LlvmValue v);

  const kernel::Kernel& k_;
  const CpuTarget& target_;
  const u32 width_;
  kernel::Uniformity uniformity_;
  Builder b_;
  Builder entry_;  // at the end of the entry block: allocas and parameters
  LlvmValue params_ = nullptr;
  LlvmValue group_ = nullptr;
  LlvmValue group_count_ = nullptr;

  std::vector<u32> first_cell_;
  std::vector<Cell> cells_;
  std::vector<i8> exact_;                     // memo of exact_term(), -1 unknown
  std::vector<LlvmValue*> cached_;            // undo log of Scope
  std::vector<std::vector<LlvmValue>> vars_;  // allocas of each variable's parts
  std::vector<LlvmValue> shared_;
  ValueId yield_id_ = kernel::kNoValue;  // condition of the While region just lowered

  LlvmValue mask_ = nullptr;
  u32 level_ = 0;  // number of the mask in force; fresh for every masked region
  u32 last_level_ = 0;
  // The region whose start sets a variable anew; stores under its own mask need no merge.
  std::unordered_map<const Region*, std::vector<u32>> homes_;
  std::vector<const Region*> home_of_;
  std::vector<bool> seen_;
  std::vector<u32> home_level_;
};

}  // namespace oa::codegen
