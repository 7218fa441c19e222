// The text of the language-model suite and the order its batches take it in.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "oa/core/types.h"

namespace oa::ml::data {

// 576 bytes of a to z and space: the beginning of Hamlet's soliloquy, three times.
std::string nlp_suite_text();

// Batches from a cursor that moves on by 64 tokens: row b begins at (cursor + 7 b) mod limit, where
// limit = tokens - context - 1.
class NlpSuiteSampler {
 public:
  // InvalidArgument if the tokens are not more than context + 1. Keeps the tokens.
  explicit NlpSuiteSampler(std::vector<u32> tokens, u64 context = 16);

  // Fills rows [rows, context] of tokens and of the tokens that follow each of them; the number of
  // rows comes from the size of `targets`. InvalidArgument if the sizes do not fit; nothing moves
  // then.
  void next(std::span<u32> inputs, std::span<u32> targets);
  void next(std::span<u8> inputs, std::span<u32> targets);  // OutOfRange for tokens above 255

  u64 cursor() const { return cursor_; }
  u64 limit() const { return tokens_.size() - context_ - 1; }

 private:
  template <class T>
  void fill(std::span<T> inputs, std::span<u32> targets);

  std::vector<u32> tokens_;
  u64 context_;
  u64 cursor_ = 0;
};

}  // namespace oa::ml::data
