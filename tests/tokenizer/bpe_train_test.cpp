// Training gives the merges of the definition, for every text, width and number of threads.
#include "oa/ml/tokenizer/bpe_train.h"

#include <gtest/gtest.h>

#include "tests/tokenizer/naive_bpe.h"

namespace oa::ml::tokenizer {
namespace {

using detail::TrainWidths;
using test::naive_train;
using test::random_text;

std::vector<BpeMerge> train_text(std::string_view text, u32 limit) {
  return train_merges(bytes_of(text), limit, 1);
}

TEST(BpeTrain, TextsWithoutAPairThatOccursTwice) {
  for (const char* text : {"", "a", "ab", "aa", "abc", "abcdefgh", "aba"})
    EXPECT_TRUE(train_text(text, 10).empty()) << text;
  EXPECT_TRUE(train_text("abababab", 0).empty());
}

TEST(BpeTrain, OverlappingPairsCount) {
  // Two overlapping places are enough to be merged once.
  EXPECT_EQ(train_text("aaa", 10), (std::vector<BpeMerge>{{'a', 'a'}}));
  EXPECT_EQ(train_text("aaaa", 10), (std::vector<BpeMerge>{{'a', 'a'}}));
  EXPECT_EQ(train_text("aaaaaa", 10), (std::vector<BpeMerge>{{'a', 'a'}, {256, 256}}));
}

TEST(BpeTrain, EqualCountsGoToTheSmallestPair) {
  // (a,a) 2, (b,b) 2 and more, whatever comes first in the text.
  EXPECT_EQ(train_text("bbbaaaddddcccc", 4),
            (std::vector<BpeMerge>{{'c', 'c'}, {'d', 'd'}, {'a', 'a'}, {'b', 'b'}}));
  EXPECT_EQ(train_text("aaabbbccccdddd", 4),
            (std::vector<BpeMerge>{{'c', 'c'}, {'d', 'd'}, {'a', 'a'}, {'b', 'b'}}));
  // Bytes are unsigned.
  const std::vector<u8> high{200, 201, 1, 200, 201, 2, 100, 101, 3, 100, 101};
  EXPECT_EQ(train_merges(high, 2, 1), (std::vector<BpeMerge>{{100, 101}, {200, 201}}));
}

TEST(BpeTrain, EqualsTheDefinitionOnRandomTexts) {
  std::mt19937 rng(7);
  for (int round = 0; round < 400; ++round) {
    const auto text = random_text(rng, rng() % 600);
    const u32 limit = round % 5 == 0 ? rng() % 8 : 1000;
    const auto expected = naive_train(text, limit);
    for (const TrainWidths widths :
         {TrainWidths::Auto, TrainWidths::Small, TrainWidths::WideIds, TrainWidths::WideAll})
      ASSERT_EQ(detail::train_merges(text, limit, 1, widths), expected)
          << "round " << round << ", widths " << static_cast<int>(widths);
  }
}

// Long enough for several stages and for parts on several threads.
TEST(BpeTrain, EqualsTheDefinitionOnLongTexts) {
  std::mt19937 rng(8);
  for (int round = 0; round < 8; ++round) {
    const auto text = random_text(rng, 200'000);
    const auto expected = naive_train(text, 12);
    for (const u32 threads : {1, 2, 3, 7})
      ASSERT_EQ(train_merges(text, 12, threads), expected) << round << ", threads " << threads;
  }
}

TEST(BpeTrain, ThreadsAndWidthsChangeNothing) {
  std::mt19937 rng(9);
  for (int round = 0; round < 8; ++round) {
    const auto text = random_text(rng, 300'000);
    const auto expected = train_merges(text, 3000, 1);
    EXPECT_EQ(train_merges(text, 3000, 3), expected);
    EXPECT_EQ(detail::train_merges(text, 3000, 2, TrainWidths::WideAll), expected);
  }
}

TEST(BpeTrain, OneByteOverAndOver) {
  const std::vector<u8> text(1'000'000, 'a');
  const auto merges = train_merges(text, 1000, 2);
  ASSERT_EQ(merges[0], (BpeMerge{'a', 'a'}));
  for (u32 i = 1; i < 18; ++i) ASSERT_EQ(merges[i], (BpeMerge{255 + i, 255 + i})) << i;
  EXPECT_EQ(merges, naive_train(text, 1000));
}

}  // namespace
}  // namespace oa::ml::tokenizer
