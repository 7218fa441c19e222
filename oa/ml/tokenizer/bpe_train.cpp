// Incremental counts of pairs, in stages.
//
// The count of a pair is greatest when the later of its two tokens is made, and the greatest count
// of a round never rises from round to round. So a stage keeps only the pairs that occur at least
// `floor_` times, with their places, and loses nothing while the best count is not below that. Then
// the sequence is compacted, the floor lowered, and the pairs are counted afresh. Counts are upper
// bounds in the heap and exact in the table, which gives the same order as counting every round.
#include "oa/ml/tokenizer/bpe_train.h"

#include <memory>
#include <queue>

#include "oa/ml/tokenizer/token_sequence.h"
#include "oa/ml/tokenizer/workers.h"

namespace oa::ml::tokenizer {

namespace {

// The floor of a stage is this part of the best count before it.
constexpr u64 kStageRatio = 16;
// Fewer places than this are replaced on one thread.
constexpr size_t kWorthThreads = size_t{1} << 16;

struct Candidate {
  u64 count;
  u32 left, right;
};
struct Worse {
  bool operator()(const Candidate& a, const Candidate& b) const {
    if (a.count != b.count) return a.count < b.count;
    return std::pair(a.left, a.right) > std::pair(b.left, b.right);
  }
};

template <class Id, class Pos>
class Trainer {
 public:
  Trainer(std::span<const u8> bytes, u32 limit, u32 threads)
      : sequence_(bytes), limit_(limit), workers_(threads), tallies_(workers_.threads()) {}

  std::vector<BpeMerge> run() {
    floor_ = first_floor();
    while (merges_.size() < limit_ && floor_ >= 2) {
      begin_stage();
      while (merges_.size() < limit_ && merge_best()) {
      }
      if (floor_ == 2) break;
      floor_ = std::max<u64>(2, floor_ / kStageRatio);
      sequence_.compact();
    }
    return std::move(merges_);
  }

 private:
  struct Entry {
    u64 count = 0;
    std::span<Pos> places;
  };
  // Places of pairs with one left token, as the counting of a stage finds them.
  struct Found {
    u32 left, right;
    std::span<Pos> places;
  };
  using Sequence = TokenSequence<Id, Pos>;
  using Tally = typename Sequence::Tally;

  size_t ids() const { return 256 + merges_.size(); }
  u32 parts_of(size_t work) const { return work < kWorthThreads ? 1 : workers_.threads(); }
  static size_t cut(size_t n, u32 parts, u32 part) {
    return n / parts * part + std::min<size_t>(n % parts, part);
  }

  u64 first_floor() {
    const size_t n = sequence_.size();
    if (n < 2) return 0;
    const Id* cells = sequence_.cells();
    const u32 parts = parts_of(n);
    std::vector<std::vector<u64>> counts(parts, std::vector<u64>(65536));
    workers_.for_each(parts, [&](u32 part) {
      std::vector<u64>& mine = counts[part];
      const size_t end = cut(n - 1, parts, part + 1);
      for (size_t i = cut(n - 1, parts, part); i < end; ++i)
        ++mine[size_t{cells[i]} << 8 | cells[i + 1]];
    });
    u64 best = 0;
    for (size_t pair = 0; pair < 65536; ++pair) {
      u64 count = 0;
      for (const auto& part : counts) count += part[pair];
      best = std::max(best, count);
    }
    return best < 2 ? 0 : std::max<u64>(2, best / kStageRatio);
  }

  // Finds the pairs that occur floor_ times or more. Every token is one cell here.
  void begin_stage() {
    table_ = PairTable<Entry>();
    heap_ = {};
    blocks_.clear();
    arena_.clear();
    for (auto& tally : tallies_) tally.resize(256 + limit_);

    const size_t n = sequence_.size();
    if (n < 2) return;
    const Id* cells = sequence_.cells();
    const u32 parts = parts_of(n);

    // How often each token occurs, by part; then where its places go. The last cell begins no pair.
    std::vector<std::vector<Pos>> at(parts, std::vector<Pos>(ids()));
    workers_.for_each(parts, [&](u32 part) {
      const size_t end = cut(n - 1, parts, part + 1);
      for (size_t i = cut(n - 1, parts, part); i < end; ++i) ++at[part][cells[i]];
    });
    std::vector<Pos> begins(ids() + 1);
    std::vector<u8> frequent(ids());
    Pos total = 0;
    for (size_t id = 0; id < ids(); ++id) {
      begins[id] = total;
      u64 count = 0;
      for (const auto& counts : at) count += counts[id];
      frequent[id] = count + (cells[n - 1] == id) >= floor_;
      for (auto& counts : at) {
        const Pos mine = counts[id];
        counts[id] = total;
        if (frequent[id]) total += mine;
      }
    }
    begins[ids()] = total;

    // The places of each frequent token, ascending.
    arena_.resize(total);
    workers_.for_each(parts, [&](u32 part) {
      std::vector<Pos>& next = at[part];
      const size_t end = cut(n - 1, parts, part + 1);
      for (size_t i = cut(n - 1, parts, part); i < end; ++i)
        if (frequent[cells[i]]) arena_[next[cells[i]]++] = static_cast<Pos>(i);
    });

    // Each of these lists sorted by the token that follows, shared out in pieces of similar size.
    std::vector<u32> pieces{0};
    const size_t piece_size = std::max<size_t>(total / (8 * workers_.threads()), kWorthThreads);
    for (u32 id = 0; id < ids(); ++id)
      if (begins[id + 1] - begins[pieces.back()] >= piece_size) pieces.push_back(id + 1);
    if (pieces.back() != ids()) pieces.push_back(static_cast<u32>(ids()));
    std::vector<std::vector<Found>> found(pieces.size() - 1);
    workers_.for_each(static_cast<u32>(found.size()), [&](u32 piece) {
      Scratch scratch;
      scratch.counts.resize(ids());
      for (u32 id = pieces[piece]; id < pieces[piece + 1]; ++id)
        split_by_right(id, std::span(arena_).subspan(begins[id], begins[id + 1] - begins[id]),
                       frequent, scratch, found[piece]);
    });
    for (const auto& piece : found)
      for (const Found& f : piece) add(f.left, f.right, f.places);
  }

