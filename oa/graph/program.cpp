#include "oa/graph/program.h"

#include <bit>

namespace oa::graph {

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
        value = a.value ? std::bit_cast<u64>(x) : std::bit_cast<u32>(static_cast<f32>(x));
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
