// The .npy header, and reordering of values to row-major little-endian.
#include "oa/ml/checkpoint/npy.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "oa/core/error.h"
#include "oa/core/utf8.h"

namespace oa::ml {

namespace {

constexpr std::string_view kRead = "read_npy", kWrite = "write_npy";
constexpr std::string_view kMagic = "\x93NUMPY";

struct TypeName {
  std::string_view name;  // without the byte order
  FileDType dtype;
};
constexpr TypeName kTypes[] = {
    {"f4", FileDType::F32}, {"f2", FileDType::F16},   {"f8", FileDType::F64},
    {"i1", FileDType::I8},  {"i2", FileDType::I16},   {"i4", FileDType::I32},
    {"i8", FileDType::I64}, {"u1", FileDType::U8},    {"u2", FileDType::U16},
    {"u4", FileDType::U32}, {"u8", FileDType::U64},   {"b1", FileDType::Bool},
    {"c8", FileDType::C64}, {"c16", FileDType::C128},
};

template <class... Args>
[[noreturn]] void damaged(fmt::format_string<Args...> text, Args&&... args) {
  fail(ErrorKind::DataLoss, kRead, "{}", fmt::format(text, std::forward<Args>(args)...));
}

// Reads the dictionary {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }.
class HeaderReader {
 public:
  HeaderReader(std::string_view text, NpyHeader& out) : text_(text), out_(out) {}

  void read() {
    bool descr = false, order = false, shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string_view key = quoted();
      expect(':');
      bool& seen = key == "descr" ? descr : key == "fortran_order" ? order : shape;
      if (key == "descr") {
        read_descr();
      } else if (key == "fortran_order") {
        read_order();
      } else if (key == "shape") {
        read_shape();
      } else {
        damaged("the header has an unknown key, got '{}'", printable(key));
      }
      if (seen) damaged("the header has the key '{}' twice", key);
      seen = true;
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) damaged("the header goes on after its dictionary");
    if (!descr || !order || !shape)
      damaged("the header lacks one of descr, fortran_order and shape");
  }

 private:
  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != text_.npos) ++at_;
  }
  char peek() {
    skip_space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool accept(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c))
      damaged("the header is malformed, got '{}' at byte {}, expected '{}'",
              printable(text_.substr(std::min(at_, text_.size()), 1)), at_, c);
  }
  std::string_view quoted() {
    const char quote = peek() == '"' ? '"' : '\'';
    expect(quote);
    const size_t end = text_.find(quote, at_);
    if (end == text_.npos) damaged("the header has text without an end");
    const std::string_view inside = text_.substr(at_, end - at_);
    at_ = end + 1;
    return inside;
  }

  void read_descr() {
    if (peek() == '[') invalid(kRead, "arrays of records are not supported");
    const std::string_view descr = quoted();
    std::string_view name = descr;
    const bool marked = !name.empty() && std::string_view("<>=|").find(name[0]) != name.npos;
    const char order = marked ? name[0] : '=';
    if (marked) name.remove_prefix(1);
    const auto type = std::ranges::find(kTypes, name, &TypeName::name);
    if (type == std::end(kTypes) || (order == '|' && size_bytes(type->dtype) != 1))
      invalid(kRead, "unsupported element type, got '{}', expected numbers or truth values",
              printable(descr));
    out_.dtype = type->dtype;
    out_.big_endian = order == '>' && size_bytes(type->dtype) > 1;
  }

  void read_order() {
    skip_space();
    const std::string_view rest = text_.substr(at_);
    out_.column_major = rest.starts_with("True");
    if (!out_.column_major && !rest.starts_with("False"))
      damaged("wrong fortran_order, expected True or False");
    at_ += out_.column_major ? 4 : 5;
  }

  void read_shape() {
    expect('(');
    while (!accept(')')) {
      if (out_.shape.rank() == kMaxFileRank)
        damaged("too many axes, expected at most {}", kMaxFileRank);
      out_.shape.push_back(extent());
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
  }

  i64 extent() {
    const char first = peek();
    if (first < '0' || first > '9') damaged("the shape is malformed at byte {} of the header", at_);
    u64 n = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      n = 10 * n + static_cast<u64>(text_[at_] - '0');
      if (n > u64{1} << 58) damaged("impossible extent, got more than {}", u64{1} << 58);
    }
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // Python 2 wrote 3L
    return static_cast<i64>(n);
  }

  std::string_view text_;
  size_t at_ = 0;
  NpyHeader& out_;
};

// Size of the number whose bytes a byte order reverses: half of a complex value.
u32 word_bytes(FileDType t) {
  return t == FileDType::C64 || t == FileDType::C128 ? size_bytes(t) / 2 : size_bytes(t);
}

void reverse_words(std::span<u8> bytes, u32 word) {
  for (size_t i = 0; i + word <= bytes.size(); i += word)
    std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(i),
                 bytes.begin() + static_cast<std::ptrdiff_t>(i + word));
}

