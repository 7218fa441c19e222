#include "oa/graph/program.h"

#include <bit>
#include <limits>

namespace oa::graph {
namespace {

template <class Int>
u32 saturated(f64 x) {
  using Limits = std::numeric_limits<Int>;
  if (!(x > Limits::min())) return static_cast<u32>(x != x ? 0 : Limits::min());
  return static_cast<u32>(x >= Limits::max() ? Limits::max() : static_cast<Int>(x));
}

// The parameter slot of a runtime scalar.
u64 scalar_bits(f64 x, kernel::Scalar type) {
  switch (type) {
    case kernel::Scalar::F64: return std::bit_cast<u64>(x);
    case kernel::Scalar::I32: return saturated<i32>(x);
    case kernel::Scalar::U32: return saturated<u32>(x);
    default: return std::bit_cast<u32>(static_cast<f32>(x));
  }
}

}  // namespace

void Program::fill(const Bindings& b, device::CommandList& list) const {
  list.dispatches.clear();
  list.args.clear();
  list.dispatches.reserve(steps_.size());
  list.args.reserve(args_.size());
  for (const Step& s : steps_) {
    list.dispatches.push_back({.kernel = s.kernel.get(),
                               .groups = s.groups,
                               .first_arg = s.first_arg,
                               .arg_count = s.arg_count,
                               .barrier = s.barrier,
                               .flops = s.flops});
  }
  for (const Arg& a : args_) {
    u64 value = 0;
    switch (a.kind) {
      case Arg::Kind::Leaf: value = b.leaves[a.index]; break;
      case Arg::Kind::Result: value = b.storages[a.index]; break;
      case Arg::Kind::Arena: value = b.arena + a.value; break;
      case Arg::Kind::Scalar: {
        const auto& [source, constant] = scalars_[a.index];
        const f64 x = source == Scalar::kNone ? constant : b.scalars[source].bits();
        value = scalar_bits(x, static_cast<kernel::Scalar>(a.value));
        break;
      }
      case Arg::Kind::Status: value = b.status; break;
      case Arg::Kind::CheckBase: value = b.check_code + a.value; break;
      case Arg::Kind::Immediate: value = a.value; break;
    }
    list.args.push_back(value);
  }
}

}  // namespace oa::graph
