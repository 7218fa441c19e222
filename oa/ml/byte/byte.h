// A text and its bytes, and what a model of bytes says about the next one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "oa/matrix/matrix.h"

namespace oa::ml::byte {

inline constexpr u32 kVocabSize = 256;
inline constexpr u8 kPad = 0;
inline constexpr u8 kBos = 1;
inline constexpr u8 kEos = 2;
inline constexpr u8 kSep = 3;

// U8 [S] and U8 [1, S]; the bytes as they are.
Matrix encode(const Engine& engine, std::span<const u8> bytes);
Matrix encode_batched(const Engine& engine, std::span<const u8> bytes);
Matrix encode_text(const Engine& engine, std::string_view text);

// logits F32 [256] or [N, 256] -> 1 or N bytes, drawn as matrix::sample_logits does; waits for
// them. With temperature 0 the greatest logit, the first of equal ones; a row with NaN gives the
// place of its first NaN. InvalidArgument for other shapes and dtypes, and as of sample_logits.
std::vector<u8> sample(const Matrix& logits, f32 temperature, i32 top_k, f32 top_p, u64 seed);
// sample(logits, 0, 0, 1, 0).
std::vector<u8> decode(const Matrix& logits);
// DataLoss if the decoded bytes are no UTF-8.
std::string decode_text(const Matrix& logits);

}  // namespace oa::ml::byte