  // Memory of split_by_right.
  struct Scratch {
    std::vector<Pos> counts;       // by id, zero between calls
    std::vector<Id> seen;          // the right tokens, in order of appearance
    std::vector<Pos> places;       // those with a frequent right token
    std::vector<Id> right_tokens;  // of these places
  };

  // `places` are all of the token `left`: those of its frequent pairs come to the front, pair by
  // pair.
  void split_by_right(u32 left, std::span<Pos> places, const std::vector<u8>& frequent,
                      Scratch& scratch, std::vector<Found>& found) {
    if (places.size() < floor_) return;
    constexpr size_t kAhead = 16;
    const Id* cells = sequence_.cells();
    auto& [counts, seen, kept, right_tokens] = scratch;
    kept.reserve(places.size());
    right_tokens.reserve(places.size());
    for (size_t i = 0; i < places.size(); ++i) {
      if (i + kAhead < places.size()) __builtin_prefetch(&cells[places[i + kAhead] + 1]);
      const Id right = cells[places[i] + 1];
      if (!frequent[right]) continue;
      kept.push_back(places[i]);
      right_tokens.push_back(right);
      if (counts[right]++ == 0) seen.push_back(right);
    }
    // From counts to where the next place goes.
    Pos used = 0;
    for (const Id right : seen) {
      const Pos count = counts[right];
      counts[right] = count < floor_ ? kNowhere : used;
      if (count < floor_) continue;
      found.push_back({left, right, places.subspan(used, count)});
      used += count;
    }
    for (size_t i = 0; i < kept.size(); ++i) {
      Pos& to = counts[right_tokens[i]];
      if (to != kNowhere) places[to++] = kept[i];
    }
    for (const Id right : seen) counts[right] = 0;
    seen.clear();
    kept.clear();
    right_tokens.clear();
  }

  void add(u32 left, u32 right, std::span<Pos> places) {
    table_.insert(left, right, {places.size(), places});
    heap_.push({places.size(), left, right});
  }

  // False if no pair occurs floor_ times.
  bool merge_best() {
    while (!heap_.empty()) {
      const Candidate top = heap_.top();
      if (top.count < floor_) return false;
      heap_.pop();
      Entry& entry = *table_.find(top.left, top.right);
      if (entry.count == top.count) {
        entry.count = 0;
        merge(static_cast<Id>(top.left), static_cast<Id>(top.right), entry.places);
        return true;
      }
      if (entry.count >= floor_) heap_.push({entry.count, top.left, top.right});
    }
    return false;
  }

  // The places are used up.
  void merge(Id left, Id right, std::span<Pos> places) {
    const Id made = static_cast<Id>(ids());
    merges_.push_back({left, right});
    sequence_.add_token(left, right);

    const std::vector<size_t> cuts = independent_parts(places, sequence_.span(made));
    const u32 parts = static_cast<u32>(cuts.size() - 1);
    std::vector<std::span<const Pos>> begins(parts);
    workers_.for_each(parts, [&](u32 k) {
      const auto mine = places.subspan(cuts[k], cuts[k + 1] - cuts[k]);
      begins[k] = mine.first(sequence_.replace(left, right, made, mine, mine.data()));
    });
    workers_.for_each(parts, [&](u32 k) { sequence_.tally(made, begins[k], tallies_[k]); });
    Tally& all = tallies_[0];
    for (u32 k = 1; k < parts; ++k) all.take(tallies_[k]);
    count_down(left, right, all);
    collect(made, begins, all);
    all.clear();
  }

