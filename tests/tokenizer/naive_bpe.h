// Byte-pair encoding word for word as it is defined, and texts to compare with it.
#pragma once

#include <map>
#include <random>
#include <string>
#include <vector>

#include "oa/ml/tokenizer/bpe.h"

namespace oa::test {

using ml::tokenizer::BpeMerge;

inline std::vector<u32> naive_pass(const std::vector<u32>& tokens, BpeMerge merge, u32 made) {
  std::vector<u32> result;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i + 1 < tokens.size() && tokens[i] == merge.left && tokens[i + 1] == merge.right) {
      result.push_back(made);
      ++i;
    } else {
      result.push_back(tokens[i]);
    }
  }
  return result;
}

inline std::vector<BpeMerge> naive_train(std::span<const u8> bytes, u64 limit) {
  std::vector<u32> tokens(bytes.begin(), bytes.end());
  std::vector<BpeMerge> merges;
  while (merges.size() < limit && tokens.size() >= 2) {
    std::map<BpeMerge, u64> counts;
    for (size_t i = 0; i + 1 < tokens.size(); ++i) ++counts[{tokens[i], tokens[i + 1]}];
    auto best = counts.begin();
    for (auto at = counts.begin(); at != counts.end(); ++at)
      if (at->second > best->second) best = at;
    if (best->second < 2) break;
    tokens = naive_pass(tokens, best->first, static_cast<u32>(256 + merges.size()));
    merges.push_back(best->first);
  }
  return merges;
}

inline std::vector<u32> naive_encode(std::span<const u8> bytes,
                                     const std::vector<BpeMerge>& merges) {
  std::vector<u32> tokens(bytes.begin(), bytes.end());
  for (u32 i = 0; i < merges.size(); ++i) tokens = naive_pass(tokens, merges[i], 256 + i);
  return tokens;
}

// Random texts of several kinds: few letters (long overlaps), runs of one letter, repeated phrases,
// all bytes.
inline std::vector<u8> random_text(std::mt19937& rng, size_t size) {
  std::vector<u8> text;
  const u32 kind = rng() % 4;
  const u32 letters = kind == 3 ? 256 : 1 + rng() % 4;
  while (text.size() < size) {
    if (kind == 1) {
      text.insert(text.end(), 1 + rng() % 12, static_cast<u8>('a' + rng() % letters));
    } else if (kind == 2 && text.size() > 8) {
      const size_t from = rng() % (text.size() - 4);
      const std::vector<u8> phrase(
          text.begin() + static_cast<std::ptrdiff_t>(from),
          text.begin() + static_cast<std::ptrdiff_t>(std::min(from + 1 + rng() % 30, text.size())));
      text.insert(text.end(), phrase.begin(), phrase.end());
      text.push_back(static_cast<u8>('a' + rng() % letters));
    } else {
      text.push_back(static_cast<u8>(letters == 256 ? rng() : 'a' + rng() % letters));
    }
  }
  text.resize(size);
  return text;
}

}  // namespace oa::test
