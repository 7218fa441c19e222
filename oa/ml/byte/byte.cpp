// Thin layers over uploads and matrix::sample_logits.
#include "oa/ml/byte/byte.h"

#include "oa/core/error.h"
#include "oa/matrix/random.h"
#include "oa/ml/tokenizer/tokenizer.h"

namespace oa::ml::byte {

Matrix encode(const Engine& engine, std::span<const u8> bytes) {
  return Matrix::from_slice<u8>(engine, {static_cast<i64>(bytes.size())}, bytes);
}

Matrix encode_batched(const Engine& engine, std::span<const u8> bytes) {
  return Matrix::from_slice<u8>(engine, {1, static_cast<i64>(bytes.size())}, bytes);
}

Matrix encode_text(const Engine& engine, std::string_view text) {
  return encode(engine, tokenizer::bytes_of(text));
}

std::vector<u8> sample(const Matrix& logits, f32 temperature, i32 top_k, f32 top_p, u64 seed) {
  const Shape& shape = logits.shape();
  const u32 rank = shape.rank();
  if (logits.dtype() != DType::F32 || rank < 1 || rank > 2 || shape[rank - 1] != kVocabSize ||
      logits.num_elements() == 0)
    invalid("byte::sample", "bad logits, got {} {}, expected f32 [256] or [N, 256]",
            token(logits.dtype()), shape);
  const std::vector<i32> classes =
      matrix::sample_logits(logits, {temperature, top_k, top_p}, seed).read<i32>();
  return {classes.begin(), classes.end()};
}

std::vector<u8> decode(const Matrix& logits) { return sample(logits, 0, 0, 1, 0); }

std::string decode_text(const Matrix& logits) {
  const std::vector<u8> bytes = decode(logits);
  const std::vector<u32> ids(bytes.begin(), bytes.end());
  return tokenizer::ByteTokenizer().decode_text(ids);
}

}  // namespace oa::ml::byte
