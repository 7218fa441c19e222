// Windows of context + 1 tokens: the first `context` are inputs, the last `context` targets.
#pragma once

#include <span>

#include "oa/ml/data/token_store.h"

namespace oa::ml::data {

struct TokenRange {
  u64 begin = 0;
  u64 end = 0;
  u64 size() const { return end - begin; }
};

// The first part of the tokens is for training, the rest for validation.
struct Split {
  TokenRange train;
  TokenRange validation;
};
// The validation gets floor(tokens * share), but at least one window if share is above 0.
// InvalidArgument if share is not in [0, 1), or the tokens are too few for a window in each part.
Split split_tokens(u64 tokens, f64 validation_share, u64 context);

// Windows in random order, epoch after epoch without end. Sample g is window g mod windows() of
// epoch g / windows(); what it holds is a function of (seed, epoch, index) only, so training goes
// on from any step, on any machine, without a state.
//
// In an epoch the windows lie side by side, from a random offset below `context` on: every token is
// seen once, apart from fewer than 2 context at the ends, and from epoch to epoch the windows cut
// the text at other places.
class ShuffledWindows {
 public:
  // Shares the store. InvalidArgument if the range is not in the store or shorter than a window.
  ShuffledWindows(TokenStore tokens, TokenRange range, u64 context, u64 seed);

  u64 context() const { return context_; }
  u64 windows() const { return windows_; }  // in an epoch, at least 1
  // The first token of a window; index < windows().
  u64 begin(u64 epoch, u64 index) const;

  // Fills rows [rows, context] with the samples first, first + 1, ... Rows come from the size of
  // `targets`, a multiple of the context. Errors leave the buffers as they were.
  void fill(u64 first, std::span<u32> inputs, std::span<u32> targets) const;
  void fill(u64 first, std::span<u8> inputs, std::span<u32> targets) const;

 private:
  template <class T>
  void fill_any(u64 first, std::span<T> inputs, std::span<u32> targets) const;
  u64 offset(u64 epoch) const;

  TokenStore tokens_;
  TokenRange range_;
  u64 context_;
  u64 seed_;
  u64 windows_;
  u64 offsets_;  // how many there are to choose from
};

// Windows side by side in the order of the text, for validation: every token but the first and
// fewer than `context` last ones is a target once.
class SequentialWindows {
 public:
  SequentialWindows(TokenStore tokens, TokenRange range, u64 context);  // as above

  u64 context() const { return context_; }
  u64 windows() const { return windows_; }
  // Fills rows with the windows first, first + 1, ... as long as there are any; returns how many.
  u64 fill(u64 first, std::span<u32> inputs, std::span<u32> targets) const;
  u64 fill(u64 first, std::span<u8> inputs, std::span<u32> targets) const;

 private:
  template <class T>
  u64 fill_any(u64 first, std::span<T> inputs, std::span<u32> targets) const;

  TokenStore tokens_;
  TokenRange range_;
  u64 context_;
  u64 windows_;
};

}  // namespace oa::ml::data
