// Writing .oam files: the content is checked, laid out as sections made of pieces, and streamed.
#include <array>

#include "oa/core/error.h"
#include "oa/core/utf8.h"
#include "oa/ml/checkpoint/oam.h"
#include "oa/ml/checkpoint/oam_layout.h"
#include "oa/ml/checkpoint/quantize.h"

namespace oa::ml {

namespace {

using namespace oam;

constexpr std::string_view kOp = "write_oam";

// A payload: its own head and then bytes of others, in order.
struct Payload {
  Section type;
  std::vector<u8> head;
  std::vector<std::span<const u8>> values = {};
  bool padded = false;  // up to a multiple of a page, counted from its own beginning

  u64 size() const {
    u64 n = head.size();
    for (const auto& v : values) n += v.size();
    return n;
  }
  u64 extent() const { return padded ? align_page(size()) : size(); }
  u64 checksum() const {
    u64 hash = fnv1a(head);
    for (const auto& v : values) hash = fnv1a(v, hash);
    return hash;
  }
};

void store_text(std::span<u8> field, std::string_view text) {
  std::memcpy(field.data(), text.data(), text.size());
}

void check_text(std::string_view what, std::string_view text, u64 field) {
  if (text.size() >= field || text.find('\0') != text.npos || !is_utf8_text(text))
    invalid(kOp, "wrong {}, got '{}', expected UTF-8 of at most {} bytes without NUL", what,
            printable(text), field - 1);
}

void check_dtype(std::string_view what, FileDType dtype) {
  if (static_cast<u8>(dtype) >= kOamDTypes)
    invalid(kOp, "{} has a dtype that .oam files cannot hold, got {}", what, token(dtype));
}

void check_section(std::span<const TensorView> tensors, Section section) {
  check_tensors(kOp, tensors);
  if (tensors.size() > 0xffffffffu)
    invalid(kOp, "too many tensors, got {}, expected at most 2^32 - 1", tensors.size());
  for (const TensorView& t : tensors) {
    if (t.name.size() >= kTensorName)
      invalid(kOp, "name is too long, got {} bytes for '{}', expected at most {}", t.name.size(),
              printable(t.name), kTensorName - 1);
    if (t.shape.rank() > kMaxRank)
      invalid(kOp, "'{}' has too many axes, got {}, expected at most {}", t.name, t.shape.rank(),
              kMaxRank);
    check_dtype("'" + t.name + "'", t.dtype);
    if (section == State && t.encoding != Encoding::Dense)
      invalid(kOp, "state '{}' is quantised, got {}, expected dense", t.name, token(t.encoding));
  }
}

Payload tensor_payload(std::span<const TensorView> tensors, Section section) {
  check_section(tensors, section);
  Payload p{.type = section, .head = {}, .padded = true};
  p.head.resize(kTensorHeadBytes + tensors.size() * kTensorEntryBytes);
  store(std::span(p.head), 0, static_cast<u32>(tensors.size()));
  u64 offset = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorView& t = tensors[i];
    const auto e =
        std::span(p.head).subspan(kTensorHeadBytes + i * kTensorEntryBytes, kTensorEntryBytes);
    store_text(e, t.name);
    store(e, 128, offset);
    store(e, 136, static_cast<u64>(t.bytes.size()));
    e[144] = static_cast<u8>(t.dtype);
    e[145] = static_cast<u8>(t.shape.rank());
    e[146] = static_cast<u8>(t.encoding);
    e[147] = t.encoding == Encoding::Dense ? 0 : static_cast<u8>(kQuantBlock);
    for (u32 d = 0; d < t.shape.rank(); ++d) store(e, 152 + 8 * d, static_cast<u64>(t.shape[d]));
    p.values.push_back(t.bytes);
    offset += t.bytes.size();
  }
  return p;
}

Payload config_payload(const OamConfig& c) {
  check_text("name of the architecture", c.architecture, kConfigName);
  for (FileDType t : {c.weight_dtype, c.state_dtype, c.compute_dtype}) check_dtype("config", t);
  if (c.extra.size() > 0xffffffffu)
    invalid(kOp, "extra configuration is too long, got {} bytes", c.extra.size());
  Payload p{.type = Config, .head = std::vector<u8>(kConfigBytes), .values = {c.extra}};
  const std::span<u8> h(p.head);
  store_text(h, c.architecture);
  store(h, 32, c.version);
  store(h, 36, c.flags);
  store(h, 40, c.d_model);
  store(h, 44, c.n_layers);
  store(h, 48, c.d_vocab);
  store(h, 52, static_cast<u32>(c.extra.size()));
  h[56] = static_cast<u8>(c.weight_dtype);
  h[57] = static_cast<u8>(c.state_dtype);
  h[58] = static_cast<u8>(c.compute_dtype);
  return p;
}

Payload optimizer_payload(const OamOptimizer& o) {
  const bool both = o.kind == "MuonAdamW", adam = o.kind == "Adam" || o.kind == "AdamW" || both;
  if (!adam && o.kind != "SGD" && o.kind != "Muon")
    invalid(kOp, "unknown optimizer, got '{}', expected SGD, Adam, AdamW, Muon or MuonAdamW",
            printable(o.kind));
  const bool fits = o.first.size() % 4 == 0 && o.muon.size() % 4 == 0 &&
                    o.second.size() == (adam ? o.first.size() : 0) && (both || o.muon.empty());
  if (!fits)
    invalid(kOp, "moments do not fit {}, got {}, {} and {} bytes", o.kind, o.first.size(),
            o.second.size(), o.muon.size());
  Payload p{.type = Optimizer,
            .head = std::vector<u8>(kOptimizerBytes),
            .values = {o.first, o.second, o.muon}};
  const std::span<u8> h(p.head);
  store_text(h, o.kind);
  store(h, 16, o.learning_rate);
  store(h, 20, o.beta1);
  store(h, 24, o.beta2);
  store(h, 28, o.epsilon);
  store(h, 32, o.weight_decay);
  store(h, 36, o.step);
  store(h, 44, static_cast<u64>(o.first.size() / 4));
  store(h, 52, static_cast<u64>(o.muon.size() / 4));
  return p;
}

Payload progress_payload(const OamProgress& p) {
  check_text("name of the metric", p.metric_name, kMetricName);
  Payload out{.type = Progress, .head = std::vector<u8>(kProgressBytes)};
  const std::span<u8> h(out.head);
  h[0] = p.phase;
  store(h, 4, p.step);
  store(h, 12, p.bytes_seen);
  store(h, 20, p.environment_steps);
  store(h, 28, p.learning_rate);
  store(h, 32, p.best_metric);
  h[36] = p.lower_is_better;
  store_text(h.subspan(kMetricNameAt), p.metric_name);
  return out;
}

// The whole content, checked, in file order.
std::vector<Payload> layout(const Oam& content) {
  std::vector<Payload> all;
  all.push_back(config_payload(content.config));
  if (!content.weights.empty()) all.push_back(tensor_payload(content.weights, Weights));
  if (!content.state.empty()) all.push_back(tensor_payload(content.state, State));
  if (content.optimizer) all.push_back(optimizer_payload(*content.optimizer));
  all.push_back(progress_payload(content.progress));
  return all;
}

// Header and table, filled up to the first payload.
std::vector<u8> encode_table(std::span<const Payload> payloads) {
  const u64 table_end = kHeaderBytes + payloads.size() * kTableEntryBytes;
  std::vector<u8> bytes(align_page(table_end));
  const std::span<u8> out(bytes);
  u64 offset = bytes.size();
  for (size_t i = 0; i < payloads.size(); ++i) {
    const auto row = out.subspan(kHeaderBytes + i * kTableEntryBytes, kTableEntryBytes);
    store(row, 0, static_cast<u32>(payloads[i].type));
    store(row, kSectionOffsetAt, offset);
    store(row, kSectionSizeAt, payloads[i].size());
    store(row, kSectionChecksumAt, payloads[i].checksum());
    offset += payloads[i].extent();
  }
  store(out, 0, kMagic);
  store(out, 4, kVersion);
  store(out, 8, static_cast<u32>(payloads.size()));
  store(out, kTotalSizeAt, offset);
  store(out, kChecksumAt, fnv1a(out.first(table_end)));  // its own field is still zero
  return bytes;
}

// Hands the file to `write` in pieces.
template <class Write>
void stream(const Oam& content, Write write) {
  static constexpr std::array<u8, kPage> kZeros{};
  const std::vector<Payload> payloads = layout(content);
  write(std::span<const u8>(encode_table(payloads)));
  for (const Payload& p : payloads) {
    write(std::span<const u8>(p.head));
    for (const auto& v : p.values) write(v);
    write(std::span(kZeros).first(p.extent() - p.size()));
  }
}

}  // namespace

