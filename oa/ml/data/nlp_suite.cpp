// See the header.
#include "oa/ml/data/nlp_suite.h"

#include <algorithm>
#include <string_view>

#include "oa/core/error.h"

namespace oa::ml::data {

namespace {
constexpr std::string_view op = "NlpSuiteSampler";
}

std::string nlp_suite_text() {
  constexpr std::string_view kOnce =
      "to be or not to be that is the question whether tis nobler in the mind to suffer the slings "
      "and arrows of outrageous fortune or to take arms against a sea of troubles and by opposing "
      "end them ";
  static_assert(kOnce.size() == 192);
  std::string text;
  for (int i = 0; i < 3; ++i) text += kOnce;
  return text;
}

NlpSuiteSampler::NlpSuiteSampler(std::vector<u32> tokens, u64 context)
    : tokens_(std::move(tokens)), context_(context) {
  if (context_ == 0 || tokens_.size() < 2 || tokens_.size() - 2 < context_)
    invalid(op, "too few tokens for a context of {}, got {}, expected more than {}", context_,
            tokens_.size(), std::max<u64>(context_, 1) + 1);
}

template <class T>
void NlpSuiteSampler::fill(std::span<T> inputs, std::span<u32> targets) {
  if (targets.size() % context_ != 0 || inputs.size() != targets.size())
    invalid(op, "buffers of {} inputs and {} targets, expected equal multiples of the context {}",
            inputs.size(), targets.size(), context_);
  if (sizeof(T) == 1 && std::ranges::max(tokens_) > 255)
    fail(ErrorKind::OutOfRange, op, "token {} does not fit into a byte, expected at most 255",
         std::ranges::max(tokens_));
  for (u64 row = 0; row < targets.size() / context_; ++row) {
    const u64 start = (cursor_ + 7 * row) % limit();
    for (u64 i = 0; i < context_; ++i) {
      inputs[row * context_ + i] = static_cast<T>(tokens_[start + i]);
      targets[row * context_ + i] = tokens_[start + i + 1];
    }
  }
  cursor_ = (cursor_ + 64) % limit();
}

void NlpSuiteSampler::next(std::span<u32> inputs, std::span<u32> targets) { fill(inputs, targets); }
void NlpSuiteSampler::next(std::span<u8> inputs, std::span<u32> targets) { fill(inputs, targets); }

}  // namespace oa::ml::data
