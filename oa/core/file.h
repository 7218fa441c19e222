// Whole-file reading, and writing that leaves either the old file or the new one.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oa/core/types.h"

namespace oa {

// The content of a regular file. Throws Io with the path and the system's reason.
std::vector<u8> read_file(const std::filesystem::path& path);

enum class Durability : u8 {
  Disk,    // survives a power failure once the call returns: file and directory are synced
  Rename,  // readers never see a partial file, but a crash of the machine may lose it
};

// Replaces `path` in one step: writes the sibling `<path>.tmp.<pid>.<sequence>`, then renames it.
// Missing parent directories are created. A failure throws Io with the path and the system's reason
// and leaves no temporary; the old file is untouched unless only the last step failed, the sync of
// the directory.
void write_file(const std::filesystem::path& path, std::span<const u8> bytes,
                Durability durability = Durability::Disk);

// The same replacement for content that comes in pieces. The target changes in commit() and nowhere
// else; an object that dies without it removes its temporary file. Failures as for write_file.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path target, Durability durability = Durability::Disk);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  // Writes at the current position and advances it.
  void write(std::span<const u8> bytes);
  // Sets the position of the next write; a gap reads as zeros.
  void seek(u64 position);
  u64 position() const { return position_; }

  // Syncs, renames over the target and syncs the directory. Nothing can be written afterwards.
  void commit();

 private:
  std::filesystem::path target_, temporary_;
  Durability durability_;
  u64 position_ = 0;
  int fd_ = -1;
  bool renamed_ = false;
};

// Removes the temporary files that killed writers left in `folder`, of targets whose name begins
// with `prefix`, and returns how many. A writer of any process locks its temporary (flock), and the
// system ends the lock with the writer: what is locked, or cannot be locked, stays, as does
// everything that write_file would not name so. Never throws for what it cannot list or remove.
u64 remove_abandoned(const std::filesystem::path& folder, std::string_view prefix = {});

// The content of any file, shared by copies: large regular files are mapped (mapped_file.h), others
// are read. A file that is replaced meanwhile (as write_file does) keeps its old content here.
class SharedFile {
 public:
  // Throws Io with the path and the system's reason.
  explicit SharedFile(const std::filesystem::path& path);

  std::span<const u8> bytes() const { return bytes_; }
  // Keeps bytes() valid for as long as a copy of it lives.
  const std::shared_ptr<const void>& owner() const { return owner_; }

 private:
  std::span<const u8> bytes_;
  std::shared_ptr<const void> owner_;
};

// Makes `path` a directory that this process may write into, private to the user if it is new.
// Returns why that is impossible, or an empty string.
std::string prepare_directory(const std::filesystem::path& path);

}  // namespace oa
