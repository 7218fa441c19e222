// The header is believed only as far as the file bears it out.
#include "oa/ml/data/idx.h"

#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "oa/core/error.h"
#include "oa/core/mapped_file.h"

namespace oa::ml::data {

namespace {

constexpr std::string_view op = "IDX";
constexpr u32 kMostAxes = 8;

// The bytes of a file from the front, unpacked if they are packed.
class Source {
 public:
  explicit Source(std::span<const u8> file) : rest_(file) {
    packed_ = file.size() >= 2 && file[0] == 0x1f && file[1] == 0x8b;
    if (packed_ && inflateInit2(&stream_, 15 + 16) != Z_OK)
      fail(ErrorKind::ResourceExhausted, op, "zlib has no memory");
  }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  ~Source() {
    if (packed_) inflateEnd(&stream_);
  }

  // As many bytes as there are, at most out.size().
  size_t read(std::span<u8> out) {
    if (packed_) return unpack(out);
    const size_t count = std::min(out.size(), rest_.size());
    std::copy_n(rest_.begin(), count, out.begin());
    rest_ = rest_.subspan(count);
    return count;
  }

 private:
  size_t unpack(std::span<u8> out) {
    size_t count = 0;
    while (count < out.size()) {
      if (at_end_) {
        // Several packed parts may follow each other.
        if (rest_.empty()) break;
        inflateReset(&stream_);
        at_end_ = false;
      }
      constexpr size_t kMost = std::numeric_limits<uInt>::max();
      stream_.next_in = const_cast<u8*>(rest_.data());
      stream_.avail_in = static_cast<uInt>(std::min(rest_.size(), kMost));
      stream_.next_out = out.data() + count;
      stream_.avail_out = static_cast<uInt>(std::min(out.size() - count, kMost));
      const uInt space = stream_.avail_out, input = stream_.avail_in;
      const int status = inflate(&stream_, Z_NO_FLUSH);
      count += space - stream_.avail_out;
      rest_ = rest_.subspan(input - stream_.avail_in);
      at_end_ = status == Z_STREAM_END;
      if (at_end_ || status == Z_OK) continue;
      if (status == Z_BUF_ERROR && rest_.empty())
        fail(ErrorKind::DataLoss, op, "the gzip data end in the middle");
      fail(ErrorKind::DataLoss, op, "the gzip data are damaged: {}",
           stream_.msg ? stream_.msg : "unknown reason");
    }
    return count;
  }

