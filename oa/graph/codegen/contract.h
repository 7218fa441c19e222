// What every kernel of a contraction shares: the loop nest over [batch.., m, n, k], operands and
// epilogue as functions of a point of it.
#pragma once

#include "oa/graph/codegen/loops.h"

namespace oa::graph {

class SplitPool;  // contract_matrix_split.h

class ContractNest {
 public:
  ContractNest(const LowerInput& in, SplitPool& splits);

  // Number of values of [batch.., m], n and k.
  i64 rows() const { return rows_; }
  // On the CPU the rows are batches times rows of a batch: those that share operand B. A batch axis
  // along which B repeats counts among the rows.
  i64 batches() const { return batches_; }
  i64 shared_rows() const { return rows_ / batches_; }
  i64 columns() const { return columns_; }
  i64 depth() const { return k_; }
  kernel::Scalar accumulator() const { return acc_; }  // F32, F64 or an integer
  Precision precision() const { return spec_.precision; }
  DType operand_dtype(u32 i) const;
  const Nest& nest() const { return nest_; }
  const LowerInput& in() const { return in_; }
  SplitPool& splits() const { return splits_; }

  enum class Axis : u8 { Batch, Row, Column, Depth };

  // An operand that lies in memory as it is: which memory, and the element read at a point.
  struct Direct {
    Operand memory;
    AffineExpr position;
  };
  std::optional<Direct> direct(u32 i) const;
  // One that lies there as a matrix: strides of its lines (rows of A, columns of B) and of k.
  struct MatrixView {
    Operand memory;
    i64 offset, line, depth;
  };
  std::optional<MatrixView> matrix(u32 i) const;
  kernel::Scalar element(const Direct& d) const;  // as stored
  i64 step(const Direct& d, Axis axis) const;     // elements between neighbours
  // Whether `lanes` neighbours along an axis, from a multiple of `lanes` on, load as one vector.
  bool is_pack(const Direct& d, Axis axis, u32 lanes) const;
  kernel::Value position(const Direct& d, const Point& p);
  const kernel::Buffer& memory(const Direct& d) { return evaluator_.memory(d.memory); }
  kernel::Value load(const Direct& d, const Point& p, u32 lanes);

  // Rows that share operand B: all of them, or those of one batch.
  i64 batch_rows() const;

  // True if the group stores the product itself and nothing else, row after row.
  bool stores_product() const;
  const kernel::Buffer& output() const { return outputs_[0]; }
  // Whether results of 4 neighbouring columns, from a multiple of 4 on, can be stored together.
  bool packs() const;
  void store_pack(const kernel::Value& row, const kernel::Value& column,
                  std::span<const kernel::Value> products);

  std::string extents() const;  // for people: "64 x 32 results, 128 terms each"

  // Names this product and everything that its kernels depend on, for measurements.
  Hash128 trial_key(std::string_view what, i64 slices) const;

  // A launch with the parameters that declare() makes, in order; append more after them. Without
  // outputs: a kernel that prepares operands.
  Launch make_launch(bool outputs = true) const;
  // In a traced kernel: parameters of operands, epilogue and outputs.
  void declare(bool outputs = true);

  kernel::Value index(i64 x) const { return kernel::constant_int(nest_.index_type, x); }
  // Numbers that follow from the size of a batch are parameters, so that another size compiles
  // nothing: how many batches there are; rows, where they are not those of one batch; and k, where
  // it runs over the rows of both operands, as in the gradients of weights.
  kernel::Value of_batches(i64 x) const { return kernel::extent(nest_.index_type, x); }
  kernel::Value of_rows(i64 x) const { return any_rows_ ? of_batches(x) : index(x); }
  kernel::Value of_depth(i64 x) const { return any_depth_ ? of_batches(x) : index(x); }
  bool any_rows() const { return any_rows_; }
  bool any_depth() const { return any_depth_; }
  kernel::Value as_index(const kernel::Value& v) const { return kernel::cast(v, nest_.index_type); }
  Point point(const kernel::Value& row, const kernel::Value& column,
              const kernel::Value& depth) const;

  // On the CPU: a gang of neighbours along `lanes`, from a uniform position of a batch on. The
  // other positions are as given. `whole`: the position is a whole number of gangs from the first.
  struct Place {
    kernel::Value batch, row, column;
    std::vector<kernel::Value> depth;  // a coordinate per loop axis
  };
  Point gang(const Place& at, Axis lanes, bool whole = true) const;
  std::vector<kernel::Value> depth_at(const kernel::Value& number) const;
  // Whether the coordinates of such a gang advance by one from lane to lane.
  bool is_straight(Axis axis, u32 width) const;
  // Loops over k: over steps [begin, end) of its outermost loop axis, and all of the others; the
  // innermost one in strides of `stride`. The body gets the coordinates and the number of the step.
  size_t depth_loops() const { return depth_loops_.size(); }
  i64 outer_depth() const { return nest_.extent[depth_loops_.front()]; }
  i64 inner_depth() const { return nest_.extent[depth_loops_.back()]; }
  using DepthBody =
      std::function<void(const std::vector<kernel::Value>& depth, const kernel::Value& number)>;
  void each_depth(const kernel::Value& begin, const kernel::Value& end, i64 stride,
                  const DepthBody& body) const;

  // One element of operand `i` in the accumulator's type.
  kernel::Value operand(u32 i, Point& p);
  // Stores the group's outputs at the point, given the product there.
  void store(Point& p, const kernel::Value& product);
  kernel::Value multiply_add(const kernel::Value& a, const kernel::Value& b,
                             const kernel::Value& sum) const;

 private:
  bool member(Operand o) const;
  const std::vector<size_t>& loops(Axis axis) const;
  bool repeats_b(u32 axis) const;
  AffineMap domain_map() const;
  AffineMap operand_map(u32 i) const;
  std::vector<kernel::Value> epilogue(Point& p, const kernel::Value& product);
  void set(const std::vector<size_t>& loops, const kernel::Value& flat,
           std::vector<kernel::Value>& coords) const;

  const LowerInput& in_;
  SplitPool& splits_;
  Evaluator evaluator_;
  u32 product_ = 0;
  ContractSpec spec_;
  i64 rows_ = 1, columns_ = 1, k_ = 0, batches_ = 1;
  bool any_rows_ = false, any_depth_ = false;  // parameters of the kernel
  kernel::Scalar acc_ = kernel::Scalar::F32;
  Nest nest_;
  std::vector<size_t> row_loops_, column_loops_, depth_loops_;
  std::vector<size_t> batch_loops_, shared_row_loops_;  // the row loops apart, on the CPU
  std::vector<kernel::Buffer> outputs_;
  kernel::Value position_;
};

// Kernels for the CPU: register tiles of several rows and gangs over packed operands. False if the
// general kernel serves the product as well.
bool lower_contract_cpu(ContractNest& c, Launches& out);

// Kernels for a GPU: tiles in shared memory. False if the general kernel serves the product as
// well.
bool lower_contract_gpu(ContractNest& c, Launches& out);

}  // namespace oa::graph
