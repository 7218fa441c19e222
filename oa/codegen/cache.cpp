// Layout of the files, least-recently-used sweeping, and the tolerance towards a hostile directory.
#include "oa/codegen/cache.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "oa/core/error.h"
#include "oa/core/file.h"

namespace oa::codegen {

namespace fs = std::filesystem;

namespace {

constexpr char kMagic[8] = {'O', 'A', 'C', 'O', 'D', 'E', '\r', '\n'};
constexpr u32 kVersion = 1;
constexpr std::string_view kSuffix = ".oac";
constexpr auto kSweepInterval = std::chrono::minutes(10);
constexpr auto kAbandonedAfter = std::chrono::hours(1);

// Stands in front of the code. `checksum` covers the bytes of the header before it and the code.
struct Header {
  char magic[8];
  u32 version;
  u32 header_bytes;
  Hash128 key;
  u64 kind;
  u64 code_bytes;
  Hash128 checksum;
};
static_assert(sizeof(Header) == 64 && std::is_trivially_copyable_v<Header>);

Header header_of(const Hash128& key, std::string_view kind, std::span<const u8> code) {
  Header h{};
  std::memcpy(h.magic, kMagic, sizeof kMagic);
  h.version = kVersion;
  h.header_bytes = sizeof(Header);
  h.key = key;
  h.kind = hash_bytes(kind.data(), kind.size()).lo;
  h.code_bytes = code.size();
  Hasher hasher;
  hasher.bytes(&h, offsetof(Header, checksum));
  hasher.bytes(code.data(), code.size());
  h.checksum = hasher.finish();
  return h;
}

bool valid(std::span<const u8> file, const Hash128& key, std::string_view kind) {
  if (file.size() < sizeof(Header)) return false;
  const Header expected = header_of(key, kind, file.subspan(sizeof(Header)));
  return std::memcmp(file.data(), &expected, sizeof expected) == 0;
}

bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

enum class FileKind { Entry, Temporary, Foreign };

// By the name alone: <32 hex digits>.<kind>.oac, and the same with write_file's ending.
FileKind classify(const std::string& name) {
  const size_t suffix = name.find(kSuffix);
  if (name.size() < 34 || !std::all_of(name.begin(), name.begin() + 32, is_hex) ||
      name[32] != '.' || suffix == std::string::npos || suffix < 34)
    return FileKind::Foreign;
  const std::string_view rest = std::string_view(name).substr(suffix + kSuffix.size());
  if (rest.empty()) return FileKind::Entry;
  return rest.starts_with(".tmp.") ? FileKind::Temporary : FileKind::Foreign;
}

struct Entry {
  fs::path path;
  u64 bytes;
  fs::file_time_type used;
};

// The entries of a directory; `abandoned`, if given, gets the temporaries of dead writers. Files
// may vanish meanwhile.
std::vector<Entry> list_entries(const fs::path& directory,
                                std::vector<fs::path>* abandoned = nullptr) {
  std::vector<Entry> entries;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const FileKind kind = classify(it->path().filename().string());
    if (kind == FileKind::Foreign) continue;
    std::error_code gone;
    const u64 bytes = it->file_size(gone);
    const fs::file_time_type used = gone ? fs::file_time_type() : it->last_write_time(gone);
    if (gone) continue;
    if (kind == FileKind::Entry) {
      entries.push_back({it->path(), bytes, used});
    } else if (abandoned && fs::file_time_type::clock::now() - used > kAbandonedAfter) {
      abandoned->push_back(it->path());
    }
  }
  return entries;
}

}  // namespace

std::string CodeCache::default_directory() {
  if (const char* d = std::getenv("OA_CACHE_DIR"); d && *d) return d;
  // The XDG rules say that a relative path is to be ignored.
  if (const char* d = std::getenv("XDG_CACHE_HOME"); d && *d == '/') return std::string(d) + "/oa";
  if (const char* d = std::getenv("HOME"); d && *d) return std::string(d) + "/.cache/oa";
  return {};
}

