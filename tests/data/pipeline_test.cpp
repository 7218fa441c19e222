// From a folder to batches, as docs/data.md shows it.
#include <algorithm>

#include "oa/ml/data/windows.h"
#include "oa/ml/tokenizer/bpe.h"
#include "tests/data/folder.h"

namespace oa::ml {
namespace {

class Pipeline : public test::InFolder {};

TEST_F(Pipeline, FolderToBatches) {
  std::string all;
  for (const char* name : {"books/1", "books/2", "books/more/3"}) {
    std::string text;
    for (int i = 0; i < 300; ++i) text += fmt::format("{} line {} of the file\n", name, i * i % 97);
    put(name, text);
    all += text;
  }
  const auto files = data::TextFiles::open(dir_ / "books");
  BpeTokenizer bpe(400);
  bpe.train(files.head(20'000), 400);
  bpe.save(dir_ / "run" / "vocabulary.bpe");

  const Hash128 key = data::TokenStore::key(files, bpe.to_text());
  ASSERT_FALSE(data::TokenStore::load(dir_ / "run" / "tokens", key));
  data::TokenStore::encode(files, bpe).save(dir_ / "run" / "tokens", key);
  const auto tokens = data::TokenStore::load(dir_ / "run" / "tokens", key);
  ASSERT_TRUE(tokens);
  EXPECT_LT(tokens->size(), all.size() / 2);

  // The windows of validation, put together, are the end of the text.
  const u64 context = 16, batch = 4;
  const auto parts = data::split_tokens(tokens->size(), 0.2, context);
  const data::ShuffledWindows train(*tokens, parts.train, context, 1);
  const data::SequentialWindows validation(*tokens, parts.validation, context);
  std::vector<u32> inputs(batch * context), targets(batch * context), end;
  for (u64 first = 0, rows; (rows = validation.fill(first, inputs, targets)) > 0; first += rows)
    end.insert(end.end(), inputs.begin(),
               inputs.begin() + static_cast<std::ptrdiff_t>(rows * context));
  BpeTokenizer loaded;
  loaded.load(dir_ / "run" / "vocabulary.bpe");
  const std::string text = loaded.decode_text(end);
  EXPECT_GT(text.size(), all.size() / 10);
  EXPECT_NE(all.find(text), all.npos);
  EXPECT_GT(all.find(text), all.size() / 2);
  // A row of a training batch is a piece of the text.
  for (u64 step = 0; step < 2 * train.windows() / batch; ++step) {
    train.fill(step * batch, inputs, targets);
    const std::string row = loaded.decode_text(std::span(inputs).first(context));
    EXPECT_NE(all.find(row), all.npos);
  }
}

}  // namespace
}  // namespace oa::ml
