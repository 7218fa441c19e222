// Whole-file reading, and writing that leaves either the old file or the new one.
#pragma once

#include <filesystem>
#include <span>
#include <string>
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

// Makes `path` a directory that this process may write into, private to the user if it is new.
// Returns why that is impossible, or an empty string.
std::string prepare_directory(const std::filesystem::path& path);

}  // namespace oa