  // Cuts between places so far apart that no token reaches from one part into the next.
  std::vector<size_t> independent_parts(std::span<const Pos> places, Pos reach) const {
    const u32 parts = parts_of(places.size());
    std::vector<size_t> cuts{0};
    for (u32 k = 1; k < parts; ++k) {
      size_t at = std::max(cut(places.size(), parts, k), cuts.back() + 1);
      while (at < places.size() && places[at] - places[at - 1] <= reach) ++at;
      if (at >= places.size()) break;
      cuts.push_back(at);
    }
    cuts.push_back(places.size());
    return cuts;
  }

  // The pairs that lost places to the new token.
  void count_down(Id left, Id right, const Tally& tally) {
    const auto lose = [&](Id a, Id b, u64 count) {
      if (a == left && b == right) return;  // all of that pair are gone already
      if (Entry* entry = table_.find(a, b)) entry->count -= count;
    };
    for (const Id id : tally.left_ids) lose(id, left, tally.left[id]);
    for (const Id id : tally.right_ids) lose(right, id, tally.right[id]);
    lose(right, left, tally.both);
  }

  // Lists the pairs of the new token that occur often enough. The counts of the tally become the
  // index where the next place of the pair goes.
  void collect(Id made, const std::vector<std::span<const Pos>>& begins, Tally& tally) {
    struct Wanted {
      Id left, right;
      size_t begin, count;
    };
    std::vector<Wanted> wanted;
    size_t total = 0;
    const auto consider = [&](Id left, Id right, Pos& counter) {
      const Pos count = counter;
      counter = kNowhere;
      if (count < floor_) return;
      wanted.push_back({left, right, total, count});
      counter = static_cast<Pos>(total);
      total += count;
    };
    for (const Id id : tally.left_ids) consider(id, made, tally.left[id]);
    consider(made, made, tally.both);
    const size_t wanted_left = wanted.size();
    for (const Id id : tally.right_ids) consider(made, id, tally.right[id]);
    if (wanted.empty()) return;

    Pos* block = blocks_.emplace_back(new Pos[total]).get();
    const auto put = [&](Pos& counter, Pos place) {
      if (counter != kNowhere) block[counter++] = place;
    };
    const auto none = [](auto...) {};
    const auto fill = [&](u32 side) {
      for (const std::span<const Pos> part : begins) {
        if (side == 0) {
          sequence_.each_neighbour(
              made, part, [&](Id id, Pos place) { put(tally.left[id], place); }, none,
              [&](Pos place) { put(tally.both, place); });
        } else {
          sequence_.each_neighbour(
              made, part, none, [&](Id id, Pos place) { put(tally.right[id], place); }, none);
        }
      }
    };
    if (total < kWorthThreads) {
      if (wanted_left > 0) fill(0);
      if (wanted_left < wanted.size()) fill(1);
    } else {
      workers_.for_each(2, fill);
    }
    for (const Wanted& w : wanted) add(w.left, w.right, {block + w.begin, w.count});
  }

  static constexpr Pos kNowhere = std::numeric_limits<Pos>::max();

  Sequence sequence_;
  u32 limit_;
  Workers workers_;
  u64 floor_ = 0;
  std::vector<BpeMerge> merges_;

  // Of the stage: pairs that occurred floor_ times or more when they came up, and their places.
  PairTable<Entry> table_;
  std::priority_queue<Candidate, std::vector<Candidate>, Worse> heap_;
  std::vector<Pos> arena_;
  std::vector<std::unique_ptr<Pos[]>> blocks_;

  std::vector<Tally> tallies_;  // by part
};

template <class Id, class Pos>
std::vector<BpeMerge> train(std::span<const u8> bytes, u32 limit, u32 threads) {
  return Trainer<Id, Pos>(bytes, limit, threads).run();
}

}  // namespace

namespace detail {

std::vector<BpeMerge> train_merges(std::span<const u8> bytes, u32 limit, u32 threads,
                                   TrainWidths widths) {
  // A text of n bytes has at most n - 1 merges; the greatest id and the greatest place stand for
  // none.
  limit = static_cast<u32>(std::min<u64>({limit, bytes.size(), ~u32{0} - 256 - 1}));
  if (widths == TrainWidths::Auto) {
    widths = TrainWidths::Small;
    if (256 + u64{limit} > 0xffff) widths = TrainWidths::WideIds;
    if (bytes.size() >= 0xffffffff) widths = TrainWidths::WideAll;
  }
  switch (widths) {
    case TrainWidths::Small: return train<u16, u32>(bytes, limit, threads);
    case TrainWidths::WideIds: return train<u32, u32>(bytes, limit, threads);
    default: return train<u32, u64>(bytes, limit, threads);
  }
}

}  // namespace detail

std::vector<BpeMerge> train_merges(std::span<const u8> bytes, u32 limit, u32 threads) {
  return detail::train_merges(bytes, limit, threads, detail::TrainWidths::Auto);
}

}  // namespace oa::ml::tokenizer
