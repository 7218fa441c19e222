// What every tokenizer can do, and the two that need no training.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oa/core/types.h"

namespace oa::ml::tokenizer {

// The bytes of a text.
std::span<const u8> bytes_of(std::string_view text);

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual u32 vocab_size() const = 0;
  // Ids below vocab_size(). A longer text uses several threads, as many as engines do.
  virtual std::vector<u32> encode(std::span<const u8> bytes) const = 0;
  // Unknown ids are skipped.
  virtual std::vector<u8> decode(std::span<const u32> ids) const = 0;

  std::vector<u32> encode_text(std::string_view text) const { return encode(bytes_of(text)); }
  // DataLoss if the bytes are no UTF-8.
  std::string decode_text(std::span<const u32> ids) const;
  // The last `context` ids of the text at the right end of `context` ids, zeros before them.
  std::vector<u32> encode_prompt(std::string_view text, u64 context) const;

 protected:
  Tokenizer() = default;
  Tokenizer(const Tokenizer&) = default;
  Tokenizer(Tokenizer&&) = default;
  Tokenizer& operator=(const Tokenizer&) = default;
  Tokenizer& operator=(Tokenizer&&) = default;
};

// A byte is its own id.
class ByteTokenizer final : public Tokenizer {
 public:
  u32 vocab_size() const override { return 256; }
  std::vector<u32> encode(std::span<const u8> bytes) const override;
  std::vector<u8> decode(std::span<const u32> ids) const override;
};

// 27 ids: the letters a to z, upper case like lower case, are 0 to 25; all else is 26, which
// decodes to a space.
class CharTokenizer final : public Tokenizer {
 public:
  u32 vocab_size() const override { return 27; }
  std::vector<u32> encode(std::span<const u8> bytes) const override;
  std::vector<u8> decode(std::span<const u32> ids) const override;
};

}  // namespace oa::ml::tokenizer
