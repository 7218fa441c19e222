// One merge of a byte-pair vocabulary, and a small hash table from pairs of token ids.
#pragma once

#include <compare>
#include <utility>
#include <vector>

#include "oa/core/types.h"

namespace oa::ml::tokenizer {

// The tokens `left` and `right`, in this order, become one. Merge i of a vocabulary makes token
// 256 + i.
struct BpeMerge {
  u32 left = 0;
  u32 right = 0;

  auto operator<=>(const BpeMerge&) const = default;
};

// BpeMerge -> V by open addressing; entries are never removed. The pair of two ids of all ones is
// not a key.
template <class V>
class PairTable {
 public:
  explicit PairTable(size_t expected = 0) {
    size_t slots = 16;
    while (slots < 2 * expected) slots *= 2;
    slots_.resize(slots);
  }

  size_t size() const { return size_; }

  V* find(u32 left, u32 right) {
    Slot& slot = slots_[locate(slots_, key_of(left, right))];
    return slot.key == kFree ? nullptr : &slot.value;
  }
  const V* find(u32 left, u32 right) const {
    return const_cast<PairTable*>(this)->find(left, right);
  }

  // Keeps the value that is there already; second: whether it is a new entry.
  std::pair<V*, bool> insert(u32 left, u32 right, V value) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    const u64 key = key_of(left, right);
    Slot& slot = slots_[locate(slots_, key)];
    const bool is_new = slot.key == kFree;
    if (is_new) {
      slot = {key, std::move(value)};
      ++size_;
    }
    return {&slot.value, is_new};
  }

 private:
  static constexpr u64 kFree = ~u64{0};
  struct Slot {
    u64 key = kFree;
    V value{};
  };

  static u64 key_of(u32 left, u32 right) { return u64{left} << 32 | right; }
  static size_t locate(const std::vector<Slot>& slots, u64 key) {
    u64 h = key * 0x9e3779b97f4a7c15ull;
    h ^= h >> 32;
    size_t i = h & (slots.size() - 1);
    while (slots[i].key != key && slots[i].key != kFree) i = (i + 1) & (slots.size() - 1);
    return i;
  }
  void grow() {
    std::vector<Slot> bigger(2 * slots_.size());
    for (Slot& slot : slots_)
      if (slot.key != kFree) bigger[locate(bigger, slot.key)] = std::move(slot);
    slots_ = std::move(bigger);
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace oa::ml::tokenizer
