// Recurrent scans on a GPU whose weights stay in registers, for hidden sizes of a workgroup's
// lanes.
//
// A workgroup runs all steps of one row of the batch. A column has one lane or, where that has no
// room for its weights, a few: each holds those of some k and sums over these, and the sums meet by
// shuffles. All lanes of a column then compute the same, the first of them stores, and the row's
// new state goes to the others through workgroup memory: one barrier a step. What a step reads of
// the sequence is asked for a step ahead, since a lane would wait for it longer than it computes.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "oa/graph/lower.h"
#include "oa/kernel/lang.h"

namespace oa::ml::matrix {

class HeldScan {
 public:
  using Values = std::vector<kernel::Value>;
  struct Step {
    kernel::Value now;     // position in the sequence
    kernel::Bool starts;   // is it the scan's first position?
    kernel::Value before;  // the position before it in the scan's direction, or itself at the start
  };
  // What a scan does, for the lane's row() and column().
  struct Body {
    kernel::Buffer weight;
    // Element k of the row's state before the loop's first step; null is 0.
    std::function<kernel::Value(const kernel::Value& k)> first;
    std::function<Values(const Step&)> load;  // what a step reads
    // Calls `store` with what it stores, and returns the elements column, H + column, ... of the
    // state for the next step.
    std::function<Values(const Step&, std::span<const kernel::Value> loaded,
                         std::span<const kernel::Value> sums)>
        step;
    std::function<void()> end;  // may be null
  };

  // `depth`: elements of the state that a step hands on. A step makes `sums` products of it with
  // H columns of the weight each; transposed: the weight is [sums H, depth], else [depth, H].
  static bool fits(const graph::Lower& l, i64 hidden, i64 sums, i64 depth);
  HeldScan(graph::Lower& l, const Shape& gates_i, i64 hidden, i64 sums, i64 depth,
           i64 most_elements, bool backward, bool reverse);

  // `body` declares the parameters of `args`.
  void launch(const std::string& name, std::vector<graph::ArgRef> args, f64 flops,
              const std::function<Body()>& body);

  // --- While the kernel is traced ---

  kernel::Value row() const { return row_; }
  kernel::Value column() const { return column_; }
  void store(const std::function<void()>& stores) const;  // in one lane of the column
  kernel::Value at(i64 x) const;
  kernel::Value number(f64 x) const { return kernel::constant(kernel::Scalar::F32, x); }
  kernel::Value place(const kernel::Value& position) const { return row_ * steps_ + position; }
  kernel::Buffer param() const { return kernel::param_buffer(kernel::Scalar::F32); }

 private:
  static i64 columns(i64 hidden);  // lanes side by side
  static i64 parts(const kernel::Target& target, i64 hidden, i64 sums, i64 depth);
  static i64 held(i64 sums, i64 depth, i64 parts);  // weights of a lane
  void run(const Body& body);
  Values weights(const kernel::Buffer& weight) const;
  Values products(const kernel::Shared& cells, const kernel::Value& from,
                  const Values& weights) const;
  Step step_at(const kernel::Value& turn) const;

  graph::Lower& l_;
  i64 batch_count_, step_count_, hidden_, sum_count_, depth_;
  bool backward_, reverse_;
  i64 parts_, padded_;  // lanes of a column; depth, a multiple of what these read at once
  u32 width_;
  kernel::Scalar type_;
  kernel::Value steps_, row_, column_, part_;
  std::optional<kernel::Bool> stores_;  // none: every lane
};

}  // namespace oa::ml::matrix
