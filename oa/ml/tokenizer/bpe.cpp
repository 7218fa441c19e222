// The tokenizer as a value, and its file.
#include "oa/ml/tokenizer/bpe.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "oa/core/error.h"
#include "oa/core/file.h"
#include "oa/ml/tokenizer/bpe_train.h"

namespace oa::ml::tokenizer {

namespace {

constexpr std::string_view kMagic = "oa_bpe_v1";
constexpr u32 kMostMerges = 1'000'000;

// The fields of a text between white space.
class Fields {
 public:
  explicit Fields(std::string_view text) : rest_(text) {}

  std::optional<std::string_view> next() {
    const size_t begin = rest_.find_first_not_of(kSpace);
    if (begin == rest_.npos) return std::nullopt;
    rest_.remove_prefix(begin);
    const std::string_view field = rest_.substr(0, rest_.find_first_of(kSpace));
    rest_.remove_prefix(field.size());
    return field;
  }

 private:
  static constexpr std::string_view kSpace = " \t\n\v\f\r";
  std::string_view rest_;
};

// A field for a message: short, and without anything that a terminal would act on.
std::string shown(std::optional<std::string_view> field) {
  if (!field) return "the end of the file";
  std::string text(field->substr(0, 20));
  for (char& c : text)
    if (c < ' ' || c > '~') c = '?';
  return "'" + text + (field->size() > 20 ? "...'" : "'");
}

[[noreturn]] void broken(std::string_view what, std::optional<std::string_view> got,
                         std::string_view expected) {
  fail(ErrorKind::DataLoss, "BpeTokenizer", "{}, got {}, expected {}", what, shown(got), expected);
}

// A decimal number below `limit`.
u32 number(Fields& fields, std::string_view what, u32 limit) {
  const auto field = fields.next();
  u32 value = 0;
  bool good = false;
  if (field) {
    const char* end = field->data() + field->size();
    const auto [stop, error] = std::from_chars(field->data(), end, value);
    good = error == std::errc() && stop == end && value < limit;
  }
  if (!good) broken(fmt::format("wrong {}", what), field, fmt::format("a number below {}", limit));
  return value;
}

}  // namespace

BpeTokenizer::BpeTokenizer(u64 target_vocab)
    : target_(static_cast<u32>(std::clamp<u64>(target_vocab, 256, ~u32{0}))),
      encoder_(std::make_shared<BpeEncoder>(std::vector<BpeMerge>())) {}

BpeTokenizer BpeTokenizer::from_merges(std::vector<BpeMerge> merges) {
  for (size_t i = 0; i < merges.size(); ++i)
    if (std::max(merges[i].left, merges[i].right) >= 256 + i)
      invalid("BpeTokenizer", "merge {} is of later tokens, got {} and {}, expected ids below {}",
              i, merges[i].left, merges[i].right, 256 + i);
  BpeTokenizer made(256 + merges.size());
  made.encoder_ = std::make_shared<BpeEncoder>(std::move(merges));
  return made;
}

void BpeTokenizer::train(std::span<const u8> bytes, u64 num_merges) {
  const u32 limit = static_cast<u32>(std::min<u64>(num_merges, target_ - 256));
  encoder_ = std::make_shared<BpeEncoder>(train_merges(bytes, limit));
}

std::vector<u32> BpeTokenizer::encode(std::span<const u8> bytes) const {
  return encoder_->encode(bytes);
}

std::vector<u8> BpeTokenizer::decode(std::span<const u32> ids) const {
  u64 size = 0;
  for (const u32 id : ids) size += std::min(token_byte_len(id), ~size);
  std::vector<u8> bytes;
  try {
    bytes.resize(size);
  } catch (const std::exception&) {  // bad_alloc or length_error
    fail(ErrorKind::ResourceExhausted, "BpeTokenizer",
         "the decoded text does not fit into memory, got {} bytes", size);
  }
  u8* out = bytes.data();
  std::vector<u32> open;
  for (const u32 id : ids) {
    if (token_byte_len(id) == 0) continue;
    open.push_back(id);
    while (!open.empty()) {
      u32 token = open.back();
      open.pop_back();
      while (token >= 256) {
        open.push_back(merges()[token - 256].right);
        token = merges()[token - 256].left;
      }
      *out++ = static_cast<u8>(token);
    }
  }
  return bytes;
}

std::string BpeTokenizer::to_text() const {
  fmt::memory_buffer text;
  auto out = std::back_inserter(text);
  fmt::format_to(out, "{}\n{}\n", kMagic, merges().size());
  for (const BpeMerge& m : merges()) fmt::format_to(out, "{} {}\n", m.left, m.right);
  return fmt::to_string(text);
}

BpeTokenizer BpeTokenizer::parse(std::span<const u8> file) {
  Fields fields({reinterpret_cast<const char*>(file.data()), file.size()});
  const auto magic = fields.next();
  if (magic != kMagic) broken("wrong first word", magic, kMagic);
  const u32 count = number(fields, "number of merges", kMostMerges + 1);
  std::vector<BpeMerge> merges;
  merges.reserve(std::min<u64>(count, file.size() / 4));  // a merge takes four bytes or more
  for (u32 i = 0; i < count; ++i) {
    const u32 left = number(fields, fmt::format("left token of merge {}", i), 256 + i);
    merges.push_back({left, number(fields, fmt::format("right token of merge {}", i), 256 + i)});
  }
  if (const auto more = fields.next())
    broken("text after the last merge", more, "the end of the file");
  return from_merges(std::move(merges));
}

void BpeTokenizer::save(const std::filesystem::path& path) const {
  write_file(path, bytes_of(to_text()));
}

void BpeTokenizer::load(const std::filesystem::path& path) { *this = parse(read_file(path)); }

}  // namespace oa::ml::tokenizer
