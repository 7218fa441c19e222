// The tokenizers as values: prompts, decoding, UTF-8, and the file with everything that can be
// wrong with it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <numeric>

#include "oa/core/error.h"
#include "oa/core/file.h"
#include "oa/ml/tokenizer/bpe.h"
#include "tests/tokenizer/naive_bpe.h"

namespace oa::ml::tokenizer {
namespace {

namespace fs = std::filesystem;

// Ids below vocab_size() for every text, and the text back where nothing is lost.
template <class T>
void expect_round_trip(const T& tokenizer, std::span<const u8> text) {
  const auto ids = tokenizer.encode(text);
  for (const u32 id : ids) ASSERT_LT(id, tokenizer.vocab_size());
  ASSERT_EQ(tokenizer.decode(ids), std::vector<u8>(text.begin(), text.end()));
}

std::pair<ErrorKind, std::string> error_of(auto&& call) {
  try {
    call();
  } catch (const Error& e) {
    return {e.kind(), e.what()};
  }
  return {ErrorKind::Internal, "no error"};
}

TEST(ByteTokenizer, BytesAreIds) {
  std::vector<u8> all(256);
  std::iota(all.begin(), all.end(), u8{0});
  const ByteTokenizer tokenizer;
  EXPECT_EQ(tokenizer.vocab_size(), 256u);
  EXPECT_EQ(tokenizer.encode_text("a\xff"), (std::vector<u32>{'a', 255}));
  expect_round_trip(tokenizer, all);
  EXPECT_EQ(tokenizer.decode(std::vector<u32>{'a', 256, ~0u, 'b'}), (std::vector<u8>{'a', 'b'}));
}

TEST(CharTokenizer, LettersAndTheRest) {
  const CharTokenizer tokenizer;
  EXPECT_EQ(tokenizer.vocab_size(), 27u);
  EXPECT_EQ(tokenizer.encode_text("azAZ `{@["),
            (std::vector<u32>{0, 25, 0, 25, 26, 26, 26, 26, 26}));
  std::vector<u8> all(256);
  std::iota(all.begin(), all.end(), u8{0});
  const auto ids = tokenizer.encode(all);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 26u), 256 - 52);
  EXPECT_EQ(tokenizer.decode_text(std::vector<u32>{7, 8, 26, 27, 0}), "hi a");
}

TEST(BpeTokenizer, TargetsAreClamped) {
  EXPECT_EQ(BpeTokenizer().target_vocab(), 512u);
  EXPECT_EQ(BpeTokenizer(0).target_vocab(), 256u);
  EXPECT_EQ(BpeTokenizer(~u64{0}).target_vocab(), ~u32{0});
  BpeTokenizer tokenizer(258);
  tokenizer.train_text("abababacacac", 100);
  EXPECT_EQ(tokenizer.num_merges(), 2u);
  EXPECT_EQ(tokenizer.vocab_size(), 258u);
  tokenizer.train_text("xyxy", 100);  // nothing of the old vocabulary stays
  EXPECT_EQ(tokenizer.merges(), (std::vector<BpeMerge>{{'x', 'y'}}));
  tokenizer.train_text("", 100);
  EXPECT_EQ(tokenizer.vocab_size(), 256u);
  BpeTokenizer(~u64{0}).train_text("abab", ~u64{0});
}

TEST(BpeTokenizer, RoundTripsRandomTexts) {
  std::mt19937 rng(3);
  for (int round = 0; round < 100; ++round) {
    const auto text = test::random_text(rng, rng() % 500);
    BpeTokenizer tokenizer(400);
    tokenizer.train(text, 200);
    expect_round_trip(tokenizer, text);
    expect_round_trip(tokenizer, test::random_text(rng, 300));
    EXPECT_EQ(BpeTokenizer::parse(bytes_of(tokenizer.to_text())).merges(), tokenizer.merges());
  }
}

