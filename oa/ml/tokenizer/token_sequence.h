// A text as a sequence of tokens in which pairs are replaced in place.
//
// Every token covers a run of cells. The first and the last cell of the run hold its id, so both
// neighbours of a token are found without links: the next one begins where the run ends, the
// previous one has its id in the cell before and its length from a table by id. A cell that stopped
// being the first of a token never again holds the id of a token that began there, so a list of
// places of a pair may be read long after it was made: what is no longer there is seen.
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "oa/core/types.h"

namespace oa::ml::tokenizer {

// Id: u16 or u32, greater than every token. Pos: u32 or u64, at least the number of cells.
template <class Id, class Pos>
class TokenSequence {
 public:
  static constexpr Id kDead = std::numeric_limits<Id>::max();

  // What the replacement of one pair did around the new token, over a part of the places.
  struct Tally {
    std::vector<Pos> left, right;         // by id: old neighbours on that side
    std::vector<Id> left_ids, right_ids;  // those with a count, in order of appearance
    Pos both = 0;                         // the new token beside itself

    void resize(size_t ids) {
      left.resize(ids);
      right.resize(ids);
    }
    // Adds the counts of another part and clears it.
    void take(Tally& other) {
      for (Id id : other.left_ids) {
        if (left[id] == 0) left_ids.push_back(id);
        left[id] += other.left[id];
      }
      for (Id id : other.right_ids) {
        if (right[id] == 0) right_ids.push_back(id);
        right[id] += other.right[id];
      }
      both += other.both;
      other.clear();
    }
    void clear() {
      for (Id id : left_ids) left[id] = 0;
      for (Id id : right_ids) right[id] = 0;
      left_ids.clear();
      right_ids.clear();
      both = 0;
    }
  };

  explicit TokenSequence(std::span<const u8> bytes)
      : cells_(bytes.begin(), bytes.end()), span_(256, 1) {}

  Pos size() const { return static_cast<Pos>(cells_.size()); }
  const Id* cells() const { return cells_.data(); }
  Pos span(Id id) const { return span_[id]; }

  // The id that follows the last one, for left + right.
  void add_token(Id left, Id right) {
    const Pos a = span_[left], b = span_[right];
    span_.push_back(a > size() - std::min(b, size()) ? size() + 1 : a + b);  // too long to occur
  }

  // Replaces left + right by `made` at `places` (ascending, whether still there or not), from the
  // first to the last. Writes where the new tokens begin, and returns how many they are; `begins`
  // may be the places themselves.
  size_t replace(Id left, Id right, Id made, std::span<const Pos> places, Pos* begins) {
    const Pos left_span = span_[left], made_span = span_[made];
    const size_t n = cells_.size();
    size_t count = 0;
    for (size_t i = 0; i < places.size(); ++i) {
      if (i + kAhead < places.size()) __builtin_prefetch(&cells_[places[i + kAhead]], 1);
      const Pos p = places[i];
      if (cells_[p] != left) continue;
      const size_t q = size_t{p} + left_span;
      if (q >= n || cells_[q] != right) continue;
      cells_[q] = kDead;
      cells_[p + made_span - 1] = made;
      cells_[p] = made;
      begins[count++] = p;
    }
    return count;
  }

  void tally(Id made, std::span<const Pos> begins, Tally& t) const {
    each_neighbour(
        made, begins,
        [&](Id id, Pos) {
          if (t.left[id]++ == 0) t.left_ids.push_back(id);
        },
        [&](Id id, Pos) {
          if (t.right[id]++ == 0) t.right_ids.push_back(id);
        },
        [&](Pos) { ++t.both; });
  }

  // Calls for every place of a pair with the token `made`, in ascending order for each pair:
  // left(id, place) for id + made, right(id, place) for made + id, both(place) for made + made.
  template <class Left, class Right, class Both>
  void each_neighbour(Id made, std::span<const Pos> begins, Left left, Right right,
                      Both both) const {
    const Pos made_span = span_[made];
    const size_t n = cells_.size();
    for (size_t i = 0; i < begins.size(); ++i) {
      if (i + kAhead < begins.size()) __builtin_prefetch(&cells_[begins[i + kAhead]]);
      const Pos p = begins[i];
      if (p > 0) {
        const Id id = cells_[p - 1];
        if (id == made) {
          both(p - made_span);
        } else {
          left(id, p - span_[id]);
        }
      }
      const size_t q = size_t{p} + made_span;
      if (q < n && cells_[q] != made) right(cells_[q], p);
    }
  }

  // f(id) for every token of the sequence.
  template <class F>
  void each_token(F f) const {
    for (size_t p = 0; p < cells_.size(); p += span_[cells_[p]]) f(cells_[p]);
  }

  // Makes every token one cell; earlier places lose their meaning.
  void compact() {
    size_t count = 0;
    for (size_t p = 0; p < cells_.size();) {
      const Id id = cells_[p];
      p += span_[id];
      cells_[count++] = id;
    }
    cells_.resize(count);
    std::fill(span_.begin(), span_.end(), Pos{1});
  }

 private:
  static constexpr size_t kAhead = 16;

  std::vector<Id> cells_;
  std::vector<Pos> span_;  // cells of a token, by id
};

}  // namespace oa::ml::tokenizer
