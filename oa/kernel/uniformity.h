// Which values of a kernel are the same in every lane of the workgroup, and which grow by a
// constant from lane to lane.
//
// A value is affine when it is `base + stride * lane` with a uniform base and a stride known on the
// host; stride 0 means uniform. Integer arithmetic is taken not to wrap between lanes. A variable
// is affine when each of its stores is, with one stride and in uniform control flow. Lanes that
// control flow switches off do not count: a value computed from uniform values in varying control
// flow is uniform.
#pragma once

#include <vector>

#include "oa/kernel/ir.h"

namespace oa::kernel {

struct LaneShape {
  bool affine = false;
  i64 stride = 0;         // of an affine value
  bool constant = false;  // the base of an affine integer is known on the host
  i64 base = 0;

  bool operator==(const LaneShape&) const = default;
  bool uniform() const { return affine && stride == 0; }
};

class Uniformity {
 public:
  explicit Uniformity(const Kernel& kernel);

  const LaneShape& shape(ValueId id) const { return values_[id]; }
  bool uniform(ValueId id) const { return values_[id].uniform(); }

  // Shape of what a variable holds.
  const LaneShape& var(u32 slot) const { return vars_[slot].shape; }

  // Whether an If, For or While runs the same way in every lane that reaches it. A For over an
  // affine index counts when constants show that all its lanes make the same number of trips.
  bool uniform_flow(ValueId id) const { return !varying_flow_[id]; }

 private:
  struct Var {
    bool stored = false;
    LaneShape shape{.affine = true};
  };

  void visit(const Region& region, bool varying);
  void visit_control(ValueId id, bool varying);
  void store(u32 slot, const LaneShape& shape, bool varying);
  LaneShape transfer(const Instr& instr) const;
  LaneShape affine_arithmetic(const Instr& instr) const;
  bool same_trips(const Instr& loop) const;
  void mark_varying(ValueId id);

  const Kernel& kernel_;
  std::vector<LaneShape> values_;
  std::vector<Var> vars_;
  std::vector<bool> varying_flow_;
  bool changed_ = false;
};

}  // namespace oa::kernel