  std::span<const u8> rest_;
  bool packed_ = false;
  bool at_end_ = false;
  z_stream stream_{};
};

u32 big_endian(const u8* bytes) {
  return u32{bytes[0]} << 24 | u32{bytes[1]} << 16 | u32{bytes[2]} << 8 | bytes[3];
}

struct Kind {
  DType dtype;
  u32 width;    // bytes in the file
  bool widens;  // to I32
};

Kind kind_of(u8 code) {
  switch (code) {
    case 0x08: return {DType::U8, 1, false};
    case 0x09: return {DType::I32, 1, true};
    case 0x0b: return {DType::I32, 2, true};
    case 0x0c: return {DType::I32, 4, false};
    case 0x0d: return {DType::F32, 4, false};
    case 0x0e: return {DType::F64, 8, false};
    default:
      fail(ErrorKind::DataLoss, op, "unknown type of elements, got {:#04x}, expected 0x08 to 0x0e",
           code);
  }
}

std::vector<u8> widened(std::span<const u8> data, u32 width) {
  std::vector<u8> result(data.size() / width * 4);
  for (size_t i = 0; i < data.size() / width; ++i) {
    const u8* at = &data[i * width];
    const i32 value = width == 1 ? static_cast<i8>(at[0]) : static_cast<i16>(at[0] << 8 | at[1]);
    std::memcpy(&result[4 * i], &value, 4);
  }
  return result;
}

}  // namespace

u64 IdxArray::elements() const {
  u64 product = 1;
  for (const u64 extent : extents) product *= extent;
  return product;
}

IdxArray parse_idx(std::span<const u8> file) {
  Source source(file);
  u8 head[4 + 4 * kMostAxes];
  if (source.read(std::span(head).first(4)) != 4 || head[0] != 0 || head[1] != 0)
    fail(ErrorKind::DataLoss, op,
         "it does not begin like an IDX file, expected two zero bytes, type and axes");
  const Kind kind = kind_of(head[2]);
  const u32 axes = head[3];
  if (axes == 0 || axes > kMostAxes)
    fail(ErrorKind::DataLoss, op, "got {} axes, expected 1 to {}", axes, kMostAxes);
  if (source.read(std::span(head).subspan(4, 4 * axes)) != 4 * axes)
    fail(ErrorKind::DataLoss, op, "it ends within the extents of its {} axes", axes);
  IdxArray array;
  array.dtype = kind.dtype;
  // A zero anywhere makes the array empty, but what is beside it must still be a size.
  u64 bytes = kind.width;
  bool empty = false;
  for (u32 i = 0; i < axes; ++i) {
    const u64 extent = big_endian(head + 4 + 4 * i);
    array.extents.push_back(extent);
    empty |= extent == 0;
    if (extent != 0 && __builtin_mul_overflow(bytes, extent, &bytes))
      fail(ErrorKind::DataLoss, op,
           "its extents are no size of an array, got more than 2^64 bytes");
  }
  if (empty) bytes = 0;

  // Grows with what is there, as the header may lie.
  constexpr u64 kStep = u64{1} << 20;
  std::vector<u8>& data = array.data;
  while (data.size() < bytes) {
    const size_t before = data.size();
    data.resize(before + std::min<u64>(bytes - before, std::max<u64>(kStep, before)));
    const size_t count = source.read(std::span(data).subspan(before));
    if (count < data.size() - before)
      fail(ErrorKind::DataLoss, op, "it is cut off, got {} bytes of elements, expected {}",
           before + count, bytes);
  }
  u8 more;
  if (source.read({&more, 1}) != 0)
    fail(ErrorKind::DataLoss, op,
         "it is longer than its header says, expected {} bytes of elements", bytes);

  if (kind.widens) {
    data = widened(data, kind.width);
  } else if (kind.width > 1 && std::endian::native == std::endian::little) {
    for (size_t at = 0; at < data.size(); at += kind.width)
      std::reverse(data.begin() + static_cast<std::ptrdiff_t>(at),
                   data.begin() + static_cast<std::ptrdiff_t>(at + kind.width));
  }
  return array;
}

IdxArray load_idx(const std::filesystem::path& path) {
  const MappedFile file(path);
  try {
    return parse_idx(file.bytes());
  } catch (const Error& e) {
    fail(e.kind(), op, "'{}': {}", path.string(), e.message());
  }
}

LabeledImages load_idx_images(const std::filesystem::path& images,
                              const std::filesystem::path& labels) {
  IdxArray pixels = load_idx(images), classes = load_idx(labels);
  if (pixels.dtype != DType::U8 || pixels.extents.size() != 3)
    fail(ErrorKind::DataLoss, op, "'{}' holds no images, got {} axes of {}, expected 3 of u8",
         images.string(), pixels.extents.size(), token(pixels.dtype));
  if (classes.dtype != DType::U8 || classes.extents.size() != 1)
    fail(ErrorKind::DataLoss, op, "'{}' holds no labels, got {} axes of {}, expected 1 of u8",
         labels.string(), classes.extents.size(), token(classes.dtype));
  if (pixels.extents[0] != classes.extents[0])
    fail(ErrorKind::DataLoss, op, "'{}' has {} images, but '{}' has {} labels", images.string(),
         pixels.extents[0], labels.string(), classes.extents[0]);
  return {pixels.extents[0], pixels.extents[1], pixels.extents[2], std::move(pixels.data),
          std::move(classes.data)};
}

}  // namespace oa::ml::data
