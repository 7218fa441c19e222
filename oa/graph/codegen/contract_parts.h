// The operands of products by 16-bit parts: the passes that scale them and write their parts.
#pragma once

#include <span>

#include "oa/graph/codegen/contract_tiles.h"

namespace oa::graph {

// What an operand is split into.
struct SplitForm {
  kernel::Scalar elem;
  u32 parts;
  f32 smallest;  // scaled elements below lose bits
};
SplitForm split_form(Precision p);  // F32x3 or F32x6

// What a product needs of one operand: the temporaries with its parts, for each k those of all
// `lines`, batch after batch; the exponent fields of the lines' scales; and, from word `worst` of
// `control` on, the most small elements of a line and the complement of the smallest sum of one.
struct SplitParts {
  std::vector<u32> parts;
  u32 scales = 0;
  u32 control = 0, worst = 0;
  i64 lines = 0;
  void add_args(Launch& launch) const {
    for (u32 p : parts) launch.args.push_back(ArgRef::temporary(p));
    launch.args.push_back(ArgRef::temporary(scales));
  }
};

// Exponent field of the power of two that takes a line's largest element to [2^14, 2^15). It and
// its inverse are normal numbers.
kernel::U32 scale_field(const kernel::U32& largest);
kernel::U32 magnitude_bits(const kernel::Value& x);
// The parts of a scaled element, largest first; the last one is still to be rounded.
std::vector<kernel::F32> parts_of(const kernel::F32& x, const SplitForm& form);
// 1 for a scaled element that loses bits, else 0.
kernel::U32 is_small(const kernel::F32& x, const SplitForm& form);
// Counts of small elements of lines with infinities or NaN, and sums of lines of zeros: always
// false, always true.
inline constexpr u32 kNever = 0x4000'0000;
inline constexpr u32 kAlways = 0x8000'0000;

inline constexpr i64 kPartLines = 64;     // rows of A or columns of B per workgroup of a pass
inline constexpr i64 kPartDepth = 32;     // of k at a time in a pass
inline constexpr f32 kSumUnit = 0x1p-7f;  // sums are kept as integers, whose order does not matter

// One operand's passes, and what they leave: for each k the parts of all lines (rows of A or
// columns of B), padded, batch after batch; the exponent field of each line's scale; and the
// numbers of SplitVerdict.
class OperandSplit {
 public:
  OperandSplit(ContractNest& c, const SplitForm& form, u32 operand, i64 batches, i64 lines,
               i64 depth);

  void add_temps(Launches& out);

  void lower_maxima(Launches& out);

  void lower_parts(Launches& out);

  void lower_verdict(Launches& out);

  SplitParts parts() const { return {parts_, scales_, worst_, 0, lines_}; }

 private:
  i64 blocks() const { return lines_ / kPartLines; }
  i64 slices() const { return ceil_div(depth_, slice_); }
  i64 groups() const { return batches_ * blocks() * slices(); }

  // A launch that reads the operand, with these temporaries as parameters after the operand's.
  template <class Body>
  void add(Launches& out, const char* name, const std::vector<u32>& written,
           const std::vector<u32>& read, i64 groups, const Body& body);

  void find_place();

  // Number of a line of this workgroup among all, as they lie in the temporaries.
  kernel::Value line_number(const kernel::Value& line) const;

  // A lane meets few lines: one per unit, or four neighbours.
  u32 own_lines() const { return source_.along_depth() ? source_.units() : 4; }
  u32 own(u32 unit, u32 element) const { return source_.along_depth() ? unit : element; }
  kernel::U32 own_line(u32 i) const;

  template <class Body>
  void each_tile(const Body& body);

  void trace_maxima(const kernel::Buffer& maxima, const kernel::Buffer& tallies,
                    const kernel::Buffer& worst);

  void trace_parts(const kernel::Buffer& maxima, const kernel::Buffer& tallies,
                   const kernel::Buffer& scales, std::span<const kernel::Buffer> parts);

  template <class Body>
  void each_line(const Body& body);

  // Four lines from `across` on at one k.
  void store(std::span<const kernel::Buffer> parts, const kernel::Value& k,
             const kernel::U32& across, const std::vector<std::vector<kernel::U32>>& split);

  ContractNest& c_;
  SplitForm form_;
  u32 operand_;
  i64 batches_, lines_, depth_, slice_ = 0;
  u32 width_;
  TileSource source_;
  u32 maxima_ = 0, tallies_ = 0, scales_ = 0, worst_ = 0;
  std::vector<u32> parts_;
  kernel::Value slice_at_, block_, batch_;
  Grid::Place at_;
};

}  // namespace oa::graph
