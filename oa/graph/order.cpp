// What follows a barrier waits for all that stands before it, so the number of intervals in a row,
// not of launches, is the time of a small program: launches go as early as what they read allows,
// those of equal depth side by side.
#include "oa/graph/order.h"

#include <algorithm>
#include <map>
#include <set>

namespace oa::graph {
namespace {

using Key = std::pair<u32, u32>;  // node and output; kNoNode and a temporary

std::optional<Key> key_of(const ArgRef& a) {
  if (a.kind == ArgRef::Kind::Temp) return Key{kNoNode, a.temp};
  if (a.kind != ArgRef::Kind::Value || a.operand.is_leaf()) return std::nullopt;
  return Key{a.operand.node, a.operand.output};
}

// Which launches wait for which, by the values and temporaries that they share.
class Waits {
 public:
  // Memory that launches share, and the last one that touches it.
  struct Memory {
    u64 bytes = 0;
    std::vector<u32> writers, readers;
    u32 last = 0;
  };

  explicit Waits(const Compilation& c)
      : before(c.launches.list.size()), after(c.launches.list.size()), c_(c) {
    const std::vector<Launch>& list = c.launches.list;
    for (u32 l = 0; l < list.size(); ++l) {
      for (const ArgRef& a : list[l].args) add(l, a);
    }
    for (const Write& w : c.writes) replace(w);
  }

  std::vector<std::vector<u32>> before, after;

  // Does launch l make more memory than nobody needs after it?
  bool grows(u32 l) const {
    u64 made = 0, freed = 0;
    for (const ArgRef& a : c_.launches.list[l].args) {
      const auto key = key_of(a);
      if (!key) continue;
      const Memory& m = memory_.at(*key);
      if (a.write) {
        made += m.bytes;
      } else if (m.last == l) {
        freed += m.bytes;
      }
    }
    return made > freed;
  }

 private:
  void link(u32 earlier, u32 later) {
    if (earlier == later) return;
    before[later].push_back(earlier);
    after[earlier].push_back(later);
  }

  const Storage* storage_of(u32 leaf) const {
    return c_.graph->leaves[leaf].tensor->storage().get();
  }

  void add(u32 l, const ArgRef& a) {
    if (a.kind == ArgRef::Kind::Value && a.operand.is_leaf()) {
      leaf_readers_[storage_of(a.operand.output)].push_back(l);
    }
    const auto key = key_of(a);
    if (!key) return;
    Memory& m = memory_[*key];
    m.last = l;
    for (const u32 w : m.writers) {
      if (!(a.write && a.part && parts_.contains({w, *key}))) link(w, l);
    }
    if (!a.write) {
      m.readers.push_back(l);
      return;
    }
    for (const u32 r : m.readers) link(r, l);
    m.writers.push_back(l);
    if (a.part) parts_.insert({l, *key});
    if (a.kind == ArgRef::Kind::Temp) {
      m.bytes = c_.launches.temps[a.temp].bytes;
    } else {
      const Spec& spec = c_.graph->spec(a.operand);
      m.bytes = static_cast<u64>(spec.shape.elements()) * size_bytes(spec.dtype);
    }
  }

  // Readers of a leaf's old elements stay before the launch that may replace them in place.
  void replace(const Write& w) {
    const Operand value = c_.resolve(w.value);
    if (value.is_leaf()) return;
    const auto made = memory_.find({value.node, value.output});
    const auto readers = leaf_readers_.find(storage_of(w.leaf));
    if (made == memory_.end() || readers == leaf_readers_.end()) return;
    for (const u32 writer : made->second.writers) {
      for (const u32 r : readers->second) {
        if (r < writer) link(r, writer);
      }
    }
  }

  const Compilation& c_;
  std::map<Key, Memory> memory_;
  std::map<const Storage*, std::vector<u32>> leaf_readers_;
  std::set<std::pair<u32, Key>> parts_;  // launches that write only a part
};

}  // namespace

void order_launches(Compilation& c) {
  if (c.target.is_cpu()) return;
  std::vector<Launch>& list = c.launches.list;
  const auto count = static_cast<u32>(list.size());
  const Waits waits(c);
  std::vector<u32> depth(count, 0), order(count);
  for (u32 l = 0; l < count; ++l) {
    order[l] = l;
    for (const u32 b : waits.before[l]) depth[l] = std::max(depth[l], depth[b] + 1);
  }
  // What makes more memory than it sets free waits until it is wanted.
  for (u32 l = count; l-- > 0;) {
    if (waits.after[l].empty() || !waits.grows(l)) continue;
    depth[l] = ~0u;
    for (const u32 a : waits.after[l]) depth[l] = std::min(depth[l], depth[a] - 1);
  }
  std::sort(order.begin(), order.end(),
            [&](u32 a, u32 b) { return depth[a] != depth[b] ? depth[a] < depth[b] : a < b; });
  std::vector<Launch> sorted;
  sorted.reserve(count);
  for (const u32 l : order) sorted.push_back(std::move(list[l]));
  list = std::move(sorted);
}

std::vector<u32> interval_ends(const Compilation& c) {
  const auto count = static_cast<u32>(c.launches.list.size());
  std::vector<u32> ends(count);
  std::vector<bool> begins(count + 1, c.target.is_cpu());
  begins[count] = true;
  if (!c.target.is_cpu()) {
    const Waits waits(c);
    u32 first = 0;
    for (u32 l = 0; l < count; ++l) {
      const std::vector<u32>& before = waits.before[l];
      begins[l] = std::any_of(before.begin(), before.end(), [&](u32 b) { return b >= first; });
      if (begins[l]) first = l;
    }
  }
  for (u32 l = count; l-- > 0;) ends[l] = begins[l + 1] ? l : ends[l + 1];
  return ends;
}

}  // namespace oa::graph