std::span<const u8> Oam::own(std::vector<u8> bytes) {
  const auto held = std::make_shared<const std::vector<u8>>(std::move(bytes));
  owned.push_back(held);
  return *held;
}

void Oam::add_weight(std::string name, FileDType dtype, Shape shape, std::vector<u8> bytes) {
  weights.push_back({std::move(name), dtype, std::move(shape), own(std::move(bytes))});
}

void Oam::add_state(std::string name, FileDType dtype, Shape shape, std::vector<u8> bytes) {
  state.push_back({std::move(name), dtype, std::move(shape), own(std::move(bytes))});
}

void Oam::add_state(std::string name, u32 value) {
  std::vector<u8> bytes(sizeof value);
  store(std::span(bytes), 0, value);
  add_state(std::move(name), FileDType::U32, Shape(), std::move(bytes));
}

std::vector<u8> encode_oam(const Oam& content) {
  std::vector<u8> bytes;
  stream(content,
         [&](std::span<const u8> piece) { bytes.insert(bytes.end(), piece.begin(), piece.end()); });
  return bytes;
}

void write_oam(const std::filesystem::path& path, const Oam& content, Durability durability) {
  std::optional<AtomicFile> file;
  stream(content, [&](std::span<const u8> piece) {
    if (!file) file.emplace(path, durability);  // the first piece comes after all checks
    file->write(piece);
  });
  file->commit();
}

Oam quantized(const Oam& content, Encoding encoding) {
  if (encoding == Encoding::Dense) invalid("quantized", "got dense, expected q4 or q8");
  check_tensors("quantized", content.weights);
  Oam out = content;
  out.optimizer.reset();
  for (TensorView& t : out.weights) {
    const bool fits = t.encoding == Encoding::Dense && t.dtype == FileDType::F32 &&
                      t.shape.rank() >= 2 && !t.bytes.empty();
    if (!fits) continue;
    t.bytes = out.own(quantize(t.bytes, encoding));
    t.encoding = encoding;
  }
  return out;
}

}  // namespace oa::ml
