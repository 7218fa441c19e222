// Tokens by width, and the file of a store.
#include "oa/ml/data/token_store.h"

#include <cstring>

#include "oa/core/error.h"
#include "oa/core/file.h"

namespace oa::ml::data {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view op = "TokenStore";

struct Header {
  char magic[8];
  u32 width;
  u32 vocab;
  u64 count;
  Hash128 key;
  Hash128 hash;  // of the tokens and of the fields above
  u64 zero;
};
static_assert(sizeof(Header) == 64);
constexpr char kMagic[8] = {'O', 'A', 'T', 'O', 'K', 'E', 'N', '1'};

Hash128 hash_of(const Header& header, std::span<const u8> tokens) {
  Hasher hasher;
  hasher.add(header.width);
  hasher.add(header.vocab);
  hasher.add(header.count);
  hasher.add(header.key);
  hasher.bytes(tokens.data(), tokens.size());
  return hasher.finish();
}

// f(pointer to the tokens as T), T by their width.
template <class F>
auto with_type(const u8* data, u32 width, F f) {
  switch (width) {
    case 1: return f(data);
    case 2: return f(reinterpret_cast<const u16*>(data));
    default: return f(reinterpret_cast<const u32*>(data));
  }
}

template <class T>
void append_as(std::vector<u8>& bytes, std::span<const u32> ids) {
  const size_t before = bytes.size();
  bytes.resize(before + ids.size() * sizeof(T));
  T* out = reinterpret_cast<T*>(bytes.data() + before);
  for (size_t i = 0; i < ids.size(); ++i) out[i] = static_cast<T>(ids[i]);
}

void append(std::vector<u8>& bytes, std::span<const u32> ids, u32 width) {
  switch (width) {
    case 1: return append_as<u8>(bytes, ids);
    case 2: return append_as<u16>(bytes, ids);
    default: return append_as<u32>(bytes, ids);
  }
}

}  // namespace

struct TokenStore::Bytes {
  std::vector<u8> owned;
  MappedFile mapped;
};

TokenStore TokenStore::from_ids(std::span<const u32> ids, u32 vocab) {
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] >= vocab)
      fail(ErrorKind::OutOfRange, op, "id {} at {} is not in the vocabulary, expected less than {}",
           ids[i], i, vocab);
  TokenStore store;
  auto bytes = std::make_shared<Bytes>();
  store.vocab_ = vocab;
  store.width_ = width_for(vocab);
  store.size_ = ids.size();
  append(bytes->owned, ids, store.width_);
  store.data_ = bytes->owned.data();
  store.holder_ = std::move(bytes);
  return store;
}

TokenStore TokenStore::encode(const TextFiles& files, const tokenizer::Tokenizer& tokenizer) {
  TokenStore store;
  auto bytes = std::make_shared<Bytes>();
  store.vocab_ = tokenizer.vocab_size();
  store.width_ = width_for(store.vocab_);
  const bool as_is = dynamic_cast<const tokenizer::ByteTokenizer*>(&tokenizer) != nullptr;
  if (as_is && files.files().size() == 1) {
    bytes->mapped = files.content(0);
    store.data_ = bytes->mapped.bytes().data();
    store.size_ = bytes->mapped.bytes().size();
  } else if (as_is) {
    bytes->owned = files.head(~u64{0});
    store.data_ = bytes->owned.data();
    store.size_ = bytes->owned.size();
  } else {
    for (size_t i = 0; i < files.files().size(); ++i) {
      const MappedFile file = files.content(i);
      append(bytes->owned, tokenizer.encode(file.bytes()), store.width_);
    }
    store.data_ = bytes->owned.data();
    store.size_ = bytes->owned.size() / store.width_;
  }
  store.holder_ = std::move(bytes);
  return store;
}

u32 TokenStore::operator[](u64 i) const {
  OA_CHECK(i < size_);
  return with_type(data_, width_, [&](const auto* tokens) { return static_cast<u32>(tokens[i]); });
}

template <class T>
void TokenStore::copy_to(u64 first, std::span<T> out) const {
  if (first > size_ || out.size() > size_ - first)
    fail(ErrorKind::OutOfRange, op, "{} tokens from {} on, expected a range within {}", out.size(),
         first, size_);
  if (sizeof(T) < width_)
    fail(ErrorKind::OutOfRange, op, "{} ids do not fit into bytes, expected at most 256", vocab_);
  with_type(data_, width_, [&](const auto* tokens) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<T>(tokens[first + i]);
  });
}

void TokenStore::copy(u64 first, std::span<u32> out) const { copy_to(first, out); }
void TokenStore::copy(u64 first, std::span<u8> out) const { copy_to(first, out); }

void TokenStore::save(const fs::path& path, const Hash128& key) const {
  const std::span<const u8> tokens(data_, size_ * width_);
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.width = width_;
  header.vocab = vocab_;
  header.count = size_;
  header.key = key;
  header.hash = hash_of(header, tokens);
  std::vector<u8> file(sizeof header + tokens.size());
  std::memcpy(file.data(), &header, sizeof header);
  if (!tokens.empty()) std::memcpy(file.data() + sizeof header, tokens.data(), tokens.size());
  write_file(path, file);
}

std::optional<TokenStore> TokenStore::load(const fs::path& path, const Hash128& key) {
  std::error_code error;
  if (fs::status(path, error).type() == fs::file_type::not_found) return std::nullopt;
  auto bytes = std::make_shared<Bytes>();
  bytes->mapped = MappedFile(path);
  const std::span<const u8> file = bytes->mapped.bytes();
  const auto broken = [&](std::string_view why) {
    fail(ErrorKind::DataLoss, op, "'{}' is damaged: {}", path.string(), why);
  };
  Header header;
  if (file.size() < sizeof header)
    broken(fmt::format("got {} bytes, expected at least 64", file.size()));
  std::memcpy(&header, file.data(), sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0)
    broken("it does not begin with OATOKEN1");
  if (header.width != width_for(header.vocab) || header.zero != 0) broken("its header is wrong");
  const std::span<const u8> tokens = file.subspan(sizeof header);
  if (tokens.size() % header.width != 0 || tokens.size() / header.width != header.count)
    broken(fmt::format("got {} bytes of tokens, expected {} tokens of {}", tokens.size(),
                       header.count, header.width));
  if (header.key != key) return std::nullopt;
  if (header.hash != hash_of(header, tokens)) broken("its hash is wrong");
  TokenStore store;
  store.data_ = tokens.data();
  store.size_ = header.count;
  store.vocab_ = header.vocab;
  store.width_ = header.width;
  store.holder_ = std::move(bytes);
  return store;
}

Hash128 TokenStore::key(const TextFiles& files, std::string_view vocabulary) {
  Hasher hasher;
  hasher.add(files.hash());
  hasher.text(vocabulary);
  return hasher.finish();
}

}  // namespace oa::ml::data
