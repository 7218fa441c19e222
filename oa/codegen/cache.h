// The on-disk cache of compiled code, shared by both targets and by all processes of a user.
//
// One file per entry, named after key and kind. A file is published by a rename, so readers see all
// of it or nothing; its header repeats the key and carries a checksum of everything, and a file
// that does not match is removed and counts as a miss. No failure of the file system reaches the
// caller: the cache only stops to help, and says why in `reason`.
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oa/core/hash.h"
#include "oa/core/types.h"

namespace oa::codegen {

struct CacheStatistics {
  std::string directory;  // empty where none could be found
  std::string reason;     // why the cache is off or cannot store; empty while all is well
  u64 hits = 0;           // of this object, as the three below
  u64 misses = 0;
  u64 rejected = 0;  // misses because a file was damaged or foreign
  u64 stored = 0;
  u64 files = 0;  // entries in the directory now, of all kinds
  u64 bytes = 0;
  u64 limit_bytes = 0;
  u64 limit_files = 0;
};

class CodeCache {
 public:
  static constexpr u64 kDefaultLimit = u64{512} << 20;
  static constexpr u64 kDefaultFiles = 8192;  // more make every look at the directory slow

  // `directory`: where the files are; empty: default_directory(); "-": no disk cache.
  explicit CodeCache(const std::string& directory = {}, u64 limit_bytes = kDefaultLimit,
                     u64 limit_files = kDefaultFiles);

  // OA_CACHE_DIR, else $XDG_CACHE_HOME/oa, else ~/.cache/oa, else empty.
  static std::string default_directory();

  // `kind` tells the sorts of code apart ("cpu", "spirv-pipeline"): letters, digits and '-'. Both
  // calls may be made from several threads.
  std::optional<std::vector<u8>> get(const Hash128& key, std::string_view kind);
  void put(const Hash128& key, std::string_view kind, std::span<const u8> code);

  // Removes the least recently used entries until the directory is well below both limits, and
  // what dead writers left. put() does this by itself from time to time.
  void sweep();

  CacheStatistics statistics() const;  // looks at the directory

 private:
  using Clock = std::chrono::steady_clock;

  std::filesystem::path file_of(const Hash128& key, std::string_view kind) const;
  void turn_off_storing(const std::string& reason);
  void sweep_if_due(u64 bytes_added);

  std::filesystem::path directory_;
  u64 limit_bytes_;
  u64 limit_files_;
  bool readable_ = false;
  std::atomic<bool> writable_{false};
  std::atomic<u64> hits_{0}, misses_{0}, rejected_{0}, stored_{0};

  mutable std::mutex mutex_;  // guards what follows
  std::string reason_;
  u64 added_since_sweep_ = 0;  // bytes
  u64 files_since_sweep_ = 0;
  std::optional<Clock::time_point> last_sweep_;
};

}  // namespace oa::codegen
