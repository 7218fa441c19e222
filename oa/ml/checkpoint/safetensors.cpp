// Reading and writing safetensors. The header is read event by event, so a hostile one costs
// nothing.
#include "oa/ml/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <unordered_set>

#include "oa/core/error.h"
#include "oa/core/utf8.h"

namespace oa::ml {

namespace {

using nlohmann::json;

constexpr std::string_view kRead = "read_safetensors", kWrite = "write_safetensors";

struct TypeName {
  std::string_view name;
  FileDType dtype;
};
constexpr TypeName kTypes[] = {
    {"F32", FileDType::F32},        {"BF16", FileDType::BF16}, {"F16", FileDType::F16},
    {"I8", FileDType::I8},          {"I32", FileDType::I32},   {"U8", FileDType::U8},
    {"F64", FileDType::F64},        {"I16", FileDType::I16},   {"I64", FileDType::I64},
    {"U16", FileDType::U16},        {"U32", FileDType::U32},   {"U64", FileDType::U64},
    {"BOOL", FileDType::Bool},      {"C64", FileDType::C64},   {"F8_E5M2", FileDType::F8E5M2},
    {"F8_E4M3", FileDType::F8E4M3},
};

template <class... Args>
[[noreturn]] void damaged(fmt::format_string<Args...> text, Args&&... args) {
  fail(ErrorKind::DataLoss, kRead, "{}", fmt::format(text, std::forward<Args>(args)...));
}

struct Entry {
  std::string name;
  std::optional<FileDType> dtype;
  std::optional<Shape> shape;
  std::vector<u64> offsets;
  bool has_offsets = false;
};

// Takes the parser's events and knows at each where in the header it is.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  std::vector<Entry> entries;
  Metadata metadata;

  bool start_object(size_t) override {
    if (skipping()) return enter_skipped();
    if (place_ == Place::Start) {
      place_ = Place::Top;
    } else if (place_ == Place::Top && key_ == "__metadata__") {
      place_ = Place::Metadata;
    } else if (place_ == Place::Top) {
      entries.push_back({.name = key_, .dtype = {}, .shape = {}, .offsets = {}});
      place_ = Place::Tensor;
    } else {
      return value("an object");
    }
    return true;
  }
  bool end_object() override {
    if (skipping()) return leave_skipped();
    if (place_ == Place::Tensor) {
      const Entry& e = entries.back();
      if (!e.dtype || !e.shape || !e.has_offsets)
        damaged("'{}' lacks one of dtype, shape and data_offsets", printable(e.name));
    }
    place_ = place_ == Place::Top ? Place::End : Place::Top;
    return true;
  }
  bool key(std::string& name) override {
    if (skipping()) return true;
    key_ = std::move(name);
    bool fresh = true;
    if (place_ == Place::Top) {
      fresh = names_.insert(key_).second;
    } else if (place_ == Place::Metadata) {
      fresh = metadata_keys_.insert(key_).second;
    } else {
      const Entry& e = entries.back();
      fresh = !(key_ == "dtype" && e.dtype) && !(key_ == "shape" && e.shape) &&
              !(key_ == "data_offsets" && e.has_offsets);
    }
    if (!fresh) damaged("the header has the key '{}' twice", printable(key_));
    return true;
  }
  bool start_array(size_t) override {
    if (skipping()) return enter_skipped();
    if (place_ != Place::Tensor) return value("an array");
    Entry& e = entries.back();
    if (key_ == "shape") {
      e.shape.emplace();
      place_ = Place::Shape;
    } else if (key_ == "data_offsets") {
      e.has_offsets = true;
      place_ = Place::Offsets;
    } else {
      return value("an array");
    }
    return true;
  }
  bool end_array() override {
    if (skipping()) return leave_skipped();
    Entry& e = entries.back();
    if (place_ == Place::Offsets && e.offsets.size() != 2)
      damaged("'{}' has wrong data_offsets, got {} numbers, expected 2", printable(e.name),
              e.offsets.size());
    place_ = Place::Tensor;
    return true;
  }
  bool number_unsigned(json::number_unsigned_t n) override {
    if (skipping()) return true;
    if (place_ == Place::Shape) {
      if (n >> 63)
        damaged("'{}' has an impossible extent, got {}", printable(entries.back().name), n);
      if (entries.back().shape->rank() == kMaxFileRank)
        damaged("'{}' has too many axes, expected at most {}", printable(entries.back().name),
                kMaxFileRank);
      entries.back().shape->push_back(static_cast<i64>(n));
    } else if (place_ == Place::Offsets) {
      if (entries.back().offsets.size() < 3) entries.back().offsets.push_back(n);
    } else {
      return value("a number");
    }
    return true;
  }
  bool string(std::string& text) override {
    if (skipping()) return true;
    if (place_ == Place::Metadata) {
      metadata.emplace_back(key_, std::move(text));
    } else if (place_ == Place::Tensor && key_ == "dtype") {
      set_dtype(text);
    } else {
      return value("text");
    }
    return true;
  }
  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("a truth value"); }
  bool number_integer(json::number_integer_t) override { return value("a negative number"); }
  bool number_float(json::number_float_t, const std::string&) override {
    return value("a fraction");
  }
  bool binary(json::binary_t&) override { return value("binary data"); }
  bool parse_error(size_t position, const std::string&, const json::exception&) override {
    damaged("the header is no valid JSON, at byte {} of it", position);
  }

