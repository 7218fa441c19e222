// What the kernels of the recurrent scans share: how rows, columns and steps are cut.
//
// A workgroup runs all steps of some rows of the batch, so nothing passes between workgroups. In a
// step it makes tiles of a few rows and a panel of columns, the lanes along the columns: a chain of
// FMAs per element with packed weights and the rows of the step before. Those lie in the memory
// that the kernel itself wrote, or on a GPU in workgroup memory as well (Carry), which is near.
// Sums of a tile wait in workgroup memory, each in its own lane, so that the products and what
// follows them are one loop of code each.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "oa/graph/lower.h"
#include "oa/kernel/lang.h"

namespace oa::ml::matrix {

class ScanFrame {
 public:
  // Rows of state that a product reads: row b begins at element start(b).
  struct Rows {
    kernel::Buffer buffer;
    std::function<kernel::Value(const kernel::Value&)> start;
  };
  // Packed weights: a cell for every panel, gate and k, of the panel's columns. Columns past the
  // last one are 0.
  struct Weights {
    kernel::Buffer buffer;
    i64 gates;
    i64 depth;
  };
  struct Step {
    kernel::Bool first;     // of the loop: nothing is carried in
    kernel::Value now;      // position in the sequence
    kernel::Value carried;  // position that the loop did before; `now` in the first step
    kernel::Value turn;     // 0 in the first step
  };
  // Rows of `depth` elements that a step hands to the next one, for kernels in which lanes pass
  // nothing else to each other. `start` gives element k of a row before the first step; null is 0.
  class Carry {
   public:
    using Start = std::function<kernel::Value(const kernel::Value& row, const kernel::Value& k)>;
    Carry(const ScanFrame& f, i64 depth, const Start& start);
    void keep(const Step& s, const kernel::Value& row, const kernel::Value& k,
              const kernel::Value& x) const;
    void join() const;  // ends a step

   private:
    friend class ScanFrame;
    // Where the row begins: half of the cells are read in a step, the other half written.
    kernel::Value row_at(const kernel::Value& turn, const kernel::Value& row) const;
    const ScanFrame& f_;
    i64 depth_;
    std::optional<kernel::Shared> cells_;  // if there is room
  };
  struct Tile {
    kernel::Value panel, row;
    bool ragged = false;  // some columns do not exist
  };

  // `gates`: of the most that a tile sums. `most_elements`: of the largest buffer.
  ScanFrame(graph::Lower& l, const Shape& gates_i, i64 hidden, i64 gates, i64 most_elements,
            bool reverse);

  // Launches: packs weight [gates H, H], for products with rows of H (transposed) or of gates H.
  graph::ArgRef pack_transposed(const graph::ArgRef& weight, i64 gates);
  graph::ArgRef pack(const graph::ArgRef& weight, i64 gates);
  // A launch over all rows; `body` declares the parameters of `args` and records the steps.
  void launch(const std::string& name, std::vector<graph::ArgRef> args, f64 flops,
              const std::function<void()>& body);

  // --- While a kernel is traced ---

  void for_steps(bool backward, const std::function<void(const Step&)>& body);
  // Position before `now` in the scan's direction; `now` itself at the scan's start.
  kernel::Value before(const kernel::Value& now) const;
  kernel::Bool starts(const kernel::Value& now) const;  // is it the scan's first position?
  // Ends a phase of a step: what other lanes wrote may be read.
  void join() const;

  void for_tiles(const std::function<void(const Tile&)>& body);
  // Sums number `into` .. : k of `count` elements of each row times gate `gate` of the weights,
  // from k = `first` on.
  void product(const Tile& tile, const Rows& rows, const Weights& weights, i64 gate,
               const kernel::Value& count, i64 first, i64 into);
  // The same for the rows that the step before handed over; `rows` are the same rows where they lie
  // for everybody, and `count` is all of a row or, in the first step, may be 0.
  void product(const Tile& tile, const Step& s, const Carry& carry, const Rows& rows,
               const Weights& weights, i64 gate, const kernel::Value& count, i64 into);
  // Calls body(row of the batch, column, cell) for the elements of a tile that exist.
  void for_elements(const Tile& tile,
                    const std::function<void(const kernel::Value&, const kernel::Value&,
                                             const kernel::Value&)>& body);
  kernel::Value sum(const kernel::Value& cell, i64 number) const;

  kernel::Buffer param() const { return kernel::param_buffer(elem_); }
  kernel::Value at(i64 x) const;
  kernel::Value number(f64 x) const { return kernel::constant(elem_, x); }
  // Position of (row, step) in [B, S].
  kernel::Value place(const kernel::Value& row, const kernel::Value& step) const {
    return row * steps_ + step;
  }
  i64 hidden() const { return hidden_; }
  u32 element_bytes() const { return kernel::size_bytes(elem_); }

 private:
  i64 panel_columns() const { return gangs_ * width_; }
  i64 panels() const { return panel_count_; }
  graph::ArgRef pack(const graph::ArgRef& weight, i64 gates, i64 depth, bool transposed);
  void store_sums(const std::vector<kernel::VarValue>& sums, i64 into) const;
  kernel::Value weights_at(const Tile& tile, const Weights& weights, i64 gate, i64 first) const;
  void for_rows(const kernel::Value& panel, bool ragged,
                const std::function<void(const Tile&)>& body);

  graph::Lower& l_;
  kernel::Scalar elem_, type_;
  i64 batch_count_, step_count_, hidden_, gates_;
  bool reverse_;
  u32 width_ = 1;
  i64 rows_ = 1, gangs_ = 1, panel_count_ = 1, group_rows_ = 1;
  // Of the kernel that is being traced:
  kernel::Value batch_, steps_, group_row_, end_row_, lane_;
  std::optional<kernel::Shared> sums_;
};

}  // namespace oa::ml::matrix