// Row-major copy of column-major values.
std::vector<u8> transposed(const Shape& shape, u32 element, std::span<const u8> values) {
  std::vector<u8> out(values.size());
  const u32 rank = shape.rank();
  std::vector<u64> index(rank, 0), stride(rank, element);
  for (u32 d = 1; d < rank; ++d) stride[d] = stride[d - 1] * static_cast<u64>(shape[d - 1]);
  u64 from = 0;
  for (u64 to = 0; to < out.size(); to += element) {
    std::memcpy(out.data() + to, values.data() + from, element);
    for (u32 d = rank; d-- > 0;) {
      from += stride[d];
      if (++index[d] < static_cast<u64>(shape[d])) break;
      from -= stride[d] * index[d];
      index[d] = 0;
    }
  }
  return out;
}

}  // namespace

u64 npy_values_at(std::span<const u8> start) {
  const auto byte = [&](size_t i) -> u64 { return start[i]; };
  if (start.size() < 10) damaged("too short, got {} bytes, expected at least 10", start.size());
  if (std::memcmp(start.data(), kMagic.data(), kMagic.size()) != 0) damaged("wrong magic number");
  const u64 version = byte(6);
  if (version < 1 || version > 3 || byte(7) != 0)
    damaged("unknown version, got {}.{}, expected 1.0, 2.0 or 3.0", version, byte(7));
  u64 length = byte(8) | byte(9) << 8;
  if (version > 1) {
    if (start.size() < 12) damaged("too short, got {} bytes, expected at least 12", start.size());
    length |= byte(10) << 16 | byte(11) << 24;
  }
  if (length > kMaxNpyHeader)
    damaged("the header is too long, got {} bytes, expected at most {}", length, kMaxNpyHeader);
  return (version > 1 ? 12 : 10) + length;
}

NpyHeader parse_npy_header(std::span<const u8> start) {
  NpyHeader header;
  header.values_at = npy_values_at(start);
  if (header.values_at > start.size())
    damaged("the header does not fit, got {} bytes, expected {}", start.size(), header.values_at);
  const u64 text_at = start[6] > 1 ? 12 : 10;
  const auto text = start.subspan(text_at, header.values_at - text_at);
  HeaderReader({reinterpret_cast<const char*>(text.data()), text.size()}, header).read();
  const std::optional<u64> bytes = checked_bytes(header.shape, header.dtype);
  if (!bytes) damaged("impossible shape, got {} of {}", token(header.dtype), header.shape);
  header.values_bytes = *bytes;
  return header;
}

bool is_plain(const NpyHeader& header) {
  return !header.big_endian && (!header.column_major || header.shape.rank() < 2);
}

std::vector<u8> plain_values(const NpyHeader& header, std::span<const u8> values) {
  OA_CHECK(values.size() == header.values_bytes);
  std::vector<u8> out = header.column_major && header.shape.rank() >= 2
                            ? transposed(header.shape, size_bytes(header.dtype), values)
                            : std::vector<u8>(values.begin(), values.end());
  if (header.big_endian) reverse_words(out, word_bytes(header.dtype));
  return out;
}

std::vector<u8> encode_npy_header(const TensorView& tensor) {
  if (tensor.encoding != Encoding::Dense)
    invalid(kWrite, "'{}' is quantised, got {}, expected dense", tensor.name,
            token(tensor.encoding));
  const auto type = std::ranges::find(kTypes, tensor.dtype, &TypeName::dtype);
  if (type == std::end(kTypes))
    invalid(kWrite, "'{}' has a dtype that NumPy has not, got {}", tensor.name,
            token(tensor.dtype));
  const char* const comma = tensor.shape.rank() == 1 ? "," : "";
  const std::string shape = fmt::format("{}{}", fmt::join(tensor.shape, ", "), comma);
  std::string text = fmt::format("{{'descr': '{}{}', 'fortran_order': False, 'shape': ({}), }}",
                                 size_bytes(tensor.dtype) == 1 ? '|' : '<', type->name, shape);
  // The values begin at a multiple of 64 bytes.
  text.resize((10 + text.size() + 1 + 63) / 64 * 64 - 10, ' ');
  text.back() = '\n';
  std::vector<u8> out(10 + text.size());
  std::memcpy(out.data(), kMagic.data(), kMagic.size());
  out[6] = 1;
  out[8] = static_cast<u8>(text.size());
  out[9] = static_cast<u8>(text.size() >> 8);
  std::memcpy(out.data() + 10, text.data(), text.size());
  return out;
}

void write_npy(const std::filesystem::path& path, const TensorView& tensor, Durability durability) {
  // No name is stored, so none is asked for.
  const TensorView named{tensor.name.empty() ? std::string("array") : tensor.name, tensor.dtype,
                         tensor.shape, tensor.bytes, tensor.encoding};
  check_tensors(kWrite, {&named, 1});
  const std::vector<u8> header = encode_npy_header(named);
  AtomicFile file(path, durability);
  file.write(header);
  file.write(tensor.bytes);
  file.commit();
}

}  // namespace oa::ml
