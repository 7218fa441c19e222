// Where windows begin, and the copying of them.
#include "oa/ml/data/windows.h"

#include <algorithm>

#include "oa/core/error.h"
#include "oa/core/random.h"
#include "oa/ml/data/permutation.h"

namespace oa::ml::data {

namespace {

void check_range(std::string_view op, const TokenStore& tokens, TokenRange range, u64 context) {
  if (context == 0) invalid(op, "got context 0, expected at least 1");
  if (range.begin > range.end || range.end > tokens.size())
    invalid(op, "range {} .. {}, expected one within {} tokens", range.begin, range.end,
            tokens.size());
  if (range.size() <= context)
    invalid(op, "too few tokens for one window, got {}, expected at least context + 1 = {}",
            range.size(), u64{context} + 1);
}

// The number of rows.
template <class T>
u64 check_buffers(std::string_view op, const TokenStore& tokens, u64 context, std::span<T> inputs,
                  std::span<u32> targets) {
  if (targets.size() % context != 0 || inputs.size() != targets.size())
    invalid(op, "buffers of {} inputs and {} targets, expected equal multiples of the context {}",
            inputs.size(), targets.size(), context);
  if (sizeof(T) < tokens.width())
    invalid(op, "{} ids do not fit into inputs of bytes, expected at most 256", tokens.vocab());
  return targets.size() / context;
}

template <class T>
void copy_window(const TokenStore& tokens, u64 begin, u64 context, u64 row, std::span<T> inputs,
                 std::span<u32> targets) {
  tokens.copy(begin, inputs.subspan(row * context, context));
  tokens.copy(begin + 1, targets.subspan(row * context, context));
}

}  // namespace

Split split_tokens(u64 tokens, f64 validation_share, u64 context) {
  constexpr std::string_view op = "split_tokens";
  if (!(validation_share >= 0 && validation_share < 1))
    invalid(op, "wrong share for validation, got {}, expected 0 or more and less than 1",
            validation_share);
  const u64 least = context + 1;
  const u64 parts = validation_share > 0 ? 2 : 1;
  if (context == 0 || least == 0 || tokens / parts < least)
    invalid(op, "too little data, got {} tokens, expected at least {} for windows of context {}{}",
            tokens, context == 0 ? parts : parts * least, context,
            parts == 2 ? " in training and validation" : "");
  u64 validation = 0;
  if (parts == 2) {
    validation = static_cast<u64>(static_cast<f64>(tokens) * validation_share);
    validation = std::clamp(validation, least, tokens - least);
  }
  return {{0, tokens - validation}, {tokens - validation, tokens}};
}

ShuffledWindows::ShuffledWindows(TokenStore tokens, TokenRange range, u64 context, u64 seed)
    : tokens_(std::move(tokens)), range_(range), context_(context), seed_(seed) {
  check_range("ShuffledWindows", tokens_, range, context);
  // The last window begins at offset + (windows - 1) context and takes context + 1 tokens; as many
  // windows as fit for every offset below the context.
  const u64 spare = range.size() - context;  // where a window may begin, from 0 on
  windows_ = std::max<u64>(1, spare / context);
  offsets_ = std::min(context, spare - (windows_ - 1) * context);
}

u64 ShuffledWindows::offset(u64 epoch) const {
  const PhiloxCounter words = philox4x32(
      {0, static_cast<u32>(epoch), static_cast<u32>(epoch >> 32), 0x6f666673}, philox_key(seed_));
  return (u64{words[0]} << 32 | words[1]) % offsets_;
}

u64 ShuffledWindows::begin(u64 epoch, u64 index) const {
  return range_.begin + offset(epoch) + Permutation(windows_, seed_, epoch)(index) * context_;
}

template <class T>
void ShuffledWindows::fill_any(u64 first, std::span<T> inputs, std::span<u32> targets) const {
  const u64 rows = check_buffers("ShuffledWindows", tokens_, context_, inputs, targets);
  u64 epoch = first / windows_, index = first % windows_;
  for (u64 row = 0; row < rows; ++epoch, index = 0) {
    const Permutation order(windows_, seed_, epoch);
    const u64 base = range_.begin + offset(epoch);
    for (; row < rows && index < windows_; ++row, ++index)
      copy_window(tokens_, base + order(index) * context_, context_, row, inputs, targets);
  }
}

void ShuffledWindows::fill(u64 first, std::span<u32> inputs, std::span<u32> targets) const {
  fill_any(first, inputs, targets);
}
void ShuffledWindows::fill(u64 first, std::span<u8> inputs, std::span<u32> targets) const {
  fill_any(first, inputs, targets);
}

SequentialWindows::SequentialWindows(TokenStore tokens, TokenRange range, u64 context)
    : tokens_(std::move(tokens)), range_(range), context_(context) {
  check_range("SequentialWindows", tokens_, range, context);
  windows_ = (range.size() - 1) / context;
}

template <class T>
u64 SequentialWindows::fill_any(u64 first, std::span<T> inputs, std::span<u32> targets) const {
  u64 rows = check_buffers("SequentialWindows", tokens_, context_, inputs, targets);
  rows = std::min(rows, windows_ - std::min(first, windows_));
  for (u64 row = 0; row < rows; ++row)
    copy_window(tokens_, range_.begin + (first + row) * context_, context_, row, inputs, targets);
  return rows;
}

u64 SequentialWindows::fill(u64 first, std::span<u32> inputs, std::span<u32> targets) const {
  return fill_any(first, inputs, targets);
}
u64 SequentialWindows::fill(u64 first, std::span<u8> inputs, std::span<u32> targets) const {
  return fill_any(first, inputs, targets);
}

}  // namespace oa::ml::data