 private:
  enum class Place { Start, Top, Metadata, Tensor, Shape, Offsets, End };

  // Fields of a tensor that we do not know are read over, however deep.
  bool skipping() const { return skipped_ > 0; }
  bool enter_skipped() {
    ++skipped_;
    return true;
  }
  bool leave_skipped() {
    --skipped_;
    return true;
  }

  // A value that is not expected here.
  bool value(std::string_view what) {
    if (skipping()) return true;
    const bool known = key_ == "dtype" || key_ == "shape" || key_ == "data_offsets";
    if (place_ == Place::Tensor && !known) {
      if (what == "an object" || what == "an array") ++skipped_;
      return true;
    }
    switch (place_) {
      case Place::Start:
      case Place::End: damaged("the header is {}, expected an object", what);
      case Place::Top: damaged("'{}' is {}, expected an object", printable(key_), what);
      case Place::Metadata:
        damaged("'{}' of the metadata is {}, expected text", printable(key_), what);
      default:
        damaged("'{}' has {} in its {}", printable(entries.back().name), what, printable(key_));
    }
  }

  void set_dtype(std::string_view text) {
    const auto at = std::ranges::find(kTypes, text, &TypeName::name);
    if (at == std::end(kTypes))
      invalid(kRead, "'{}' has an unsupported dtype, got {}", printable(entries.back().name),
              printable(text));
    entries.back().dtype = at->dtype;
  }

  Place place_ = Place::Start;
  u64 skipped_ = 0;  // depth inside of an unknown field
  std::string key_;
  std::unordered_set<std::string> names_, metadata_keys_;
};

// Each range fits dtype and shape; all of them together fill the buffer.
std::vector<TensorView> place_tensors(std::vector<Entry>&& entries, std::span<const u8> buffer) {
  std::vector<TensorView> tensors;
  tensors.reserve(entries.size());
  std::vector<std::pair<std::array<u64, 2>, size_t>> ranges;
  for (Entry& e : entries) {
    const std::string name = printable(e.name);
    if (!is_valid_name(e.name)) damaged("wrong tensor name, got '{}'", name);
    const u64 begin = e.offsets[0], end = e.offsets[1];
    if (begin > end || end > buffer.size())
      damaged("'{}' has wrong data_offsets, got [{}, {}], expected a range of {} bytes", name,
              begin, end, buffer.size());
    const std::optional<u64> expected = checked_bytes(*e.shape, *e.dtype);
    if (expected != end - begin)
      damaged("size mismatch for \"{}\", got {} bytes, expected {} for {} {}", name, end - begin,
              expected ? fmt::to_string(*expected) : "an impossible number", token(*e.dtype),
              *e.shape);
    ranges.push_back({{begin, end}, tensors.size()});
    tensors.push_back(
        {std::move(e.name), *e.dtype, std::move(*e.shape), buffer.subspan(begin, end - begin)});
  }
  std::ranges::sort(ranges);
  u64 cursor = 0;
  for (const auto& [range, index] : ranges) {
    if (range[0] != cursor)
      damaged("{} before '{}', got offset {}, expected {}", range[0] < cursor ? "overlap" : "hole",
              printable(tensors[index].name), range[0], cursor);
    cursor = range[1];
  }
  if (cursor != buffer.size())
    damaged("tensors do not fill the file, got {} bytes of values, expected {}", buffer.size(),
            cursor);
  return tensors;
}

