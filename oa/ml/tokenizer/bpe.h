// Byte-pair encoding of whole byte streams, and its text file `oa_bpe_v1`.
//
// Nothing cuts the text beforehand: a token may reach over words. Training and encoding are exact:
// the same merges and ids as by counting every round and passing over the text for every merge.
#pragma once

#include <filesystem>
#include <memory>

#include "oa/ml/tokenizer/bpe_encode.h"
#include "oa/ml/tokenizer/merge.h"
#include "oa/ml/tokenizer/tokenizer.h"

namespace oa::ml::tokenizer {

// A cheap value: copies share the vocabulary, which never changes.
class BpeTokenizer final : public Tokenizer {
 public:
  // A vocabulary of bytes; training may grow it to `target_vocab` ids, at least 256.
  explicit BpeTokenizer(u64 target_vocab = 512);
  // InvalidArgument if a merge names a token that is not there before it.
  static BpeTokenizer from_merges(std::vector<BpeMerge> merges);

  // Replaces the vocabulary by at most min(num_merges, target - 256) merges, most frequent pair
  // first, of equal ones the smallest (left, right); see train_merges.
  void train(std::span<const u8> bytes, u64 num_merges);
  void train_text(std::string_view text, u64 num_merges) { train(bytes_of(text), num_merges); }

  std::vector<u32> encode(std::span<const u8> bytes) const override;
  // ResourceExhausted if the bytes do not fit into memory; a token can stand for any number.
  std::vector<u8> decode(std::span<const u32> ids) const override;

  u32 vocab_size() const override { return encoder_->tokens(); }
  u32 target_vocab() const { return target_; }
  u64 num_merges() const { return merges().size(); }
  const std::vector<BpeMerge>& merges() const { return encoder_->merges(); }
  // At most 2^64 - 1; 0 for an unknown id.
  u64 token_byte_len(u32 id) const { return encoder_->length(id); }

  // The file: the line `oa_bpe_v1`, the number of merges, then `left right` for each, one a line.
  // Io if it cannot be written; the old file is then as it was.
  void save(const std::filesystem::path& path) const;
  // Replaces the vocabulary; the target becomes its size. A failure changes nothing: Io if the file
  // cannot be read, DataLoss if it is not as described, apart from white space: at most 1 000 000
  // merges, each of tokens that exist before it, nothing after them.
  void load(const std::filesystem::path& path);
  static BpeTokenizer parse(std::span<const u8> file);
  std::string to_text() const;

  // The same vocabulary and target.
  bool operator==(const BpeTokenizer& other) const {
    return target_ == other.target_ && merges() == other.merges();
  }

 private:
  u32 target_;
  std::shared_ptr<const BpeEncoder> encoder_;
};

}  // namespace oa::ml::tokenizer

namespace oa::ml {
using tokenizer::BpeMerge;
using tokenizer::BpeTokenizer;
}  // namespace oa::ml
