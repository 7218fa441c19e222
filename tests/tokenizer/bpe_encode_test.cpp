// Encoding gives the ids of the definition, for every vocabulary, text, piece and number of
// threads.
#include "oa/ml/tokenizer/bpe_encode.h"

#include <gtest/gtest.h>

#include <numeric>

#include "oa/ml/tokenizer/bpe_train.h"
#include "tests/tokenizer/naive_bpe.h"

namespace oa::ml::tokenizer {
namespace {

using test::naive_encode;
using test::random_text;

// Merges that no training gives: of any tokens, also twice, also such that are never reached.
std::vector<BpeMerge> random_merges(std::mt19937& rng, u32 count, u32 letters) {
  std::vector<BpeMerge> merges;
  const auto token = [&]() -> u32 {
    const u32 made = static_cast<u32>(merges.size());
    if (made > 0 && rng() % 2) return 256 + rng() % made;
    return 'a' + rng() % letters;
  };
  while (merges.size() < count) {
    const u32 left = token();
    merges.push_back({left, token()});
  }
  return merges;
}

void expect_all_ways_equal(const BpeEncoder& encoder, std::span<const u8> text) {
  const auto expected = naive_encode(text, encoder.merges());
  ASSERT_EQ(encoder.encode(text, 1), expected);
  ASSERT_EQ(encoder.encode_by_replay(text), expected);
}

TEST(BpeEncode, EqualsTheDefinitionForTrainedVocabularies) {
  std::mt19937 rng(11);
  for (int round = 0; round < 300; ++round) {
    const auto corpus = random_text(rng, rng() % 800);
    const BpeEncoder encoder(train_merges(corpus, rng() % 300, 1));
    ASSERT_TRUE(encoder.searchable());
    expect_all_ways_equal(encoder, corpus);
    for (int i = 0; i < 4; ++i) expect_all_ways_equal(encoder, random_text(rng, rng() % 300));
  }
}

TEST(BpeEncode, EqualsTheDefinitionForAnyVocabulary) {
  std::mt19937 rng(12);
  for (int round = 0; round < 700; ++round) {
    const u32 letters = 1 + rng() % 3;
    const BpeEncoder encoder(random_merges(rng, rng() % 60, letters));
    for (int i = 0; i < 6; ++i) {
      std::vector<u8> text(rng() % 120);
      for (u8& byte : text) byte = static_cast<u8>('a' + rng() % letters);
      ASSERT_NO_FATAL_FAILURE(expect_all_ways_equal(encoder, text)) << round;
    }
  }
}

TEST(BpeEncode, RunsOfOneByteMergeFromTheLeft) {
  const BpeEncoder encoder({{'a', 'a'}, {256, 256}, {256, 'a'}});
  for (size_t n = 0; n <= 40; ++n) expect_all_ways_equal(encoder, std::vector<u8>(n, 'a'));
  EXPECT_EQ(encoder.encode(std::vector<u8>(3, 'a')), (std::vector<u32>{258}));
  EXPECT_EQ(encoder.encode(std::vector<u8>(7, 'a')), (std::vector<u32>{257, 258}));
}

TEST(BpeEncode, PiecesJoinOrSaySo) {
  std::mt19937 rng(13);
  int joined = 0;
  for (int round = 0; round < 300; ++round) {
    const auto text = random_text(rng, 200 + rng() % 800);
    const BpeEncoder encoder(train_merges(text, rng() % 100, 1));
    const auto expected = naive_encode(text, encoder.merges());
    for (const u64 piece : {16, 50, 200}) {
      std::vector<u32> tokens{7};  // results are appended
      if (!encoder.encode_in_pieces(text, piece, rng() % (piece + 1), 1 + rng() % 3, tokens)) {
        EXPECT_EQ(tokens.size(), 1u);
        continue;
      }
      ++joined;
      ASSERT_EQ(std::vector<u32>(tokens.begin() + 1, tokens.end()), expected) << round;
    }
  }
  EXPECT_GT(joined, 100);
}

TEST(BpeEncode, LongTextsOnThreads) {
  std::mt19937 rng(14);
  for (int round = 0; round < 6; ++round) {
    const auto text = random_text(rng, 1'700'000);
    const BpeEncoder encoder(train_merges(std::span(text).first(200'000), 400, 2));
    const auto expected = encoder.encode_by_replay(text);
    for (const u32 threads : {1, 2, 3}) ASSERT_EQ(encoder.encode(text, threads), expected) << round;
  }
}

// Pieces of a run have their borders wherever they begin, so they do not join.
TEST(BpeEncode, LongRunsOnThreads) {
  const BpeEncoder encoder({{'a', 'a'}, {256, 256}, {257, 257}, {258, 258}, {259, 257}});
  const std::vector<u8> text(2'100'003, 'a');
  EXPECT_EQ(encoder.encode(text, 2), encoder.encode_by_replay(text));
}

TEST(BpeEncode, TokensOfAnyLength) {
  std::vector<BpeMerge> doubling{{'a', 'a'}};
  for (u32 i = 1; i < 100; ++i) doubling.push_back({255 + i, 255 + i});
  const BpeEncoder encoder(doubling);
  EXPECT_FALSE(encoder.searchable());
  EXPECT_EQ(encoder.length(256 + 9), 1024u);
  EXPECT_EQ(encoder.length(256 + 62), u64{1} << 63);
  EXPECT_EQ(encoder.length(256 + 63), ~u64{0});
  EXPECT_EQ(encoder.length(256 + 99), ~u64{0});
  EXPECT_EQ(encoder.length(256 + 100), 0u);
  const std::vector<u8> text(100'000, 'a');
  EXPECT_EQ(encoder.encode(text), naive_encode(text, doubling));

  // Many long tokens in a small vocabulary: the tree of their texts would be large.
  std::vector<BpeMerge> growing{{'x', 'y'}};
  for (u32 i = 1; i < 5000; ++i) growing.push_back({255 + i, 'A' + i % 7});
  const BpeEncoder large(growing);
  EXPECT_FALSE(large.searchable());
  std::vector<u8> begin{'x', 'y'};
  for (u32 i = 1; i < 3000; ++i) begin.push_back(static_cast<u8>('A' + i % 7));
  EXPECT_EQ(large.encode(begin), (std::vector<u32>{256 + 2999}));
}

}  // namespace
}  // namespace oa::ml::tokenizer
