// Stage 9. Gives every value in memory a place: values that users hold get storage of their own,
// assigned values are computed in the storage that they replace where no reader of the old value is
// left, all others share one arena by their lifetimes. Stands after kernels are fixed, because only
// kernels say what may be computed in place.
#include <algorithm>
#include <map>

#include "oa/graph/compile.h"
#include "oa/graph/emit.h"
#include "oa/graph/order.h"
#include "oa/kernel/lang.h"

namespace oa::graph {
namespace {

constexpr u64 kAlign = 256;
constexpr u64 kSmallArena = u64{64} << 20;  // bytes that matter to nobody
u64 aligned(u64 bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Free intervals of the arena; first fit keeps it small and the result the same in every run. By
// size, only memory of as many bytes is used again.
class Arena {
 public:
  explicit Arena(bool by_size) : by_size_(by_size) {}

  u64 take(u64 bytes) {
    bytes = aligned(std::max<u64>(bytes, 1));
    if (by_size_) {
      std::vector<u64>& same = same_size_[bytes];
      if (same.empty()) {
        size_ += bytes;
        return size_ - bytes;
      }
      const u64 at = same.back();  // the latest, which the caches may still hold
      same.pop_back();
      return at;
    }
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->second < bytes) continue;
      const u64 at = it->first;
      const u64 left = it->second - bytes;
      free_.erase(it);
      if (left > 0) free_[at + bytes] = left;
      return at;
    }
    // Grow, using a free interval at the end.
    u64 at = size_;
    if (!free_.empty()) {
      auto last = std::prev(free_.end());
      if (last->first + last->second == size_) {
        at = last->first;
        free_.erase(last);
      }
    }
    size_ = at + bytes;
    return at;
  }
  void give(u64 at, u64 bytes) {
    bytes = aligned(std::max<u64>(bytes, 1));
    if (by_size_) {
      same_size_[bytes].push_back(at);
      return;
    }
    auto next = free_.lower_bound(at);
    if (next != free_.end() && at + bytes == next->first) {
      bytes += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      auto before = std::prev(next);
      if (before->first + before->second == at) {
        before->second += bytes;
        return;
      }
    }
    free_[at] = bytes;
  }
  u64 size() const { return size_; }

 private:
  bool by_size_;
  std::map<u64, std::vector<u64>> same_size_;  // bytes -> offsets
  std::map<u64, u64> free_;                    // offset -> bytes
  u64 size_ = 0;
};

class Planner {
 public:
  explicit Planner(Compilation& c) : c_(c), graph_(*c.graph) {}

  void run(StageRecord& record) {
    add_copies_of_leaves();
    find_lifetimes();
    place_writes();
    add_copies_of_writes();
    place_results();
    // Threads of a CPU write the same part of values of one size, so memory that changes hands only
    // among these stays with its thread. It may cost some memory, but not much of a large program.
    const std::map<u64, Place> fixed = placed_;
    place_rest(record, false);
    if (!c_.target.is_cpu() || c_.target.threads == 1) return;
    const u64 smallest = c_.arena_bytes;
    placed_ = fixed;
    place_rest(record, true);
    if (c_.arena_bytes <= std::max(kSmallArena, smallest + smallest / 8)) return;
    placed_ = fixed;
    place_rest(record, false);
  }

 private:
  static u64 key(Operand o) { return static_cast<u64>(o.node) << 32 | o.output; }
  u64 bytes(Operand o) const {
    const Spec& s = graph_.spec(o);
    return static_cast<u64>(s.shape.elements()) * size_bytes(s.dtype);
  }
  const Storage* leaf_storage(u32 leaf) const {
    return graph_.leaves[leaf].tensor->storage().get();
  }

  // Launches that touch a value: the first, the last two, and the end of the last one's interval.
  struct Life {
    u32 first = ~0u, last = 0, previous = 0, end = 0;
  };

  void find_lifetimes() {
    lives_.clear();
    temp_lives_.assign(c_.launches.temps.size(), {});
    interval_ends_ = interval_ends(c_);
    for (u32 l = 0; l < c_.launches.list.size(); ++l) {
      for (const ArgRef& a : c_.launches.list[l].args) {
        Life* life = nullptr;
        if (a.kind == ArgRef::Kind::Value && !a.operand.is_leaf()) life = &lives_[key(a.operand)];
        if (a.kind == ArgRef::Kind::Temp) life = &temp_lives_[a.temp];
        if (!life) continue;
        life->first = std::min(life->first, l);
        if (life->last != l) life->previous = life->last;
        life->last = l;
        life->end = interval_ends_[l];
      }
    }
  }

