// The texts that a path names: one file, or all text files of a folder.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "oa/core/hash.h"
#include "oa/core/mapped_file.h"
#include "oa/core/types.h"

namespace oa::ml::data {

// Only names and sizes; the contents are mapped when they are asked for, so a folder may hold more
// than the memory and any number of files. They must not change meanwhile.
class TextFiles {
 public:
  struct File {
    std::filesystem::path path;
    u64 size = 0;
  };
  struct Skipped {
    std::filesystem::path path;
    std::string reason;
  };

  // A file is taken as it is if it holds bytes and is text: no NUL among its first 64 KiB, unless
  // `binary` allows that. A folder is walked through all its subfolders; its files are in the order
  // of their paths, byte by byte. Hidden files and folders (names with a dot in front), empty
  // files, binary ones, links to folders and all that is no file are skipped.
  //
  // Io if something cannot be read; InvalidArgument if no text is left, or the file is none.
  static TextFiles open(const std::filesystem::path& path, bool binary = false);

  const std::vector<File>& files() const { return files_; }
  const std::vector<Skipped>& skipped() const { return skipped_; }
  u64 bytes() const;
  // Io; also if the size is no longer what it was.
  MappedFile content(size_t file) const;

  // The first bytes of all files, one after the other, at most `most`; copied.
  std::vector<u8> head(u64 most) const;
  // Of names' order and all contents. Reads everything.
  Hash128 hash() const;

 private:
  std::vector<File> files_;
  std::vector<Skipped> skipped_;
};

}  // namespace oa::ml::data
