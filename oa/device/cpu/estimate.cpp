// Adds up cycles per instruction, in native vectors, with the trips of loops where they are known.
#include "oa/device/cpu/estimate.h"

#include <algorithm>

#include "oa/kernel/uniformity.h"

namespace oa::device {
namespace {

using kernel::Instr;
using kernel::LaneShape;
using kernel::Op;
using kernel::Region;
using kernel::ValueId;

constexpr f64 kCyclesPerNs = 6;  // fitted to measured kernels: two instructions at a time
constexpr f64 kUnknownTrips = 16;

class Estimate {
 public:
  Estimate(const kernel::Kernel& k, const kernel::Target& target)
      : kernel_(k), uniformity_(k), width_(k.width), vector_bytes_(target.vector_bytes) {}

  GroupCost result() {
    const f64 cycles = 2 + region(kernel_.body);
    return {cycles / kCyclesPerNs, certain_};
  }

 private:
  f64 region(const Region& r) {
    f64 cycles = 0;
    for (ValueId id : r) cycles += instruction(id);
    return cycles;
  }

  f64 instruction(ValueId id) {
    const Instr& i = kernel_[id];
    switch (i.op) {
      case Op::Const:
      case Op::Param:
      case Op::LaneId:
      case Op::GroupId:
      case Op::GroupCount:
      case Op::Barrier:
      case Op::Yield:
      case Op::VecBuild:
      case Op::VecExtract: return 0;
      case Op::VarLoad:
      case Op::VarStore: return 0.3 * vectors(i, id);
      case Op::Div: return (kernel::is_float(i.type.scalar) ? 8 : 12) * vectors(i, id);
      case Op::Rem: return 14 * vectors(i, id);
      case Op::Sqrt: return 10 * vectors(i, id);
      case Op::Load: return access(i, i.args[1], i.type.lanes);
      case Op::Store: return access(i, i.args[1], kernel_[i.args[2]].type.lanes);
      case Op::SharedLoad:
      case Op::SharedStore: return access(i, i.args[0], 1);
      case Op::Atomic:
      case Op::AtomicCas: return 20 * width_;
      case Op::SharedAtomic: return 5 * width_;
      case Op::Shuffle:
      case Op::ShuffleXor:
      case Op::SubgroupAny:
      case Op::SubgroupAll: return 2 * vectors(i, id);
      case Op::FragLoad:
      case Op::FragStore: return 64;
      case Op::FragMulAdd: return 16.0 * 16 * 16 * 4 / (2.0 * vector_bytes_);
      case Op::If: return 1 + region(i.regions[0]) + region(i.regions[1]);
      case Op::For: return trips(i) * (1 + region(i.regions[0]));
      case Op::While: {
        certain_ = false;
        return kUnknownTrips * (1 + region(i.regions[0]) + region(i.regions[1]));
      }
      default: return 0.6 * vectors(i, id);
    }
  }

  // Native vectors that hold the value.
  f64 vectors(const Instr& i, ValueId id) const {
    if (kernel::yields_value(i.op) && uniformity_.uniform(id)) return 1;
    const f64 bytes = static_cast<f64>(size_bytes(i.type.scalar)) * i.type.lanes * width_;
    return std::max(1.0, bytes / vector_bytes_);
  }

  f64 access(const Instr& i, ValueId index, u32 lanes) const {
    const LaneShape& shape = uniformity_.shape(index);
    if (shape.uniform()) return 1;
    if (!shape.affine) return 3.0 * width_ * lanes;
    const i64 gap = std::abs(shape.stride) / lanes;
    const f64 bytes = static_cast<f64>(kernel::size_bytes(i.elem)) * lanes * width_;
    return gap <= 1 ? 1.5 * std::max(1.0, bytes / vector_bytes_) : 1.5 * width_ * lanes;
  }

  f64 trips(const Instr& loop) {
    const LaneShape& begin = uniformity_.shape(loop.args[0]);
    const LaneShape& end = uniformity_.shape(loop.args[1]);
    const LaneShape& step = uniformity_.shape(loop.args[2]);
    if (!begin.constant || !end.constant || !step.constant || step.base <= 0) {
      certain_ = false;
      return kUnknownTrips;
    }
    const f64 length = static_cast<f64>(end.base) - static_cast<f64>(begin.base);
    return std::max(0.0, length / static_cast<f64>(step.base));
  }

  const kernel::Kernel& kernel_;
  const kernel::Uniformity uniformity_;
  const f64 width_;
  const f64 vector_bytes_;
  bool certain_ = true;
};

}  // namespace

GroupCost estimate_group(const kernel::Kernel& kernel, const kernel::Target& target) {
  return Estimate(kernel, target).result();
}

}  // namespace oa::device
