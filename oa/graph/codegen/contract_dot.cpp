// Products of a matrix and a vector on the CPU, where the matrix lies with k side by side: packing
// would cost more than the product. The lanes run along k; as many dot products as there are lanes
// run at once, and a tree of exchanges leaves one of their sums in each lane.
#include <algorithm>

#include "oa/graph/codegen/contract_cpu.h"

namespace oa::graph {
namespace {

using kernel::Value;
using Axis = ContractNest::Axis;

// Sums over the lanes of each of `v`, which are as many as lanes: that of v[l] in lane l.
Value transposed_sums(std::vector<Value> v) {
  for (u32 distance = 1; v.size() > 1; distance *= 2) {
    // Lanes whose number has this bit go on with the odd one of a pair.
    const Value odd = (kernel::lane() & kernel::U32(distance)) != kernel::U32(0);
    std::vector<Value> next;
    for (size_t i = 0; i < v.size(); i += 2) {
      const Value kept = kernel::select(odd, v[i + 1], v[i]);
      const Value given = kernel::select(odd, v[i], v[i + 1]);
      next.push_back(kept + kernel::shuffle_xor(given, distance));
    }
    v = std::move(next);
  }
  return v[0];
}

class DotContract {
 public:
  DotContract(ContractNest& c, u32 matrix)
      : c_(c), matrix_(matrix), axis_(matrix == 0 ? Axis::Row : Axis::Column) {
    const kernel::Target& target = c.in().target;
    width_ = target.width;
    // The sums stay in registers.
    while (width_ > 4 && width_ * kernel::size_bytes(c.accumulator()) > target.vector_bytes) {
      width_ /= 2;
    }
    extent_ = matrix == 0 ? c.shared_rows() : c.columns();
  }

  bool fits() const {
    const auto d = c_.direct(matrix_);
    return d && c_.depth_loops() == 1 && c_.step(*d, Axis::Depth) == 1 && c_.depth() >= width_ &&
           c_.is_straight(axis_, width_);
  }

  void lower(Launches& out) {
    const i64 blocks = ceil_div(extent_, width_);
    const f64 block_flops = 2.0 * static_cast<f64>(c_.depth() * width_);
    const i64 per_task = std::clamp<i64>(static_cast<i64>(5e4 / block_flops), 1, blocks);
    const i64 tasks = ceil_div(blocks, per_task);
    Launch launch = c_.make_launch();
    launch.choice = fmt::format("{}; a matrix times a vector, {} dot products side by side",
                                c_.extents(), width_);
    launch.groups = group_count(c_.in(), c_.batches() * tasks);
    launch.kernel = kernel::trace("contract_dot", c_.in().target, width_, [&] {
      c_.declare();
      const Value group = c_.as_index(kernel::group());
      const Value batch = group / of_extent(tasks);
      const Value begin = group % of_extent(tasks) * of_extent(per_task);
      const Value end = kernel::min(begin + of_extent(per_task), of_extent(blocks));
      kernel::For(begin, end, c_.index(1),
                  [&](const Value& block) { run_block(batch, block * c_.index(width_)); });
    });
    out.list.push_back(std::move(launch));
  }

 private:
  Value of_extent(i64 x) const { return matrix_ == 0 ? c_.of_rows(x) : c_.index(x); }

  ContractNest::Place place(const Value& batch, const Value& across, const Value& k) const {
    const Value zero = c_.index(0);
    return matrix_ == 0 ? ContractNest::Place{batch, across, zero, {k}}
                        : ContractNest::Place{batch, zero, across, {k}};
  }

  void run_block(const Value& batch, const Value& first) {
    const Value lane = c_.as_index(kernel::lane());
    const i64 depth = c_.depth(), whole = depth / width_ * width_;
    std::vector<Value> lines;
    std::vector<kernel::VarValue> sums;
    for (u32 j = 0; j < width_; ++j) {
      const Value line = first + c_.index(j);
      lines.push_back(extent_ % width_ == 0 ? line : kernel::min(line, of_extent(extent_ - 1)));
      sums.emplace_back(kernel::literal(c_.accumulator(), 0));
    }
    // `counts` chooses the lanes whose step is not in the sum already.
    const auto gang = [&](const Value& k, const Value* counts) {
      const Value zero = kernel::literal(c_.accumulator(), 0);
      const auto read = [&](u32 operand, const Value& line) {
        Point p = c_.gang(place(batch, line, k + lane), Axis::Depth);
        const Value v = c_.operand(operand, p);
        return counts ? kernel::select(*counts, v, zero) : v;
      };
      const Value vector = read(1 - matrix_, lines[0]);
      for (u32 j = 0; j < width_; ++j) {
        sums[j].set(c_.multiply_add(vector, read(matrix_, lines[j]), sums[j].get()));
      }
    };
    kernel::For(c_.index(0), c_.index(whole), c_.index(width_),
                [&](const Value& k) { gang(k, nullptr); });
    if (whole != depth) {
      const Value counts = lane >= c_.index(width_ - (depth - whole));
      gang(c_.index(depth - width_), &counts);
    }
    std::vector<Value> totals;
    for (const kernel::VarValue& s : sums) totals.push_back(s.get());
    const Value total = transposed_sums(std::move(totals));
    const auto store = [&] {
      Point p = c_.gang(place(batch, first, c_.index(0)), axis_);
      c_.store(p, total);
    };
    if (extent_ % width_ == 0) {
      store();
    } else {
      kernel::If(kernel::Bool(first + lane < of_extent(extent_)), store);
    }
  }

  ContractNest& c_;
  u32 matrix_;  // the operand that is one
  Axis axis_;   // of the results
  u32 width_ = 0;
  i64 extent_ = 0;
};

}  // namespace

bool lower_contract_dot(ContractNest& c, Launches& out) {
  if (c.shared_rows() != 1 && c.columns() != 1) return false;
  DotContract dot(c, c.shared_rows() == 1 ? 1 : 0);
  if (!dot.fits()) return false;
  dot.lower(out);
  return true;
}

}  // namespace oa::graph
