// NumPy's `.npz` format: a zip archive with an .npy file per array, stored or deflated.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "oa/core/file.h"
#include "oa/ml/checkpoint/npy.h"

namespace oa::ml {

struct NpzMember {
  std::string name;  // without ".npy"
  NpyHeader header;
  u64 stored_bytes = 0;  // that the member takes in the archive
  bool deflated = false;
};

// Reads an archive whose bytes outlive it. Opening reads every member's header and nothing else.
class NpzReader {
 public:
  // Throws DataLoss when archive or headers are damaged (members that overlap, names that come
  // twice, sizes that cannot be true included) and InvalidArgument for what is not supported:
  // encryption, other compressions than deflate, members that are no .npy, element types as in
  // npy.h.
  explicit NpzReader(std::span<const u8> archive);
  NpzReader(NpzReader&&) noexcept;
  ~NpzReader();

  const std::vector<NpzMember>& members() const { return members_; }

  // Row-major little-endian values of member `index`, in the archive itself where it holds just
  // these, else in `memory`. The checksum is verified each time; throws DataLoss.
  std::span<const u8> values(size_t index, std::vector<u8>& memory);

 private:
  struct Archive;

  std::unique_ptr<Archive> archive_;
  std::vector<NpzMember> members_;
};

enum class Compression : u8 { Store, Deflate };

// Replaces `path` in one step. Throws InvalidArgument (names, sizes, quantised tensors, types that
// NumPy has not) before it touches the file, and Io.
void write_npz(const std::filesystem::path& path, std::span<const TensorView> tensors,
               Compression compression = Compression::Store,
               Durability durability = Durability::Disk);

}  // namespace oa::ml
