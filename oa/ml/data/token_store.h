// The tokens of a corpus, in one, two or four bytes each, in memory or in a mapped file.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "oa/core/hash.h"
#include "oa/ml/data/text_files.h"
#include "oa/ml/tokenizer/tokenizer.h"

namespace oa::ml::data {

// A cheap value: copies share the tokens, which never change.
class TokenStore {
 public:
  TokenStore() = default;  // no tokens, vocabulary 0
  // OutOfRange if an id is not below `vocab`.
  static TokenStore from_ids(std::span<const u32> ids, u32 vocab);
  // Every file is encoded by itself, and their tokens follow each other. With a ByteTokenizer one
  // file is its own store: it stays mapped and takes no memory.
  static TokenStore encode(const TextFiles& files, const tokenizer::Tokenizer& tokenizer);

  u64 size() const { return size_; }
  u32 vocab() const { return vocab_; }
  u32 width() const { return width_; }  // bytes of a token: 1 up to 256 ids, 2 up to 65536, else 4
  u32 operator[](u64 i) const;          // i < size()

  // Copies tokens first .. first + out.size() - 1. OutOfRange if they are not all there, or, into
  // bytes, if the vocabulary has more than 256 ids.
  void copy(u64 first, std::span<u32> out) const;
  void copy(u64 first, std::span<u8> out) const;

  // A file of this store: a header of 64 bytes with `key` and a hash of the tokens, then the
  // tokens.
  void save(const std::filesystem::path& path, const Hash128& key) const;  // Io
  // Maps a saved store. Empty if there is no file or it has another key; DataLoss if it is damaged,
  // Io if it cannot be read.
  static std::optional<TokenStore> load(const std::filesystem::path& path, const Hash128& key);
  // A name for what encode(files, tokenizer) gives; `vocabulary` tells tokenizers apart, such as
  // the text of a BPE file. Reads all files.
  static Hash128 key(const TextFiles& files, std::string_view vocabulary);

 private:
  struct Bytes;  // whoever holds them

  static u32 width_for(u32 vocab) { return vocab <= 256 ? 1 : vocab <= 65536 ? 2 : 4; }
  template <class T>
  void copy_to(u64 first, std::span<T> out) const;

  std::shared_ptr<const Bytes> holder_;
  const u8* data_ = nullptr;
  u64 size_ = 0;
  u32 vocab_ = 0;
  u32 width_ = 1;
};

}  // namespace oa::ml::data
