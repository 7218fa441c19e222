// What tokenizers share, and the two without training.
#include "oa/ml/tokenizer/tokenizer.h"

#include <algorithm>

#include "oa/core/error.h"
#include "oa/core/utf8.h"

namespace oa::ml::tokenizer {

std::span<const u8> bytes_of(std::string_view text) {
  return {reinterpret_cast<const u8*>(text.data()), text.size()};
}

std::string Tokenizer::decode_text(std::span<const u32> ids) const {
  const std::vector<u8> bytes = decode(ids);
  const u64 valid = utf8_prefix(bytes);
  if (valid != bytes.size())
    fail(ErrorKind::DataLoss, "decode_text",
         "the bytes are no UTF-8, got byte {:#04x} at {} of {}, expected whole characters",
         bytes[valid], valid, bytes.size());
  return {bytes.begin(), bytes.end()};
}

std::vector<u32> Tokenizer::encode_prompt(std::string_view text, u64 context) const {
  const std::vector<u32> ids = encode_text(text);
  const u64 kept = std::min<u64>(context, ids.size());
  std::vector<u32> prompt(context);
  std::copy_backward(ids.end() - static_cast<std::ptrdiff_t>(kept), ids.end(), prompt.end());
  return prompt;
}

std::vector<u32> ByteTokenizer::encode(std::span<const u8> bytes) const {
  return {bytes.begin(), bytes.end()};
}

std::vector<u8> ByteTokenizer::decode(std::span<const u32> ids) const {
  std::vector<u8> bytes;
  bytes.reserve(ids.size());
  for (const u32 id : ids)
    if (id < 256) bytes.push_back(static_cast<u8>(id));
  return bytes;
}

std::vector<u32> CharTokenizer::encode(std::span<const u8> bytes) const {
  std::vector<u32> ids(bytes.size());
  std::transform(bytes.begin(), bytes.end(), ids.begin(), [](u8 byte) -> u32 {
    const u32 letter = (byte | 0x20u) - 'a';  // the bit that tells upper from lower case
    return letter < 26 ? letter : 26;
  });
  return ids;
}

std::vector<u8> CharTokenizer::decode(std::span<const u32> ids) const {
  std::vector<u8> bytes;
  bytes.reserve(ids.size());
  for (const u32 id : ids)
    if (id < 27) bytes.push_back(id < 26 ? static_cast<u8>('a' + id) : u8{' '});
  return bytes;
}

}  // namespace oa::ml::tokenizer