TEST(BpeTokenizer, UnknownIdsAreSkipped) {
  const BpeTokenizer tokenizer = BpeTokenizer::from_merges({{'a', 'b'}, {256, 'c'}});
  EXPECT_EQ(tokenizer.decode_text(std::vector<u32>{257, 258, ~0u, 'd'}), "abcd");
  EXPECT_EQ(tokenizer.token_byte_len('a'), 1u);
  EXPECT_EQ(tokenizer.token_byte_len(257), 3u);
  EXPECT_EQ(tokenizer.token_byte_len(258), 0u);
  EXPECT_EQ(error_of([] { BpeTokenizer::from_merges({{'a', 256}}); }).second,
            "BpeTokenizer: merge 0 is of later tokens, got 97 and 256, expected ids below 256");
}

TEST(BpeTokenizer, TokensThatStandForTooMuch) {
  std::vector<BpeMerge> doubling{{'a', 'a'}};
  for (u32 i = 1; i < 200; ++i) doubling.push_back({255 + i, 255 + i});
  const BpeTokenizer tokenizer = BpeTokenizer::from_merges(doubling);
  EXPECT_EQ(tokenizer.decode(std::vector<u32>{256 + 19}).size(), size_t{1} << 20);
  for (const u32 merge : {62u, 199u})
    EXPECT_EQ(error_of([&] { tokenizer.decode(std::vector<u32>{256 + merge, 'a'}); }).first,
              ErrorKind::ResourceExhausted);
}

TEST(BpeTokenizer, TextOutOfTokensMustBeUtf8) {
  const ByteTokenizer bytes;
  const std::string text = "caf\u00e9 \u4f60\u597d \U0001F600";
  const auto ids = bytes.encode_text(text);
  EXPECT_EQ(bytes.decode_text(ids), text);
  const auto [kind, message] =
      error_of([&] { bytes.decode_text(std::span(ids).first(ids.size() - 1)); });
  EXPECT_EQ(kind, ErrorKind::DataLoss);
  EXPECT_EQ(
      message,
      "decode_text: the bytes are no UTF-8, got byte 0xf0 at 13 of 16, expected whole characters");
}

TEST(Tokenizer, PromptsAreRightAligned) {
  const ByteTokenizer bytes;
  EXPECT_EQ(bytes.encode_prompt("abc", 5), (std::vector<u32>{0, 0, 'a', 'b', 'c'}));
  EXPECT_EQ(bytes.encode_prompt("abc", 2), (std::vector<u32>{'b', 'c'}));
  EXPECT_EQ(bytes.encode_prompt("abc", 0), std::vector<u32>());
  EXPECT_EQ(bytes.encode_prompt("", 2), (std::vector<u32>{0, 0}));
}

class BpeFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "oa-bpe-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { fs::remove_all(dir_); }
  fs::path dir_;
};

TEST_F(BpeFile, IsWhatTheFormatSays) {
  const BpeTokenizer tokenizer = BpeTokenizer::from_merges({{'a', 'b'}, {256, 256}});
  tokenizer.save(dir_ / "deep" / "v.bpe");
  const auto bytes = read_file(dir_ / "deep" / "v.bpe");
  EXPECT_EQ(std::string(bytes.begin(), bytes.end()), "oa_bpe_v1\n2\n97 98\n256 256\n");
  BpeTokenizer loaded(1000);
  loaded.load(dir_ / "deep" / "v.bpe");
  EXPECT_EQ(loaded, tokenizer);
  EXPECT_EQ(loaded.target_vocab(), 258u);
  EXPECT_EQ(BpeTokenizer::parse(bytes_of(" oa_bpe_v1\t2 97\r\n98 256 256")), tokenizer);
  EXPECT_EQ(BpeTokenizer::parse(bytes_of("oa_bpe_v1 0")), BpeTokenizer(256));
}

