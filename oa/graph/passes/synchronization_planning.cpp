// Stage 10. Puts a barrier before a dispatch only if it touches memory that an earlier dispatch
// since the last barrier has written, or writes what one has read. Stands after memory planning,
// since values that share memory depend on each other.
#include "oa/graph/compile.h"

namespace oa::graph {
namespace {

struct Range {
  const void* space;  // a storage, or null for the arena
  u64 begin, end;
  u32 launch = 0;
  bool overlaps(const Range& o) const { return space == o.space && begin < o.end && o.begin < end; }
};

}  // namespace

void synchronization_planning(Compilation& c, StageRecord& record) {
  std::vector<Range> reads, writes;  // since the last barrier
  const auto place_of = [&](const ArgRef& a) -> Range {
    if (a.kind == ArgRef::Kind::Temp) {
      const u64 at = c.temp_offsets[a.temp];
      return {nullptr, at, at + c.launches.temps[a.temp].bytes};
    }
    if (a.operand.is_leaf()) {
      return {c.graph->leaves[a.operand.output].tensor->storage().get(), 0, ~0ull};
    }
    const Place& p = c.places[a.operand.node][a.operand.output];
    const Spec& spec = c.graph->spec(a.operand);
    const u64 bytes = static_cast<u64>(spec.shape.elements()) * size_bytes(spec.dtype);
    switch (p.kind) {
      case Place::Kind::Leaf: return {c.graph->leaves[p.index].tensor->storage().get(), 0, ~0ull};
      case Place::Kind::Result: return {&c.results + 1 + p.index, 0, ~0ull};
      case Place::Kind::Arena: break;
    }
    return {nullptr, p.offset, p.offset + bytes};
  };
  u64 count = 0;
  c.barriers.clear();
  c.hazards.clear();
  for (u32 l = 0; l < c.launches.list.size(); ++l) {
    std::vector<Range> now_reads, now_writes;
    bool barrier = false;
    Hazard hazard;
    // The barrier is told by the latest dispatch that it is for.
    const auto must_wait = [&](const std::vector<Range>& before, const Range& r, const ArgRef& a,
                               Hazard::Kind kind) {
      for (const Range& x : before) {
        if (!x.overlaps(r) || (barrier && x.launch <= hazard.earlier)) continue;
        barrier = true;
        hazard = {kind, x.launch, a};
      }
    };
    for (const ArgRef& a : c.launches.list[l].args) {
      if (a.kind != ArgRef::Kind::Value && a.kind != ArgRef::Kind::Temp) continue;
      Range r = place_of(a);
      r.launch = l;
      (a.write ? now_writes : now_reads).push_back(r);
      must_wait(writes, r, a,
                a.write ? Hazard::Kind::WriteAfterWrite : Hazard::Kind::ReadAfterWrite);
      if (a.write) must_wait(reads, r, a, Hazard::Kind::WriteAfterRead);
    }
    c.hazards.push_back(hazard);
    if (barrier) {
      reads.clear();
      writes.clear();
      ++count;
    }
    reads.insert(reads.end(), now_reads.begin(), now_reads.end());
    writes.insert(writes.end(), now_writes.begin(), now_writes.end());
    c.barriers.push_back(barrier);
  }
  record.input_count = c.launches.list.size();
  record.output_count = count;
  record.state = count > 0                    ? StageState::Applied
                 : c.launches.list.size() > 1 ? StageState::Analyzed
                                              : StageState::Inherited;
  record.reason = fmt::format("{} barriers cut {} dispatches into {} intervals", count,
                              c.launches.list.size(), c.launches.list.empty() ? 0 : count + 1);
}

}  // namespace oa::graph
