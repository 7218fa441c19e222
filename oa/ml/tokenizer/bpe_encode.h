// Applies the merges of a byte-pair vocabulary: all of the first merge from left to right, then all
// of the second, and so on, as if in one pass over the text each.
//
// What makes it fast. Write E(s) for the tokens of s. Call two tokens *compatible* if E of their
// joined text is just the two. Then a sequence of tokens is E of its text exactly if every two
// neighbours are compatible: in the passes over the whole text, look at the first merge that
// crosses a border between two of the tokens; up to there nothing crossed any border, so the passes
// over the two neighbours alone hold the same tokens at the border and make the same merge. So the
// encoder looks for a chain of compatible tokens, longest first, going back where none fits; no
// place is tried twice, since the tokens up to a place are unique. And texts that were encoded in
// pieces are joined at any border where the two tokens are compatible.
#pragma once

#include <span>
#include <vector>

#include "oa/ml/tokenizer/merge.h"

namespace oa::ml::tokenizer {

class BpeEncoder {
 public:
  // merges[i] may only name tokens below 256 + i.
  explicit BpeEncoder(std::vector<BpeMerge> merges);

  const std::vector<BpeMerge>& merges() const { return merges_; }
  u32 tokens() const { return static_cast<u32>(256 + merges_.size()); }
  // Bytes of a token, at most 2^64 - 1; 0 for an unknown one.
  u64 length(u32 token) const { return token < lengths_.size() ? lengths_[token] : 0; }

  // `threads` changes nothing but the time; 0: as many as engines use.
  std::vector<u32> encode(std::span<const u8> bytes, u32 threads = 0) const;

  // The same by replaying the merges over the whole text. Slower, but whatever the vocabulary.
  std::vector<u32> encode_by_replay(std::span<const u8> bytes) const;
  // The same on one thread, in pieces of a given size; false if two of them could not be joined.
  bool encode_in_pieces(std::span<const u8> bytes, u64 piece, u64 overlap, u32 threads,
                        std::vector<u32>& tokens) const;
  // Whether the search works for this vocabulary: no token is too long.
  bool searchable() const { return searchable_; }

 private:
  class Compatible;

  bool crosses(u32 left, u32 right, u32 left_end, u32 right_end) const;
  void build_trie();
  u32 longest_match(const u8* text, const u8* end) const;
  void search(std::span<const u8> bytes, std::vector<u32>& tokens) const;
  template <class Pos>
  std::vector<u32> replay(std::span<const u8> bytes) const;

  std::vector<BpeMerge> merges_;
  PairTable<u32> made_;       // the token that a pair becomes
  std::vector<u64> lengths_;  // by token

  // A tree of the texts of all tokens that encoding can give. The children of a node are
  // neighbours, ascending by byte. Walks begin at the nodes of two bytes.
  static constexpr u32 kNone = ~u32{0};
  struct Node {
    u32 token = kNone;
    u32 first_child = 0;
    u32 children = 0;
  };
  bool searchable_ = false;
  std::vector<Node> nodes_;
  std::vector<u8> labels_;         // by node, the byte that leads to it
  std::vector<u32> two_bytes_;     // node by first << 8 | second, or 0
  std::vector<u32> next_shorter_;  // by token, the longest other one that its text begins with
};

}  // namespace oa::ml::tokenizer