TEST_F(BpeFile, WhateverIsWrongChangesNothing) {
  const struct {
    std::string text;
    const char* message;
  } cases[] = {
      {"", "wrong first word, got the end of the file, expected oa_bpe_v1"},
      {"oa_bpe_v2\n0\n", "wrong first word, got 'oa_bpe_v2', expected oa_bpe_v1"},
      {std::string("oa_bpe_v1\0 0", 12), "wrong first word, got 'oa_bpe_v1?', expected oa_bpe_v1"},
      {"oa_bpe_v1",
       "wrong number of merges, got the end of the file, expected a number below 1000001"},
      {"oa_bpe_v1\n-1\n", "wrong number of merges, got '-1', expected a number below 1000001"},
      {"oa_bpe_v1\n1000001\n",
       "wrong number of merges, got '1000001', expected a number below 1000001"},
      {"oa_bpe_v1\n99999999999999999999999\n",
       "wrong number of merges, got '99999999999999999999...', expected a number below 1000001"},
      {"oa_bpe_v1\n1000000\n",
       "wrong left token of merge 0, got the end of the file, expected a number below 256"},
      {"oa_bpe_v1\n1\n97",
       "wrong right token of merge 0, got the end of the file, expected a number below 256"},
      {"oa_bpe_v1\n1\n256 97\n",
       "wrong left token of merge 0, got '256', expected a number below 256"},
      {"oa_bpe_v1\n2\n97 98\n97 257\n",
       "wrong right token of merge 1, got '257', expected a number below 257"},
      {"oa_bpe_v1\n1\n97 98x\n",
       "wrong right token of merge 0, got '98x', expected a number below 256"},
      {"oa_bpe_v1\n1\n97 0x62\n",
       "wrong right token of merge 0, got '0x62', expected a number below 256"},
      {"oa_bpe_v1\n1\n97 +98\n",
       "wrong right token of merge 0, got '+98', expected a number below 256"},
      {"oa_bpe_v1\n1\n97 98\n99\n",
       "text after the last merge, got '99', expected the end of the file"},
  };
  const BpeTokenizer before = BpeTokenizer::from_merges({{'x', 'y'}});
  for (const auto& [text, message] : cases) {
    write_file(dir_ / "v.bpe", bytes_of(text));
    BpeTokenizer tokenizer = before;
    const auto [kind, what] = error_of([&] { tokenizer.load(dir_ / "v.bpe"); });
    EXPECT_EQ(kind, ErrorKind::DataLoss) << text;
    EXPECT_EQ(what, std::string("BpeTokenizer: ") + message);
    EXPECT_EQ(tokenizer, before);
  }
  BpeTokenizer tokenizer = before;
  EXPECT_EQ(error_of([&] { tokenizer.load(dir_ / "absent"); }).first, ErrorKind::Io);
  EXPECT_EQ(error_of([&] { tokenizer.load(dir_); }).first, ErrorKind::Io);
  EXPECT_EQ(error_of([&] { tokenizer.save(dir_); }).first, ErrorKind::Io);
  EXPECT_EQ(tokenizer, before);
}

// Every prefix of a file, and every byte of it changed, is refused or is another vocabulary.
TEST_F(BpeFile, DamagedFilesNeverCrash) {
  const std::string text = "oa_bpe_v1\n3\n97 98\n256 99\n257 257\n";
  u32 accepted = 0;
  for (size_t cut = 0; cut < text.size(); ++cut) {
    const auto [kind, what] =
        error_of([&] { BpeTokenizer::parse(bytes_of(std::string_view(text).substr(0, cut))); });
    // Cut inside or behind the last number, it still is one.
    if (what == "no error") {
      EXPECT_GE(cut, text.size() - 3);
    } else {
      EXPECT_EQ(kind, ErrorKind::DataLoss);
    }
  }
  for (size_t at = 0; at < text.size(); ++at) {
    for (u32 byte = 0; byte < 256; ++byte) {
      std::string damaged = text;
      damaged[at] = static_cast<char>(byte);
      try {
        const BpeTokenizer tokenizer = BpeTokenizer::parse(bytes_of(damaged));
        tokenizer.encode_text("abcabcabcaaabbbccc");
        ++accepted;
      } catch (const Error& e) {
        EXPECT_EQ(e.kind(), ErrorKind::DataLoss);
      }
    }
  }
  EXPECT_GT(accepted, 100u);
}

}  // namespace
}  // namespace oa::ml::tokenizer