  // A copy of `elements` elements as a launch at the end of the program.
  void add_copy(Operand from, ArgRef to) {
    const Spec& spec = graph_.spec(from);
    const i64 n = spec.shape.elements();
    Launch launch;
    launch.label = "copy";
    launch.choice = "elements that cannot be computed where they are wanted";
    constexpr i64 kPerGroup = 8192;
    const kernel::Scalar elem = element_scalar(spec.dtype);
    launch.groups = static_cast<u32>((n + kPerGroup - 1) / kPerGroup);
    launch.kernel = kernel::trace("copy", c_.target, c_.target.width, [&] {
      const kernel::Buffer x = kernel::param_buffer(elem), y = kernel::param_buffer(elem);
      const kernel::U64 begin = kernel::cast<kernel::U64>(kernel::group()) * kPerGroup;
      const kernel::U64 end = kernel::U64(kernel::min(begin + kPerGroup, kernel::U64(n)));
      kernel::For(begin + kernel::cast<kernel::U64>(kernel::lane()), end,
                  kernel::U64(kernel::width()),
                  [&](const kernel::Value& i) { y.store(i, x.load(i)); });
    });
    launch.args = {ArgRef::value(from), std::move(to)};
    c_.launches.list.push_back(std::move(launch));
  }

  // Storage that takes the elements of other storage that is itself assigned (a swap): the old
  // elements are put aside first.
  void add_copies_of_leaves() {
    for (Write& w : c_.writes) {
      const Operand from = c_.resolve(w.value);
      if (!from.is_leaf() || bytes(from) == 0) continue;
      const bool overwritten = std::any_of(c_.writes.begin(), c_.writes.end(), [&](const Write& o) {
        return leaf_storage(o.leaf) == leaf_storage(from.output);
      });
      if (!overwritten) continue;
      const u32 temp = c_.launches.add_temp(bytes(from));
      add_copy(from, ArgRef::temporary(temp, true));
      put_aside_[w.leaf] = temp;
    }
  }

  // The elements of `o` are computed straight into the leaf if every launch that reads the leaf's
  // old elements runs earlier, or reads each just before it is replaced.
  void place_writes() {
    for (Write& w : c_.writes) {
      const Operand value = c_.resolve(w.value);
      if (value.is_leaf() || bytes(value) == 0) continue;
      const bool wanted_elsewhere =
          std::any_of(c_.results.begin(), c_.results.end(),
                      [&](Operand r) { return c_.resolve(r) == value; }) ||
          std::count_if(c_.writes.begin(), c_.writes.end(),
                        [&](const Write& o) { return c_.resolve(o.value) == value; }) > 1;
      if (wanted_elsewhere) continue;
      const Life life = lives_.at(key(value));
      const std::optional<u32> writer = only_writer(value, life.first);
      bool safe = true;
      for (u32 l = life.first; l < c_.launches.list.size() && safe; ++l) {
        const Launch& launch = c_.launches.list[l];
        for (size_t i = 0; i < launch.args.size(); ++i) {
          const ArgRef& a = launch.args[i];
          if (a.kind != ArgRef::Kind::Value || !a.operand.is_leaf()) continue;
          if (leaf_storage(a.operand.output) != leaf_storage(w.leaf)) continue;
          safe = safe && l == life.first && writer && launch.instance_of(i) == *writer &&
                 reads_in_place(launch, a.operand, *writer);
        }
      }
      w.in_place = safe;
      if (safe) placed_[key(value)] = {Place::Kind::Leaf, w.leaf, 0};
    }
  }

  // The instance of launch `l` that alone in the program writes `o`.
  std::optional<u32> only_writer(Operand o, u32 l) const {
    std::optional<u32> writer;
    for (const Launch& launch : c_.launches.list) {
      for (size_t i = 0; i < launch.args.size(); ++i) {
        const ArgRef& a = launch.args[i];
        if (a.kind != ArgRef::Kind::Value || !a.write || a.operand != o) continue;
        if (writer || &launch != &c_.launches.list[l]) return std::nullopt;
        writer = launch.instance_of(i);
      }
    }
    return writer;
  }

  static bool reads_in_place(const Launch& launch, Operand o, u32 instance) {
    return std::any_of(
        launch.in_place.begin(), launch.in_place.end(),
        [&](const Launch::InPlace& p) { return p.operand == o && p.instance == instance; });
  }

  void add_copies_of_writes() {
    for (Write& w : c_.writes) {
      const Operand value = c_.resolve(w.value);
      if (w.in_place || bytes(value) == 0) continue;
      ArgRef to = ArgRef::value({kNoNode, w.leaf}, true);
      if (auto it = put_aside_.find(w.leaf); it != put_aside_.end()) {
        add_copy(value, to);
        c_.launches.list.back().args[0] = ArgRef::temporary(it->second);
      } else if (!(value.is_leaf() && leaf_storage(value.output) == leaf_storage(w.leaf))) {
        add_copy(value, to);
      }
    }
    find_lifetimes();
  }

  void place_results() {
    u32 next = 0;
    for (Operand r : c_.results) {
      const Operand value = c_.resolve(r);
      if (value.is_leaf() || placed_.contains(key(value))) continue;
      placed_[key(value)] = {Place::Kind::Result, next++, 0};
    }
  }

