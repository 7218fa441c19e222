// Token stores: widths, where the tokens come from, and the saved file with all its damages.
#include "oa/ml/data/token_store.h"

#include <numeric>

#include "oa/ml/tokenizer/bpe.h"
#include "tests/data/folder.h"

namespace oa::ml::data {
namespace {

namespace fs = std::filesystem;
using test::error_of;

class Store : public test::InFolder {};

std::vector<u32> all(const TokenStore& store) {
  std::vector<u32> ids(store.size());
  store.copy(0, ids);
  return ids;
}

TEST_F(Store, WidthsFollowTheVocabulary) {
  for (const auto& [vocab, width] :
       {std::pair(1u, 1u), {256u, 1u}, {257u, 2u}, {65536u, 2u}, {65537u, 4u}, {~0u, 4u}}) {
    const std::vector<u32> ids{0, vocab - 1, vocab / 2};
    const TokenStore store = TokenStore::from_ids(ids, vocab);
    EXPECT_EQ(store.width(), width);
    EXPECT_EQ(store.vocab(), vocab);
    EXPECT_EQ(all(store), ids);
    EXPECT_EQ(store[1], vocab - 1);
    store.save(dir_ / "tokens", {1, vocab});
    const auto loaded = TokenStore::load(dir_ / "tokens", {1, vocab});
    ASSERT_TRUE(loaded);
    EXPECT_EQ(all(*loaded), ids);
    EXPECT_EQ(loaded->vocab(), vocab);
  }
  EXPECT_EQ(error_of([] { TokenStore::from_ids(std::vector<u32>{0, 5}, 5); }).second,
            "TokenStore: id 5 at 1 is not in the vocabulary, expected less than 5");
  EXPECT_EQ(TokenStore::from_ids({}, 0).size(), 0u);
}

TEST_F(Store, RangesAreChecked) {
  const TokenStore store = TokenStore::from_ids(std::vector<u32>{1, 2, 3}, 300);
  std::vector<u32> ids(2);
  std::vector<u8> bytes(2);
  store.copy(1, ids);
  EXPECT_EQ(ids, (std::vector<u32>{2, 3}));
  for (const u64 first : {u64{2}, u64{3}, u64{4}, ~u64{0}})
    EXPECT_EQ(error_of([&] { store.copy(first, ids); }).first, ErrorKind::OutOfRange) << first;
  store.copy(3, std::span<u32>());
  EXPECT_EQ(error_of([&] { store.copy(0, bytes); }).second,
            "TokenStore: 300 ids do not fit into bytes, expected at most 256");
}

TEST_F(Store, FilesFollowEachOther) {
  put("f/a", "abab");
  put("f/b", "ab");
  const TextFiles files = TextFiles::open(dir_ / "f");
  EXPECT_EQ(all(TokenStore::encode(files, tokenizer::ByteTokenizer())),
            (std::vector<u32>{'a', 'b', 'a', 'b', 'a', 'b'}));
  // No token reaches from one file into the next.
  const auto bpe = BpeTokenizer::from_merges({{'a', 'b'}, {256, 256}});
  const TokenStore store = TokenStore::encode(files, bpe);
  EXPECT_EQ(all(store), (std::vector<u32>{257, 256}));
  EXPECT_EQ(store.width(), 2u);
  const TextFiles one = TextFiles::open(dir_ / "f" / "a");
  EXPECT_EQ(all(TokenStore::encode(one, tokenizer::ByteTokenizer())),
            (std::vector<u32>{'a', 'b', 'a', 'b'}));
  EXPECT_EQ(all(TokenStore::encode(one, bpe)), (std::vector<u32>{257}));
  EXPECT_EQ(TokenStore::encode(one, tokenizer::CharTokenizer()).vocab(), 27u);

  const Hash128 key = TokenStore::key(files, bpe.to_text());
  EXPECT_EQ(TokenStore::key(TextFiles::open(dir_ / "f"), bpe.to_text()), key);
  EXPECT_NE(TokenStore::key(files, "byte"), key);
  EXPECT_NE(TokenStore::key(one, bpe.to_text()), key);
}

TEST_F(Store, CopiesOutliveTheirOrigin) {
  TokenStore kept;
  {
    const TextFiles files = TextFiles::open(put("t", "text"));
    kept = TokenStore::encode(files, tokenizer::ByteTokenizer());
  }
  fs::remove(dir_ / "t");
  EXPECT_EQ(all(kept), (std::vector<u32>{'t', 'e', 'x', 't'}));
}

TEST_F(Store, SavedFilesAreForOneKey) {
  const TokenStore store = TokenStore::from_ids(std::vector<u32>{1, 2, 3}, 300);
  EXPECT_FALSE(TokenStore::load(dir_ / "absent", {1, 2}));
  store.save(dir_ / "sub" / "tokens", {1, 2});
  EXPECT_TRUE(TokenStore::load(dir_ / "sub" / "tokens", {1, 2}));
  EXPECT_FALSE(TokenStore::load(dir_ / "sub" / "tokens", {1, 3}));
  EXPECT_EQ(error_of([&] { TokenStore::load(dir_ / "sub", {1, 2}); }).first, ErrorKind::Io);
}

TEST_F(Store, EveryDamageIsSeen) {
  TokenStore::from_ids(std::vector<u32>{1, 299, 3}, 300).save(dir_ / "tokens", {1, 2});
  const std::vector<u8> good = read_file(dir_ / "tokens");
  ASSERT_EQ(good.size(), 70u);
  const auto load = [&](const std::vector<u8>& file) {
    write_file(dir_ / "tokens", file, Durability::Rename);
    return TokenStore::load(dir_ / "tokens", {1, 2});
  };
  for (size_t size = 0; size < good.size(); ++size)
    EXPECT_EQ(error_of([&] {
                load({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)});
              }).first,
              ErrorKind::DataLoss)
        << size;
  for (size_t at = 0; at < good.size(); ++at) {
    for (const u8 change : {0x01, 0x80, 0xff}) {
      auto file = good;
      file[at] ^= change;
      if (at >= 24 && at < 40) {
        EXPECT_FALSE(load(file)) << at;  // another key
      } else {
        EXPECT_EQ(error_of([&] { load(file); }).first, ErrorKind::DataLoss) << at;
      }
    }
  }
  auto longer = good;
  longer.push_back(0);
  EXPECT_EQ(shown(error_of([&] { load(longer); }).second),
            "TokenStore: 'DIR/tokens' is damaged: got 7 bytes of tokens, expected 3 tokens of 2");
  EXPECT_TRUE(load(good));
}

}  // namespace
}  // namespace oa::ml::data
