// A regular file as bytes in memory that the system reads when they are touched.
#pragma once

#include <filesystem>
#include <span>
#include <utility>

#include "oa/core/types.h"

namespace oa {

// Whoever shortens the file meanwhile ends the program with SIGBUS at the first byte that is gone.
class MappedFile {
 public:
  MappedFile() = default;  // no bytes
  // Io with the path and the system's reason.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedFile();

  std::span<const u8> bytes() const { return bytes_; }

 private:
  std::span<const u8> bytes_;
};

}  // namespace oa