  void place_rest(StageRecord& record, bool by_size) {
    Arena arena(by_size);
    u64 total = 0;
    u64 in_place = 0;
    c_.temp_offsets.assign(c_.launches.temps.size(), 0);
    std::vector<bool> temp_placed(c_.launches.temps.size());
    std::map<u64, u64> offsets;  // of arena values that are alive
    for (u32 l = 0; l < c_.launches.list.size(); ++l) {
      const Launch& launch = c_.launches.list[l];
      for (const ArgRef& a : launch.args) {
        if (a.kind == ArgRef::Kind::Temp && !temp_placed[a.temp]) {
          temp_placed[a.temp] = true;
          c_.temp_offsets[a.temp] = arena.take(c_.launches.temps[a.temp].bytes);
          total += c_.launches.temps[a.temp].bytes;
        }
        if (a.kind != ArgRef::Kind::Value || !a.write || a.operand.is_leaf()) continue;
        if (placed_.contains(key(a.operand))) continue;
        total += bytes(a.operand);
        u64 offset = 0;
        if (const auto reuse = reusable(launch, l, a.operand, offsets)) {
          offset = offsets.at(*reuse);
          offsets.erase(*reuse);  // the value ends here; its memory lives on
          ++in_place;
        } else {
          offset = arena.take(bytes(a.operand));
        }
        offsets[key(a.operand)] = offset;
        placed_[key(a.operand)] = {Place::Kind::Arena, 0, offset};
      }
      // What nobody reads later gives its memory back, to later intervals.
      if (interval_ends_[l] != l) continue;
      for (auto it = offsets.begin(); it != offsets.end();) {
        if (lives_.at(it->first).end > l) {
          ++it;
          continue;
        }
        arena.give(it->second,
                   bytes({static_cast<u32>(it->first >> 32), static_cast<u32>(it->first)}));
        it = offsets.erase(it);
      }
      for (u32 t = 0; t < temp_lives_.size(); ++t) {
        if (temp_placed[t] && temp_lives_[t].end == l) {
          arena.give(c_.temp_offsets[t], c_.launches.temps[t].bytes);
        }
      }
    }
    c_.arena_bytes = arena.size();
    c_.places.clear();
    for (u32 n = 0; n < graph_.nodes.size(); ++n) {
      c_.places.emplace_back();
      for (u32 i = 0; i < graph_.nodes[n].outputs.size(); ++i) {
        const auto it = placed_.find(key({n, i}));
        c_.places.back().push_back(it == placed_.end() ? Place{} : it->second);
      }
    }
    record.input_count = total;
    record.output_count = c_.arena_bytes;
    in_place += count_writes_in_place();
    record.state = placed_.empty() && total == 0            ? StageState::Inherited
                   : c_.arena_bytes < total || in_place > 0 ? StageState::Applied
                                                            : StageState::Analyzed;
    record.reason = fmt::format("{} bytes of temporaries share an arena of {}; {} values in place",
                                total, c_.arena_bytes, in_place);
  }

  u64 count_writes_in_place() const {
    return static_cast<u64>(std::count_if(c_.writes.begin(), c_.writes.end(),
                                          [](const Write& w) { return w.in_place; }));
  }

  // An arena value of as many bytes whose last reader is this launch, in which the instance that
  // writes `out`, and no other, reads each element just before the same lane replaces it.
  std::optional<u64> reusable(const Launch& launch, u32 l, Operand out,
                              const std::map<u64, u64>& offsets) const {
    const std::optional<u32> writer = only_writer(out, l);
    if (!writer) return std::nullopt;
    for (const auto& [in, instance] : launch.in_place) {
      if (instance != *writer || read_elsewhere(launch, in, *writer)) continue;
      if (in.is_leaf() || !offsets.contains(key(in)) || bytes(in) != bytes(out)) continue;
      // Equal bytes are not equal positions: a row of four flags is as large as one number.
      if (graph_.spec(in).shape.elements() != graph_.spec(out).shape.elements()) continue;
      const Life life = lives_.at(key(in));
      const bool alone = life.last == l && interval_ends_[life.previous] != interval_ends_[l];
      if (alone && lives_.at(key(out)).first == l) return key(in);
    }
    return std::nullopt;
  }

  static bool read_elsewhere(const Launch& launch, Operand o, u32 instance) {
    for (size_t i = 0; i < launch.args.size(); ++i) {
      const ArgRef& a = launch.args[i];
      if (a.kind == ArgRef::Kind::Value && a.operand == o && launch.instance_of(i) != instance) {
        return true;
      }
    }
    return false;
  }

  Compilation& c_;
  const Graph& graph_;
  std::map<u64, Life> lives_;
  std::vector<Life> temp_lives_;
  std::vector<u32> interval_ends_;  // of each launch, the last one of its interval
  std::map<u64, Place> placed_;
  std::map<u32, u32> put_aside_;  // leaf -> temp with the elements that it takes
};

}  // namespace

void memory_planning(Compilation& c, StageRecord& record) { Planner(c).run(record); }

}  // namespace oa::graph
