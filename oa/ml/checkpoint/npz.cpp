// The zip container through minizip, on memory when reading and on an AtomicFile when writing.
#include "oa/ml/checkpoint/npz.h"

#include <unzip.h>
#include <zip.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <unordered_set>

#include "oa/core/error.h"
#include "oa/core/utf8.h"

namespace oa::ml {

namespace {

constexpr std::string_view kRead = "read_npz", kWrite = "write_npz";
constexpr u64 kLocalHeader = 30;     // the least that a member takes beside its name and data
constexpr u64 kDeflateRatio = 1032;  // deflate cannot shrink data further
constexpr u16 kEncrypted = 1, kUtf8Names = 1 << 11;

template <class... Args>
[[noreturn]] void damaged(fmt::format_string<Args...> text, Args&&... args) {
  fail(ErrorKind::DataLoss, kRead, "{}", fmt::format(text, std::forward<Args>(args)...));
}

// Where a seek of minizip leads, or nothing for a place before the start.
std::optional<u64> seek_target(u64 position, u64 size, u64 offset, int origin) {
  const u64 base = origin == ZLIB_FILEFUNC_SEEK_SET   ? 0
                   : origin == ZLIB_FILEFUNC_SEEK_CUR ? position
                                                      : size;
  const u64 target = base + offset;
  if (target < base || target > (u64{1} << 62)) return std::nullopt;
  return target;
}

struct MemoryStream {
  std::span<const u8> bytes;
  u64 position = 0;

  static MemoryStream& of(void* p) { return *static_cast<MemoryStream*>(p); }
  zlib_filefunc64_def functions() {
    return {
        .zopen64_file = [](void* opaque, const void*, int) { return opaque; },
        .zread_file = [](void* opaque, void*, void* to, uLong size) -> uLong {
          MemoryStream& s = of(opaque);
          const u64 n = std::min<u64>(size, s.bytes.size() - s.position);
          if (n != 0) std::memcpy(to, s.bytes.data() + s.position, n);
          s.position += n;
          return n;
        },
        .zwrite_file = [](void*, void*, const void*, uLong) -> uLong { return 0; },
        .ztell64_file = [](void* opaque, void*) -> ZPOS64_T { return of(opaque).position; },
        .zseek64_file = [](void* opaque, void*, ZPOS64_T offset, int origin) -> long {
          MemoryStream& s = of(opaque);
          const auto target = seek_target(s.position, s.bytes.size(), offset, origin);
          if (!target || *target > s.bytes.size()) return -1;
          s.position = *target;
          return 0;
        },
        .zclose_file = [](void*, void*) { return 0; },
        .zerror_file = [](void*, void*) { return 0; },
        .opaque = this,
    };
  }
};

// Writes go to an AtomicFile. Its exceptions cannot pass through C, so they wait in `error`.
struct FileStream {
  AtomicFile& file;
  u64 size = 0;
  std::exception_ptr error;

  static FileStream& of(void* p) { return *static_cast<FileStream*>(p); }
  zlib_filefunc64_def functions() {
    return {
        .zopen64_file = [](void* opaque, const void*, int) { return opaque; },
        .zread_file = [](void*, void*, void*, uLong) -> uLong { return 0; },
        .zwrite_file = [](void* opaque, void*, const void* from, uLong size) -> uLong {
          FileStream& s = of(opaque);
          try {
            s.file.write({static_cast<const u8*>(from), size});
            s.size = std::max(s.size, s.file.position());
            return size;
          } catch (...) {
            s.error = std::current_exception();
            return 0;
          }
        },
        .ztell64_file = [](void* opaque, void*) -> ZPOS64_T { return of(opaque).file.position(); },
        .zseek64_file = [](void* opaque, void*, ZPOS64_T offset, int origin) -> long {
          FileStream& s = of(opaque);
          try {
            const auto target = seek_target(s.file.position(), s.size, offset, origin);
            if (!target) return -1;
            s.file.seek(*target);
            return 0;
          } catch (...) {
            s.error = std::current_exception();
            return -1;
          }
        },
        .zclose_file = [](void*, void*) { return 0; },
        .zerror_file = [](void*, void*) { return 0; },
        .opaque = this,
    };
  }
};

// An archive of no member is its closing record alone, which minizip takes for no archive.
bool is_empty_archive(std::span<const u8> bytes) {
  constexpr u8 kNothing[20] = {'P', 'K', 5, 6};  // no disks, members, directory
  return bytes.size() == 22 && std::memcmp(bytes.data(), kNothing, sizeof kNothing) == 0;
}

}  // namespace

struct NpzReader::Archive {
  explicit Archive(std::span<const u8> bytes) : stream{bytes} {
    zlib_filefunc64_def functions = stream.functions();
    zip = unzOpen2_64(nullptr, &functions);
    if (zip == nullptr) damaged("not a zip archive, or its directory is damaged");
  }
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;
  ~Archive() { unzClose(zip); }

