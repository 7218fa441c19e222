#include "tests/fuzz/harness.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "oa/core/error.h"
#include "oa/ml/checkpoint/tensor_file.h"
#include "oa/ml/tokenizer/bpe.h"

namespace oa::fuzz {

namespace {

using ml::TensorFile;
using ml::TensorView;

// A finding: libFuzzer and the unit test both stop at it.
void require(bool condition, const char* what) {
  if (condition) return;
  fmt::print(stderr, "fuzz: {}\n", what);
  std::abort();
}

// Runs `body`; whatever it throws must be one of these kinds.
template <class Body>
void expect_only(std::initializer_list<ErrorKind> kinds, Body body) {
  try {
    body();
  } catch (const Error& e) {
    require(std::ranges::find(kinds, e.kind()) != kinds.end(), e.what());
  }
}

// Values that the file claims may only be asked for one tensor at a time: an .npz inflates to at
// most 1032 times its own size.
void load_all(const TensorFile& file) {
  for (size_t i = 0; i < file.tensors().size(); ++i) {
    const ml::TensorInfo& t = file.tensors()[i];
    const ml::TensorBytes loaded = file.values(i);
    const std::span<const u8> values = loaded.bytes();
    require(values.size() == *ml::checked_bytes(t.shape, t.dtype), "values do not fit their shape");
    u8 sum = 0;
    for (u8 b : values) sum = static_cast<u8>(sum ^ b);  // every byte can be read
    asm volatile("" : : "r"(sum));
  }
}

bool same(const std::vector<TensorView>& a, const std::vector<TensorView>& b) {
  return std::ranges::equal(a, b, [](const TensorView& x, const TensorView& y) {
    return x.name == y.name && x.dtype == y.dtype && x.shape == y.shape &&
           x.encoding == y.encoding && std::ranges::equal(x.bytes, y.bytes);
  });
}

}  // namespace

void oam(std::span<const u8> input) {
  expect_only({ErrorKind::CheckpointCorrupt}, [&] {
    const ml::Oam content = ml::parse_oam(input);
    const std::vector<u8> again = ml::encode_oam(content);
    const ml::Oam back = ml::parse_oam(again);
    require(same(content.weights, back.weights) && same(content.state, back.state),
            "a checkpoint changes when it is written again");
    require(ml::encode_oam(back) == again, "writing is not repeatable");
    load_all(TensorFile::parse(input));
  });
}

void safetensors(std::span<const u8> input) {
  expect_only({ErrorKind::DataLoss, ErrorKind::InvalidArgument}, [&] {
    const ml::Safetensors content = ml::parse_safetensors(input);
    // Only these names can be read and not written.
    const std::vector<u8> again = ml::encode_safetensors(content.tensors, content.metadata);
    const ml::Safetensors back = ml::parse_safetensors(again);
    require(same(content.tensors, back.tensors) && content.metadata == back.metadata,
            "a file changes when it is written again");
  });
}

void numpy(std::span<const u8> input) {
  expect_only({ErrorKind::DataLoss, ErrorKind::InvalidArgument, ErrorKind::CheckpointCorrupt},
              [&] { load_all(TensorFile::parse(input)); });
}

void bpe(std::span<const u8> input) {
  expect_only({ErrorKind::DataLoss}, [&] {
    const auto tokenizer = ml::tokenizer::BpeTokenizer::parse(input);
    const std::string text = tokenizer.to_text();
    const auto back =
        ml::tokenizer::BpeTokenizer::parse({reinterpret_cast<const u8*>(text.data()), text.size()});
    require(back == tokenizer, "a vocabulary changes when it is written again");
    const std::vector<u32> ids = tokenizer.encode(input);
    const std::vector<u8> decoded = tokenizer.decode(ids);
    require(std::ranges::equal(decoded, input), "decoding does not undo encoding");
  });
}

}  // namespace oa::fuzz
