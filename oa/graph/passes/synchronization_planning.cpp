// Stage 10. Puts a barrier before a dispatch only if it touches memory that an earlier dispatch
// since the last barrier has written, or writes what one has read. Stands after memory planning,
// since values that share memory depend on each other.
#include "oa/graph/compile.h"

namespace oa::graph {
namespace {

struct Range {
  const void* space;  // a storage, or null for the arena
  u64 begin, end;
  bool overlaps(const Range& o) const { return space == o.space && begin < o.end && o.begin < end; }
};

}  // namespace

void synchronization_planning(Compilation& c, StageRecord& record) {
  std::vector<Range> reads, writes;  // since the last barrier
  const auto range_of = [&](const ArgRef& a) -> Range {
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
  const auto any_overlap = [](const std::vector<Range>& ranges, const Range& r) {
    for (const Range& x : ranges) {
      if (x.overlaps(r)) return true;
    }
    return false;
  };
  u64 count = 0;
  c.barriers.clear();
  for (const Launch& launch : c.launches.list) {
    std::vector<Range> now_reads, now_writes;
    for (const ArgRef& a : launch.args) {
      if (a.kind != ArgRef::Kind::Value && a.kind != ArgRef::Kind::Temp) continue;
      (a.write ? now_writes : now_reads).push_back(range_of(a));
    }
    bool barrier = false;
    for (const Range& r : now_reads) barrier = barrier || any_overlap(writes, r);
    for (const Range& r : now_writes) {
      barrier = barrier || any_overlap(writes, r) || any_overlap(reads, r);
    }
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
  record.state = StageState::Applied;
  record.reason = fmt::format("{} dispatches in {} intervals", c.launches.list.size(), count + 1);
}

}  // namespace oa::graph
