// Each kind of file fills the same list and gives a function that loads values.
#include "oa/ml/checkpoint/tensor_file.h"

#include <algorithm>
#include <cstring>

#include "oa/core/error.h"
#include "oa/core/utf8.h"
#include "oa/ml/checkpoint/npz.h"
#include "oa/ml/checkpoint/quantize.h"

namespace oa::ml {

namespace {

bool starts_with(std::span<const u8> bytes, std::string_view magic) {
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

TensorInfo info_of(const TensorView& t, bool state = false) {
  return {t.name, t.dtype, t.shape, t.bytes.size(), std::string(token(t.encoding)), state};
}

std::string storage_of(const NpyHeader& h, bool deflated) {
  std::string text;
  const auto add = [&](bool applies, std::string_view word) {
    if (applies) text += (text.empty() ? "" : ", ") + std::string(word);
  };
  add(deflated, "deflate");
  add(h.big_endian, "big-endian");
  add(h.column_major, "column-major");
  return text.empty() ? "dense" : text;
}

NpyHeader read_npy(std::span<const u8> bytes) {
  const NpyHeader h = parse_npy_header(bytes);
  if (const u64 found = bytes.size() - h.values_at; found != h.values_bytes)
    fail(ErrorKind::DataLoss, "read_npy", "wrong number of bytes, got {}, expected {} for {} {}",
         found, h.values_bytes, token(h.dtype), h.shape);
  return h;
}

}  // namespace

std::string_view token(FileKind kind) {
  constexpr std::string_view names[] = {"oam", "safetensors", "npy", "npz"};
  return names[static_cast<size_t>(kind)];
}

std::optional<FileKind> detect_kind(std::span<const u8> bytes) {
  using namespace std::string_view_literals;
  if (starts_with(bytes, "OAM\0"sv)) return FileKind::Oam;
  if (starts_with(bytes, "\x93NUMPY"sv)) return FileKind::Npy;
  if (starts_with(bytes, "PK\x03\x04"sv) || starts_with(bytes, "PK\x05\x06"sv))
    return FileKind::Npz;
  if (bytes.size() > 8 && bytes[8] == '{') return FileKind::Safetensors;
  return std::nullopt;
}

std::optional<FileKind> kind_of(const std::filesystem::path& path) {
  const std::string ending = path.extension().string();
  for (FileKind kind : {FileKind::Oam, FileKind::Safetensors, FileKind::Npy, FileKind::Npz})
    if (ending == fmt::format(".{}", token(kind))) return kind;
  return std::nullopt;
}

TensorFile TensorFile::parse(std::span<const u8> bytes, std::shared_ptr<const void> owner) {
  const std::optional<FileKind> kind = detect_kind(bytes);
  if (!kind)
    invalid("read_tensors", "unknown kind of file, expected .oam, safetensors, .npy or .npz");
  TensorFile file;
  file.kind_ = *kind;
  file.file_bytes_ = bytes.size();
  file.owner_ = owner;

  // Views into the file need no more than it; what is decoded owns its bytes.
  const auto view = [owner](std::span<const u8> values) {
    TensorBytes out;
    out.bytes_ = values;
    out.owner_ = owner;
    return out;
  };
  const auto own = [](std::vector<u8> values) {
    const auto held = std::make_shared<const std::vector<u8>>(std::move(values));
    TensorBytes out;
    out.bytes_ = *held;
    out.owner_ = held;
    return out;
  };
  const auto load_views = [&](std::vector<TensorView> views) {
    return [views = std::move(views), view, own](size_t i) {
      const TensorView& t = views[i];
      if (t.encoding == Encoding::Dense) return view(t.bytes);
      return own(dequantize(t.bytes, *checked_elements(t.shape), t.encoding));
    };
  };

  switch (*kind) {
    case FileKind::Oam: {
      Oam& oam = file.oam_.emplace(parse_oam(bytes));
      oam.owned.push_back(owner);
      std::vector<TensorView> all = oam.weights;
      all.insert(all.end(), oam.state.begin(), oam.state.end());
      for (size_t i = 0; i < all.size(); ++i)
        file.infos_.push_back(info_of(all[i], i >= oam.weights.size()));
      file.load_ = load_views(std::move(all));
      break;
    }
    case FileKind::Safetensors: {
      Safetensors content = parse_safetensors(bytes);
      for (const TensorView& t : content.tensors) file.infos_.push_back(info_of(t));
      file.metadata_ = std::move(content.metadata);
      file.load_ = load_views(std::move(content.tensors));
      break;
    }
    case FileKind::Npy: {
      const NpyHeader h = read_npy(bytes);
      file.infos_.push_back({"array", h.dtype, h.shape, h.values_bytes, storage_of(h, false)});
      file.load_ = [h, view, own, values = bytes.subspan(h.values_at)](size_t) {
        return is_plain(h) ? view(values) : own(plain_values(h, values));
      };
      break;
    }
    case FileKind::Npz: {
      const auto reader = std::make_shared<NpzReader>(bytes);
      for (const NpzMember& m : reader->members())
        file.infos_.push_back({m.name, m.header.dtype, m.header.shape, m.stored_bytes,
                               storage_of(m.header, m.deflated)});
      file.load_ = [reader, view, own](size_t i) {
        std::vector<u8> memory;
        const auto values = reader->values(i, memory);
        return values.data() == memory.data() ? own(std::move(memory)) : view(values);
      };
      break;
    }
  }
  return file;
}

TensorFile TensorFile::open(const std::filesystem::path& path) {
  const SharedFile mapped(path);
  try {
    return parse(mapped.bytes(), mapped.owner());
  } catch (const Error& e) {
    throw Error(e.kind(), e.op(), fmt::format("{}, in '{}'", e.message(), path.string()));
  }
}

std::optional<size_t> TensorFile::find(std::string_view name) const {
  const auto at = std::ranges::find(infos_, name, &TensorInfo::name);
  if (at == infos_.end()) return std::nullopt;
  return static_cast<size_t>(at - infos_.begin());
}

TensorBytes TensorFile::values(size_t index) const {
  if (index >= infos_.size())
    fail(ErrorKind::OutOfRange, "values", "no such tensor, got index {}, expected below {}", index,
         infos_.size());
  return load_(index);
}

TensorBytes TensorFile::values(std::string_view name) const {
  const std::optional<size_t> index = find(name);
  if (!index) fail(ErrorKind::NotFound, "values", "no tensor named '{}'", printable(name));
  return load_(*index);
}

void write_tensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                   const Metadata& metadata, Durability durability) {
  constexpr std::string_view op = "write_tensors";
  const std::optional<FileKind> kind = kind_of(path);
  if (!kind)
    invalid(op, "unknown kind of file, got '{}', expected .oam, .safetensors, .npy or .npz",
            path.string());
  if (!metadata.empty() && *kind != FileKind::Safetensors)
    invalid(op, "only safetensors files hold metadata, got '{}'", path.string());
  switch (*kind) {
    case FileKind::Oam: {
      Oam oam;
      oam.weights.assign(tensors.begin(), tensors.end());
      return write_oam(path, oam, durability);
    }
    case FileKind::Safetensors: return write_safetensors(path, tensors, metadata, durability);
    case FileKind::Npz: return write_npz(path, tensors, Compression::Store, durability);
    case FileKind::Npy:
      if (tensors.size() != 1) invalid(op, "an .npy holds one tensor, got {}", tensors.size());
      return write_npy(path, tensors[0], durability);
  }
}

}  // namespace oa::ml
