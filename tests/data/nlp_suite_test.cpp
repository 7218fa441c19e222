// The suite's text, vocabulary and batches, against the published numbers.
#include "oa/ml/data/nlp_suite.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "oa/core/error.h"
#include "oa/core/file.h"
#include "oa/ml/tokenizer/bpe.h"

namespace oa::ml::data {
namespace {

std::string sha256(std::span<const u8> bytes) {
  const auto path = std::filesystem::temp_directory_path() / fmt::format("oa-suite-{}", ::getpid());
  write_file(path, bytes);
  FILE* pipe = ::popen(fmt::format("sha256sum '{}'", path.string()).c_str(), "r");
  char digits[65] = {};
  const size_t read = pipe ? std::fread(digits, 1, 64, pipe) : 0;
  if (pipe) ::pclose(pipe);
  std::filesystem::remove(path);
  return std::string(digits, read);
}

TEST(NlpSuite, TextIsExact) {
  const std::string text = nlp_suite_text();
  EXPECT_EQ(sha256(tokenizer::bytes_of(text.substr(0, 192))),
            "2e73c3178ccd9bbd2d13efc67b364450427491f13d2f8208dcaa3c2d5fee7538");
  EXPECT_EQ(sha256(tokenizer::bytes_of(text)),
            "7a0272037b2195bd489536d86884a75bc2d8727241c52c3120f2bf43b8c02abf");
}

TEST(NlpSuite, BytePairVocabularyIsExact) {
  const std::string text = nlp_suite_text();
  BpeTokenizer bpe(320);
  bpe.train_text(text, 64);
  EXPECT_EQ(bpe.vocab_size(), 320u);
  EXPECT_EQ(bpe.encode_text(text).size(), 210u);
  const auto& merges = bpe.merges();
  ASSERT_EQ(merges.size(), 64u);
  EXPECT_EQ(std::vector<BpeMerge>(merges.begin(), merges.begin() + 8),
            (std::vector<BpeMerge>{{32, 116},
                                   {32, 97},
                                   {32, 111},
                                   {104, 101},
                                   {105, 110},
                                   {256, 259},
                                   {256, 111},
                                   {32, 98}}));
  EXPECT_EQ(std::vector<BpeMerge>(merges.end() - 4, merges.end()),
            (std::vector<BpeMerge>{{114, 310}, {115, 275}, {115, 283}, {116, 117}}));
  const std::string file = bpe.to_text();
  EXPECT_EQ(file.size(), 505u);
  EXPECT_EQ(sha256(tokenizer::bytes_of(file)),
            "83edeffe161396e3652b49188d502cc4c9d39fb0001d6f262f6b4896fe8a9abe");
}

TEST(NlpSuite, BatchesFollowTheRule) {
  std::vector<u32> tokens(210);
  for (u32 i = 0; i < 210; ++i) tokens[i] = i;
  NlpSuiteSampler sampler(tokens);
  EXPECT_EQ(sampler.limit(), 193u);
  std::vector<u32> inputs(64 * 16), targets(64 * 16);
  for (u64 step = 0; step < 10; ++step) {
    EXPECT_EQ(sampler.cursor(), 64 * step % 193);
    sampler.next(inputs, targets);
    for (u64 row = 0; row < 64; ++row) {
      for (u64 i = 0; i < 16; ++i) {
        const u64 start = (64 * step % 193 + 7 * row) % 193;
        ASSERT_EQ(inputs[16 * row + i], start + i);
        ASSERT_EQ(targets[16 * row + i], start + i + 1);
      }
    }
  }
  NlpSuiteSampler bytes(tokens), same(tokens);
  std::vector<u8> narrow(32);
  inputs.resize(32), targets.resize(32);
  bytes.next(narrow, targets);
  same.next(inputs, targets);
  EXPECT_TRUE(std::ranges::equal(narrow, inputs));
}

TEST(NlpSuite, WrongSizesMoveNothing) {
  EXPECT_THROW(NlpSuiteSampler(std::vector<u32>(17)), Error);
  EXPECT_THROW(NlpSuiteSampler({}), Error);
  EXPECT_THROW(NlpSuiteSampler(std::vector<u32>(100), 0), Error);
  EXPECT_THROW(NlpSuiteSampler(std::vector<u32>(100), ~u64{0}), Error);
  NlpSuiteSampler sampler(std::vector<u32>(18, 256));
  EXPECT_EQ(sampler.limit(), 1u);
  std::vector<u32> inputs(16), targets(17);
  EXPECT_THROW(sampler.next(inputs, targets), Error);
  std::vector<u8> narrow(16);
  targets.resize(16);
  EXPECT_THROW(sampler.next(narrow, targets), Error);
  EXPECT_EQ(sampler.cursor(), 0u);
  sampler.next(inputs, targets);
  EXPECT_EQ(targets, std::vector<u32>(16, 256));
}

}  // namespace
}  // namespace oa::ml::data