  // Opens the current member; returns where its data begins.
  u64 open(std::string_view name) const {
    if (unzOpenCurrentFile(zip) != UNZ_OK) damaged("member '{}' cannot be opened", printable(name));
    return unzGetCurrentFileZStreamPos64(zip);
  }
  // Reads exactly `to`.
  void read(std::span<u8> to, std::string_view name) const {
    while (!to.empty()) {
      const auto n = static_cast<unsigned>(std::min<size_t>(to.size(), size_t{1} << 30));
      const int got = unzReadCurrentFile(zip, to.data(), n);
      if (got <= 0) damaged("member '{}' is damaged or ends early", printable(name));
      to = to.subspan(static_cast<size_t>(got));
    }
  }

  NpzMember read_member();

  MemoryStream stream;
  unzFile zip = nullptr;
  std::vector<unz64_file_pos> places;
  std::vector<char> text = std::vector<char>(65537);  // the longest name and its NUL
};

// Checks the current entry of the directory and reads the header of its array.
NpzMember NpzReader::Archive::read_member() {
  unz_file_info64 info;
  if (unzGetCurrentFileInfo64(zip, &info, text.data(), text.size(), nullptr, 0, nullptr, 0) !=
      UNZ_OK)
    damaged("the directory is damaged");
  const std::string name(text.data(), std::min<size_t>(info.size_filename, text.size() - 1));
  const std::string shown = printable(name);
  if (!is_valid_name(name)) damaged("member '{}' has no valid UTF-8 name", shown);
  if (!name.ends_with(".npy") || name.size() == 4)
    invalid(kRead, "member '{}' is no array, expected NAME.npy", shown);
  if (info.flag & kEncrypted) invalid(kRead, "member '{}' is encrypted", shown);
  if (info.compression_method != 0 && info.compression_method != Z_DEFLATED)
    invalid(kRead, "member '{}' has an unsupported compression, got method {}, expected 0 or 8",
            shown, info.compression_method);
  NpzMember m{.name = name.substr(0, name.size() - 4),
              .header = {},
              .stored_bytes = info.compressed_size,
              .deflated = info.compression_method == Z_DEFLATED};
  const u64 packed = info.compressed_size, size = info.uncompressed_size;
  if (packed > stream.bytes.size() || (m.deflated ? size > packed * kDeflateRatio : size != packed))
    damaged("member '{}' has impossible sizes, got {} bytes from {}", shown, size, packed);

  open(name);
  std::vector<u8> start(std::min<u64>(size, kNpyPrefix));
  read(start, name);
  const u64 values_at = npy_values_at(start);
  if (values_at > size)
    damaged("member '{}' ends within its header, got {} bytes, expected {}", shown, size,
            values_at);
  const size_t have = start.size();
  start.resize(std::max<u64>(values_at, have));
  read(std::span(start).subspan(have), name);
  m.header = parse_npy_header(start);
  unzCloseCurrentFile(zip);
  if (size - values_at != m.header.values_bytes)
    damaged("member '{}' has a wrong number of bytes, got {}, expected {} for {} {}", shown,
            size - values_at, m.header.values_bytes, token(m.header.dtype), m.header.shape);
  return m;
}

NpzReader::NpzReader(std::span<const u8> bytes) {
  if (is_empty_archive(bytes)) return;
  archive_ = std::make_unique<Archive>(bytes);
  unz_global_info64 global;
  unzGetGlobalInfo64(archive_->zip, &global);
  std::unordered_set<std::string> names;
  u64 taken = 0;
  int status = unzGoToFirstFile(archive_->zip);
  for (; status == UNZ_OK; status = unzGoToNextFile(archive_->zip)) {
    // Members that share data could make a small file expand without end.
    NpzMember m = archive_->read_member();
    taken += kLocalHeader + m.stored_bytes;
    if (taken > bytes.size()) damaged("members overlap at '{}'", printable(m.name));
    if (!names.insert(m.name).second) damaged("two members have the name '{}'", printable(m.name));
    unz64_file_pos place;
    unzGetFilePos64(archive_->zip, &place);
    archive_->places.push_back(place);
    members_.push_back(std::move(m));
  }
  if (status != UNZ_END_OF_LIST_OF_FILE || members_.size() != global.number_entry)
    damaged("the directory is damaged, got {} members, expected {}", members_.size(),
            global.number_entry);
}

NpzReader::NpzReader(NpzReader&&) noexcept = default;
NpzReader::~NpzReader() = default;

std::span<const u8> NpzReader::values(size_t index, std::vector<u8>& memory) {
  const NpzMember& m = members_.at(index);
  const NpyHeader& h = m.header;
  const std::string shown = printable(m.name);
  unz_file_info64 info;
  if (unzGoToFilePos64(archive_->zip, &archive_->places[index]) != UNZ_OK ||
      unzGetCurrentFileInfo64(archive_->zip, &info, nullptr, 0, nullptr, 0, nullptr, 0) != UNZ_OK)
    damaged("the directory is damaged");
  const u64 data_at = archive_->open(m.name);
  const auto& file = archive_->stream.bytes;
  if (!m.deflated) {
    unzCloseCurrentFile(archive_->zip);
    if (data_at > file.size() || m.stored_bytes > file.size() - data_at)
      damaged("member '{}' lies outside of the file", shown);
    const auto data = file.subspan(data_at, m.stored_bytes);
    if (crc32_z(0, data.data(), data.size()) != info.crc) damaged("checksum of member '{}'", shown);
    const auto values = data.subspan(h.values_at, h.values_bytes);
    if (is_plain(h)) return values;
    memory = plain_values(h, values);
    return memory;
  }
  memory.resize(h.values_at + h.values_bytes);
  archive_->read(memory, m.name);
  if (unzCloseCurrentFile(archive_->zip) == UNZ_CRCERROR) damaged("checksum of member '{}'", shown);
  memory.erase(memory.begin(), memory.begin() + static_cast<std::ptrdiff_t>(h.values_at));
  if (!is_plain(h)) memory = plain_values(h, memory);
  return memory;
}

void write_npz(const std::filesystem::path& path, std::span<const TensorView> tensors,
               Compression compression, Durability durability) {
  check_tensors(kWrite, tensors);
  std::vector<std::vector<u8>> headers;
  for (const TensorView& t : tensors) {
    if (t.name.size() > 60000)
      invalid(kWrite, "name is too long, got {} bytes for '{}', expected at most 60000",
              t.name.size(), printable(t.name));
    headers.push_back(encode_npy_header(t));
  }

  AtomicFile file(path, durability);
  FileStream stream{.file = file, .error = {}};
  const auto check = [&](int status) {
    if (stream.error) std::rethrow_exception(stream.error);
    if (status != ZIP_OK) fail(ErrorKind::Io, kWrite, "cannot write '{}'", path.string());
  };
  zlib_filefunc64_def functions = stream.functions();
  zipFile zip = zipOpen2_64(nullptr, APPEND_STATUS_CREATE, nullptr, &functions);
  check(zip ? ZIP_OK : ZIP_INTERNALERROR);
  // zipClose frees the archive's memory; a second close after an error does no harm to the file.
  struct Closer {
    zipFile zip;
    ~Closer() {
      if (zip) zipClose(zip, nullptr);
    }
  } closer{zip};

  const auto write = [&](std::span<const u8> bytes) {
    while (!bytes.empty()) {
      const auto n = static_cast<unsigned>(std::min<size_t>(bytes.size(), size_t{1} << 30));
      check(zipWriteInFileInZip(zip, bytes.data(), n));
      bytes = bytes.subspan(n);
    }
  };
  const bool deflate = compression == Compression::Deflate;
  for (size_t i = 0; i < tensors.size(); ++i) {
    // 1 January 1980, the earliest date of the format: equal content gives equal files.
    const zip_fileinfo date{
        .tmz_date = {}, .dosDate = 1 << 21 | 1 << 16, .internal_fa = 0, .external_fa = 0};
    const u64 size = headers[i].size() + tensors[i].bytes.size();
    const int large = size > (u64{1} << 31);
    check(zipOpenNewFileInZip4_64(zip, (tensors[i].name + ".npy").c_str(), &date, nullptr, 0,
                                  nullptr, 0, nullptr, deflate ? Z_DEFLATED : 0,
                                  Z_DEFAULT_COMPRESSION, 0, -MAX_WBITS, DEF_MEM_LEVEL,
                                  Z_DEFAULT_STRATEGY, nullptr, 0, 0, kUtf8Names, large));
    write(headers[i]);
    write(tensors[i].bytes);
    check(zipCloseFileInZip(zip));
  }
  closer.zip = nullptr;
  check(zipClose(zip, nullptr));
  file.commit();
}

}  // namespace oa::ml