// Header length, header and the order in which the values follow.
struct Encoded {
  std::vector<u8> head;
  std::vector<size_t> order;
};

void check_metadata(const Metadata& metadata) {
  std::unordered_set<std::string_view> keys;
  for (const auto& [key, text] : metadata) {
    if (!is_utf8_text(key) || !is_utf8_text(text))
      invalid(kWrite, "metadata '{}' is not UTF-8", printable(key));
    if (!keys.insert(key).second) invalid(kWrite, "metadata has the key '{}' twice", key);
  }
}

Encoded encode_head(std::span<const TensorView> tensors, const Metadata& metadata) {
  check_tensors(kWrite, tensors);
  check_metadata(metadata);
  Encoded out;
  out.order.resize(tensors.size());
  std::iota(out.order.begin(), out.order.end(), size_t{0});
  std::ranges::stable_sort(out.order, std::greater(),
                           [&](size_t i) { return size_bytes(tensors[i].dtype); });
  std::vector<u64> begins(tensors.size());
  u64 offset = 0;
  for (size_t i : out.order) {
    begins[i] = offset;
    offset += tensors[i].bytes.size();
  }

  std::string text = "{";
  const auto quoted = [](std::string_view s) { return json(s).dump(); };
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) text += quoted(key) + ":" + quoted(value) + ",";
    text.back() = '}';
    text += ',';
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorView& t = tensors[i];
    if (t.name == "__metadata__")
      invalid(kWrite, "a tensor cannot have the name '{}', which the format reserves", t.name);
    if (t.encoding != Encoding::Dense)
      invalid(kWrite, "'{}' is quantised, got {}, expected dense", t.name, token(t.encoding));
    const auto type = std::ranges::find(kTypes, t.dtype, &TypeName::dtype);
    if (type == std::end(kTypes))
      invalid(kWrite, "'{}' has a dtype that safetensors cannot hold, got {}", t.name,
              token(t.dtype));
    text += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}},",
                        quoted(t.name), type->name, fmt::join(t.shape, ","), begins[i],
                        begins[i] + t.bytes.size());
  }
  if (text.back() == ',') text.pop_back();
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMaxSafetensorsHeader)
    invalid(kWrite, "the header is too long, got {} bytes, expected at most {}", text.size(),
            kMaxSafetensorsHeader);
  out.head.resize(8 + text.size());
  const u64 length = text.size();
  std::memcpy(out.head.data(), &length, 8);
  std::memcpy(out.head.data() + 8, text.data(), text.size());
  return out;
}

}  // namespace

Safetensors parse_safetensors(std::span<const u8> bytes) {
  if (bytes.size() < 8) damaged("too short, got {} bytes, expected at least 8", bytes.size());
  u64 length;
  std::memcpy(&length, bytes.data(), 8);
  if (length > kMaxSafetensorsHeader)
    damaged("the header is too long, got {} bytes, expected at most {}", length,
            kMaxSafetensorsHeader);
  if (length > bytes.size() - 8)
    damaged("the header does not fit, got a length of {}, expected at most {}", length,
            bytes.size() - 8);
  const auto header = bytes.subspan(8, length);
  const std::string_view text(reinterpret_cast<const char*>(header.data()), header.size());
  if (!text.starts_with('{')) damaged("the header does not start with '{{'");
  if (!is_utf8_text(text)) damaged("the header is not UTF-8");
  HeaderReader reader;
  json::sax_parse(text, &reader);
  return {place_tensors(std::move(reader.entries), bytes.subspan(8 + length)),
          std::move(reader.metadata)};
}

void write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                       const Metadata& metadata, Durability durability) {
  const Encoded encoded = encode_head(tensors, metadata);
  AtomicFile file(path, durability);
  file.write(encoded.head);
  for (size_t i : encoded.order) file.write(tensors[i].bytes);
  file.commit();
}

std::vector<u8> encode_safetensors(std::span<const TensorView> tensors, const Metadata& metadata) {
  Encoded encoded = encode_head(tensors, metadata);
  for (size_t i : encoded.order)
    encoded.head.insert(encoded.head.end(), tensors[i].bytes.begin(), tensors[i].bytes.end());
  return std::move(encoded.head);
}

}  // namespace oa::ml
