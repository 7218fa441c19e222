// Reading .oam files: integrity first (header, table, payloads, padding), then one parser a
// section.
#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "oa/core/error.h"
#include "oa/core/utf8.h"
#include "oa/ml/checkpoint/oam.h"
#include "oa/ml/checkpoint/oam_layout.h"
#include "oa/ml/checkpoint/quantize.h"

namespace oa::ml {

namespace {

using namespace oam;

template <class... Args>
[[noreturn]] void corrupt(fmt::format_string<Args...> text, Args&&... args) {
  fail(ErrorKind::CheckpointCorrupt, "read_oam", "corrupt .oam: {}",
       fmt::format(text, std::forward<Args>(args)...));
}

struct Range {
  u64 begin, end;
};

struct SectionEntry {
  u32 type;
  Range range;
  u64 checksum;
};

struct Image {
  u32 version;
  std::vector<SectionEntry> sections;  // in table order
  const SectionEntry* find(u32 type) const {
    const auto at = std::ranges::find(sections, type, &SectionEntry::type);
    return at == sections.end() ? nullptr : &*at;
  }
};

// The NUL-terminated text in a field of fixed width.
std::string text_field(std::span<const u8> field, std::string_view what) {
  const auto end = std::ranges::find(field, u8{0});
  if (end == field.end()) corrupt("{} has no end, expected a NUL in {} bytes", what, field.size());
  std::string text(field.begin(), end);
  if (!is_utf8_text(text)) corrupt("{} is not UTF-8, got '{}'", what, printable(text));
  return text;
}

void check_manifest(std::span<const u8> file, u64 table_end) {
  u8 header[kHeaderBytes];
  std::memcpy(header, file.data(), kHeaderBytes);
  std::memset(header + kChecksumAt, 0, 8);
  const u64 found = fnv1a(file.subspan(kHeaderBytes, table_end - kHeaderBytes), fnv1a(header));
  const u64 stored = load<u64>(file, kChecksumAt);
  if (found != stored)
    corrupt("checksum of header and table, got {:016x}, expected {:016x}", found, stored);
}

SectionEntry read_entry(std::span<const u8> file, std::span<const u8> row, u32 index, u64 first) {
  const u32 type = load<u32>(row, 0);
  if (type < Config || type > KernelCache)
    corrupt("section {} has an unknown type, got {}, expected 1 to 6", index, type);
  const std::string_view name = kSectionNames[type];
  if (row[4] != 0) corrupt("{} section is compressed, got method {}, expected 0", name, row[4]);
  if (const u64 packed = load<u64>(row, kSectionPackedAt); packed != 0)
    corrupt("{} section has a compressed size, got {}, expected 0", name, packed);
  const u64 offset = load<u64>(row, kSectionOffsetAt), size = load<u64>(row, kSectionSizeAt);
  if (offset < first || offset > file.size() || size > file.size() - offset)
    corrupt("{} section lies outside, got {} bytes at {}, expected from {} to {}", name, size,
            offset, first, file.size());
  return {type, {offset, offset + size}, load<u64>(row, kSectionChecksumAt)};
}

void check_zeros(std::span<const u8> file, u64 begin, u64 end) {
  for (u64 at = begin; at < end; ++at)
    if (file[at] != 0) corrupt("padding at {} is not zero, got {}", at, file[at]);
}

// Checks that sections do not overlap and that nothing is written between them.
void check_layout(std::span<const u8> file, const Image& image, u64 table_end) {
  std::vector<Range> ranges;
  for (const SectionEntry& s : image.sections) ranges.push_back(s.range);
  std::ranges::sort(ranges, {}, [](const Range& r) { return std::pair(r.begin, r.end); });
  u64 cursor = table_end;
  for (const Range& r : ranges) {
    if (r.begin < cursor) corrupt("sections overlap at {}", r.begin);
    cursor = r.end;
  }
  cursor = table_end;
  for (const Range& r : ranges) {
    check_zeros(file, cursor, r.begin);
    cursor = r.end;
  }
  check_zeros(file, cursor, file.size());
}

Image check_integrity(std::span<const u8> file) {
  if (file.size() < kHeaderBytes)
    corrupt("too short, got {} bytes, expected at least {}", file.size(), kHeaderBytes);
  if (const u32 magic = load<u32>(file, 0); magic != kMagic)
    corrupt("wrong magic number, got {:08x}, expected {:08x}", magic, kMagic);
  Image image{.version = load<u32>(file, 4), .sections = {}};
  if (image.version < 1 || image.version > kVersion)
    corrupt("unknown version, got {}, expected 1 to {}", image.version, kVersion);
  const u32 count = load<u32>(file, 8);
  if (count < 1 || count > kMaxSections)
    corrupt("wrong number of sections, got {}, expected 1 to {}", count, kMaxSections);
  if (const u64 total = load<u64>(file, kTotalSizeAt); total != file.size())
    corrupt("wrong size, got {} bytes, expected {}", file.size(), total);
  const u64 table_end = kHeaderBytes + count * kTableEntryBytes;
  if (table_end > file.size())
    corrupt("too short for its table, got {} bytes, expected at least {}", file.size(), table_end);
  if (image.version >= 2) check_manifest(file, table_end);

  u64 all = 0;
  for (u32 i = 0; i < count; ++i) {
    const auto row = file.subspan(kHeaderBytes + i * kTableEntryBytes, kTableEntryBytes);
    const u32 type = load<u32>(row, 0);
    if (image.find(type)) corrupt("section {} comes twice", type);
    const SectionEntry s = read_entry(file, row, i, align_page(table_end));
    const u64 found = fnv1a(file.subspan(s.range.begin, s.range.end - s.range.begin));
    if (found != s.checksum)
      corrupt("checksum of the {} section, got {:016x}, expected {:016x}", kSectionNames[s.type],
              found, s.checksum);
    all ^= found;
    image.sections.push_back(s);
  }
  check_layout(file, image, table_end);
  if (const u64 stored = load<u64>(file, kChecksumAt); image.version == 1 && all != stored)
    corrupt("checksum of all sections, got {:016x}, expected {:016x}", all, stored);
  for (u32 needed : {Config, Progress})
    if (!image.find(needed)) corrupt("{} section is missing", kSectionNames[needed]);
  return image;
}

FileDType dtype_code(u8 code, std::string_view what) {
  if (code >= kOamDTypes)
    corrupt("{} has an unknown dtype, got {}, expected 0 to {}", what, code, kOamDTypes - 1);
  return static_cast<FileDType>(code);
}

OamConfig parse_config(std::span<const u8> s) {
  if (s.size() < kConfigBytes)
    corrupt("config section is too short, got {} bytes, expected at least {}", s.size(),
            kConfigBytes);
  OamConfig c;
  c.architecture = text_field(s.first(kConfigName), "name of the architecture");
  c.version = load<u32>(s, 32);
  c.flags = load<u32>(s, 36);
  c.d_model = load<u32>(s, 40);
  c.n_layers = load<u32>(s, 44);
  c.d_vocab = load<u32>(s, 48);
  c.weight_dtype = dtype_code(s[56], "config");
  c.state_dtype = dtype_code(s[57], "config");
  c.compute_dtype = dtype_code(s[58], "config");
  if (const u64 expected = kConfigBytes + load<u32>(s, 52); s.size() != expected)
    corrupt("config section has a wrong size, got {}, expected {}", s.size(), expected);
  c.extra = s.subspan(kConfigBytes);
  return c;
}

// One 216-byte entry; its range in the blob is checked by the caller.
TensorView parse_entry(std::span<const u8> e, Section section, u32 version, u32 index) {
  const std::string where = fmt::format("{} entry {}", kSectionNames[section], index);
  TensorView t;
  t.name = text_field(e.first(kTensorName), "name of " + where);
  if (t.name.empty()) corrupt("{} has an empty name", where);
  t.dtype = dtype_code(e[144], where);
  const u32 rank = e[145];
  if (rank > kMaxRank)
    corrupt("{} has a wrong rank, got {}, expected 0 to {}", where, rank, kMaxRank);
  const u8 encoding = e[146], block = e[147];
  const bool may_quantize = section == Weights && version >= 3;
  if (encoding > (may_quantize ? 2 : 0))
    corrupt("{} has an unknown encoding, got {}, expected {}", where, encoding,
            may_quantize ? "0 to 2" : "0");
  t.encoding = static_cast<Encoding>(encoding);
  if (const u64 expected = encoding ? kQuantBlock : 0; block != expected)
    corrupt("{} has a wrong block size, got {}, expected {}", where, block, expected);
  if (encoding && t.dtype != FileDType::F32)
    corrupt("{} is quantised, got {}, expected f32", where, token(t.dtype));
  if (load<u32>(e, 148) != 0) corrupt("{} has reserved bytes that are not zero", where);
  for (u32 d = 0; d < rank; ++d) {
    const u64 extent = load<u64>(e, 152 + 8 * d);
    if (extent >> 63) corrupt("{} has an impossible extent, got {}", where, extent);
    t.shape.push_back(static_cast<i64>(extent));
  }
  return t;
}

void check_no_overlap(std::vector<Range> ranges, Section section) {
  std::erase_if(ranges, [](const Range& r) { return r.begin == r.end; });
  std::ranges::sort(ranges, {}, &Range::begin);
  for (size_t i = 1; i < ranges.size(); ++i)
    if (ranges[i].begin < ranges[i - 1].end)
      corrupt("tensors of the {} section overlap at {}", kSectionNames[section], ranges[i].begin);
}

std::vector<TensorView> parse_tensors(std::span<const u8> s, Section section, u32 version) {
  const std::string_view name = kSectionNames[section];
  if (s.size() < kTensorHeadBytes)
    corrupt("{} section is too short, got {} bytes, expected at least {}", name, s.size(),
            kTensorHeadBytes);
  const u32 count = load<u32>(s, 0);
  if (load<u32>(s, 4) != 0) corrupt("{} section has reserved bytes that are not zero", name);
  if (count > (s.size() - kTensorHeadBytes) / kTensorEntryBytes)
    corrupt("{} section is too short, got {} bytes for {} entries", name, s.size(), count);
  const auto blob = s.subspan(kTensorHeadBytes + count * kTensorEntryBytes);

  std::vector<TensorView> tensors;
  tensors.reserve(count);
  std::unordered_set<std::string_view> names;
  std::vector<Range> ranges;
  for (u32 i = 0; i < count; ++i) {
    const auto entry = s.subspan(kTensorHeadBytes + i * kTensorEntryBytes, kTensorEntryBytes);
    TensorView& t = tensors.emplace_back(parse_entry(entry, section, version, i));
    if (!names.insert(t.name).second) corrupt("{} has two entries named '{}'", name, t.name);
    const u64 offset = load<u64>(entry, 128), size = load<u64>(entry, 136);
    if (offset > blob.size() || size > blob.size() - offset)
      corrupt("'{}' lies outside, got {} bytes at {}, expected up to {}", t.name, size, offset,
              blob.size());
    std::optional<u64> expected = checked_bytes(t.shape, t.dtype);
    if (expected && t.encoding != Encoding::Dense)
      expected =
          *expected ? std::optional(quantized_bytes(*expected / 4, t.encoding)) : std::nullopt;
    if (expected != size)
      corrupt("'{}' has a wrong number of bytes, got {}, expected {} for {} {} {}", t.name, size,
              expected ? fmt::to_string(*expected) : "an impossible number", token(t.encoding),
              token(t.dtype), t.shape);
    t.bytes = blob.subspan(offset, size);
    ranges.push_back({offset, offset + size});
  }
  check_no_overlap(std::move(ranges), section);
  return tensors;
}

OamOptimizer parse_optimizer(std::span<const u8> s) {
  if (s.size() < kOptimizerBytes)
    corrupt("optimizer section is too short, got {} bytes, expected at least {}", s.size(),
            kOptimizerBytes);
  OamOptimizer o;
  o.kind = text_field(s.first(kOptimizerName), "name of the optimizer");
  o.learning_rate = load<f32>(s, 16);
  o.beta1 = load<f32>(s, 20);
  o.beta2 = load<f32>(s, 24);
  o.epsilon = load<f32>(s, 28);
  o.weight_decay = load<f32>(s, 32);
  o.step = load<i64>(s, 36);
  const u64 n = load<u64>(s, 44);
  const bool both = o.kind == "MuonAdamW";
  const u64 n_muon = both ? load<u64>(s, 52) : 0;
  const auto values = s.subspan(kOptimizerBytes);
  u64 arrays;
  if (o.kind == "SGD" || o.kind == "Muon") {
    arrays = 1;
  } else if (o.kind == "Adam" || o.kind == "AdamW" || both) {
    arrays = 2;
  } else {
    corrupt("unknown optimizer, got '{}', expected SGD, Adam, AdamW, Muon or MuonAdamW",
            printable(o.kind));
  }
  // The first two bounds keep the sum below from wrapping around.
  const u64 room = values.size() / 4;
  if (n > room || n_muon > room || 4 * (arrays * n + n_muon) != values.size())
    corrupt(
        "optimizer section has a wrong size, got {} bytes of moments for {} values in {} arrays",
        values.size(), n, arrays);
  if (arrays >= 1) o.first = values.first(4 * n);
  if (arrays == 2) o.second = values.subspan(4 * n, 4 * n);
  o.muon = values.last(4 * n_muon);
  return o;
}

OamProgress parse_progress(std::span<const u8> s) {
  if (s.size() != kProgressBytes)
    corrupt("progress section has a wrong size, got {}, expected {}", s.size(), kProgressBytes);
  OamProgress p;
  p.phase = s[0];
  p.step = load<i64>(s, 4);
  p.bytes_seen = load<u64>(s, 12);
  p.environment_steps = load<u64>(s, 20);
  p.learning_rate = load<f32>(s, 28);
  p.best_metric = load<f32>(s, 32);
  p.lower_is_better = s[36] != 0;
  p.metric_name = text_field(s.subspan(kMetricNameAt, kMetricName), "name of the metric");
  return p;
}

}  // namespace

Oam parse_oam(std::span<const u8> bytes) {
  const Image image = check_integrity(bytes);
  const auto payload = [&](Section type) -> std::optional<std::span<const u8>> {
    const SectionEntry* s = image.find(type);
    if (!s) return std::nullopt;
    return bytes.subspan(s->range.begin, s->range.end - s->range.begin);
  };
  Oam content;
  content.version = image.version;
  content.config = parse_config(*payload(Config));
  if (const auto s = payload(Weights)) content.weights = parse_tensors(*s, Weights, image.version);
  if (const auto s = payload(State)) content.state = parse_tensors(*s, State, image.version);
  if (const auto s = payload(Optimizer)) content.optimizer = parse_optimizer(*s);
  content.progress = parse_progress(*payload(Progress));
  return content;
}

Oam read_oam(const std::filesystem::path& path) {
  const SharedFile file(path);
  try {
    Oam content = parse_oam(file.bytes());
    content.owned.push_back(file.owner());
    return content;
  } catch (const Error& e) {
    throw Error(e.kind(), e.op(), fmt::format("{}, in '{}'", e.message(), path.string()));
  }
}

}  // namespace oa::ml