CodeCache::CodeCache(const std::string& directory, u64 limit_bytes, u64 limit_files)
    : limit_bytes_(limit_bytes), limit_files_(limit_files) {
  const std::string chosen = directory.empty() ? default_directory() : directory;
  if (chosen == "-") {
    reason_ = "switched off";
    return;
  }
  if (chosen.empty()) {
    reason_ = "none of OA_CACHE_DIR, XDG_CACHE_HOME and HOME is set";
    return;
  }
  directory_ = chosen;
  reason_ = prepare_directory(directory_);
  writable_ = reason_.empty();
  std::error_code error;
  readable_ = fs::is_directory(directory_, error);
}

fs::path CodeCache::file_of(const Hash128& key, std::string_view kind) const {
  return directory_ / fmt::format("{}.{}{}", to_string(key), kind, kSuffix);
}

std::optional<std::vector<u8>> CodeCache::get(const Hash128& key, std::string_view kind) {
  if (!readable_) return std::nullopt;
  const fs::path path = file_of(key, kind);
  std::error_code error;
  if (fs::exists(path, error)) {
    try {
      std::vector<u8> file = read_file(path);
      if (valid(file, key, kind)) {
        file.erase(file.begin(), file.begin() + sizeof(Header));
        // Marks the use for sweep(), across processes; harmless where it fails.
        fs::last_write_time(path, fs::file_time_type::clock::now(), error);
        ++hits_;
        return file;
      }
      ++rejected_;
      fs::remove(path, error);
    } catch (const Error&) {
      // Unreadable, or swept away since the look.
    }
  }
  ++misses_;
  return std::nullopt;
}

void CodeCache::put(const Hash128& key, std::string_view kind, std::span<const u8> code) {
  const u64 total = sizeof(Header) + code.size();
  if (!writable_ || total > limit_bytes_) return;
  const Header header = header_of(key, kind, code);
  std::vector<u8> file(total);
  std::memcpy(file.data(), &header, sizeof header);
  std::copy(code.begin(), code.end(), file.begin() + sizeof header);
  try {
    // The checksum finds what a crash of the machine may damage, so no sync is needed.
    write_file(file_of(key, kind), file, Durability::Rename);
  } catch (const Error& e) {
    turn_off_storing(e.message());
    return;
  }
  ++stored_;
  sweep_if_due(total);
}

void CodeCache::turn_off_storing(const std::string& reason) {
  writable_ = false;
  const std::lock_guard lock(mutex_);
  if (reason_.empty()) reason_ = reason;
}

void CodeCache::sweep_if_due(u64 bytes_added) {
  {
    const std::lock_guard lock(mutex_);
    added_since_sweep_ += bytes_added;
    ++files_since_sweep_;
    const bool due = !last_sweep_ || Clock::now() - *last_sweep_ > kSweepInterval ||
                     added_since_sweep_ > limit_bytes_ / 4 || files_since_sweep_ > limit_files_ / 4;
    if (!due) return;
    last_sweep_ = Clock::now();
    added_since_sweep_ = files_since_sweep_ = 0;
  }
  sweep();
}

void CodeCache::sweep() {
  if (!readable_) return;
  std::vector<fs::path> abandoned;
  std::vector<Entry> entries = list_entries(directory_, &abandoned);
  std::error_code ignored;  // another process may be sweeping too
  for (const fs::path& path : abandoned) fs::remove(path, ignored);

  u64 total = 0;
  for (const Entry& e : entries) total += e.bytes;
  u64 files = entries.size();
  if (total <= limit_bytes_ && files <= limit_files_) return;
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.used < b.used; });
  const u64 bytes_kept = limit_bytes_ - limit_bytes_ / 4;
  const u64 files_kept = limit_files_ - limit_files_ / 4;
  for (const Entry& e : entries) {
    if (total <= bytes_kept && files <= files_kept) break;
    fs::remove(e.path, ignored);
    total -= e.bytes;
    --files;
  }
}

CacheStatistics CodeCache::statistics() const {
  CacheStatistics s;
  s.directory = directory_.string();
  s.hits = hits_;
  s.misses = misses_;
  s.rejected = rejected_;
  s.stored = stored_;
  s.limit_bytes = limit_bytes_;
  s.limit_files = limit_files_;
  {
    const std::lock_guard lock(mutex_);
    s.reason = reason_;
  }
  if (readable_) {
    for (const Entry& e : list_entries(directory_)) {
      ++s.files;
      s.bytes += e.bytes;
    }
  }
  return s;
}

}  // namespace oa::codegen
