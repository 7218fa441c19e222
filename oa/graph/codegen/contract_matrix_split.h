// The 16-bit parts of matrices in memory, made once for all products that read them.
//
// A matrix takes part in products by its rows (k runs along them) and by its columns, often by
// both: a layer's input by its rows in the forward pass and by its columns for the gradient of the
// weight. One pass over it finds the largest elements of all lines that are wanted, a second one
// writes the parts of both kinds. Values, scales and checks are those of OperandSplit.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "oa/graph/codegen/contract_parts.h"

namespace oa::graph {

class MatrixSplit {
 public:
  // `offset` and `stride`: elements before the first row, and from one row to the next.
  MatrixSplit(Operand memory, i64 offset, i64 stride, i64 rows, i64 columns, const SplitForm& form,
              const kernel::Target& target, Launches& out);

  bool is(Operand memory, i64 offset, i64 stride, i64 rows, i64 columns,
          const SplitForm& form) const {
    return memory == memory_ && offset == offset_ && stride == stride_ && rows == rows_ &&
           columns == columns_ && form.parts == form_.parts;
  }

  // Asks for the parts of the rows (side 0) or columns (side 1); false if they are made already for
  // sums of another length. Call it for both operands of a product before the launches.
  bool want(u32 side, i64 depth, Launches& out);
  SplitParts parts(u32 side) const;

  // The passes, one after the other: appended, or put in the place of those that made less.
  void lower_maxima(Launches& out);
  void lower_parts(Launches& out);
  void lower_verdict(Launches& out);

  static i64 padded(i64 lines);

 private:
  struct Side {
    i64 lines = 0, depth = 0;  // padded; depth 0: not wanted
    std::vector<u32> parts;
    u32 scales = 0;
    u32 worst = 0, maxima = 0, tallies = 0;  // first words in the control temporary
    bool wanted() const { return depth > 0; }
  };
  struct Pass {
    size_t at = 0;
    u32 sides = 0;  // that it makes, as bits; 0: there is no launch yet
  };
  struct Frame;

  u32 sides() const { return (all_[0].wanted() ? 1 : 0) | (all_[1].wanted() ? 2 : 0); }
  void put(Pass& pass, Launch launch, Launches& out);
  Launch start(const char* name, const char* choice) const;
  i64 reach() const;
  i64 tiles(u32 axis) const;
  i64 span() const;  // tiles of a workgroup, neighbours along the rows
  u32 width() const;
  void trace_parts(const Frame& f);
  void store_parts(std::span<const kernel::Buffer> to, const kernel::Value& at,
                   std::span<const kernel::F32> scaled) const;
  void store_turned(const Frame& f, const kernel::U32& tile, const kernel::Shared& turned,
                    std::span<const kernel::Buffer> to) const;

  Operand memory_;
  i64 offset_, stride_, rows_, columns_;
  SplitForm form_;
  const kernel::Target& target_;
  u32 control_ = 0;
  std::array<Side, 2> all_;
  Pass maxima_, parts_, verdict_;
};

// The matrices of one program.
class SplitPool {
 public:
  // The split of operand `i` with the side that the product reads wanted; null where the operand is
  // no matrix in memory.
  std::pair<MatrixSplit*, u32> find(ContractNest& c, const SplitForm& form, u32 i, i64 depth,
                                    Launches& out);

 private:
  std::vector<std::unique_ptr<MatrixSplit>> all_;
};

// lower_contract of plan.h, for one product of several that share what is split.
void lower_contract(const LowerInput& in, SplitPool& splits, Launches& out);

}  // namespace oa::graph
