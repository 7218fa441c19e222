// One reader for every kind of tensor file: .oam, safetensors, .npy and .npz, told apart by
// content.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oa/ml/checkpoint/oam.h"
#include "oa/ml/checkpoint/safetensors.h"

namespace oa::ml {

enum class FileKind : u8 { Oam, Safetensors, Npy, Npz };

std::string_view token(FileKind kind);  // "oam", "safetensors", "npy", "npz"

// The kind that content tells, or nothing.
std::optional<FileKind> detect_kind(std::span<const u8> bytes);
// The kind that a path's ending tells (".oam", ".safetensors", ".npy", ".npz"), or nothing.
std::optional<FileKind> kind_of(const std::filesystem::path& path);

struct TensorInfo {
  std::string name;
  FileDType dtype = FileDType::F32;
  Shape shape;
  u64 stored_bytes = 0;  // that the values take in the file
  std::string storage;   // "dense", "q4", "q8", "deflate", "big-endian", "column-major", ...
  bool state = false;    // of the State section of an .oam
};

// Row-major little-endian values; valid for as long as this object lives.
class TensorBytes {
 public:
  std::span<const u8> bytes() const { return bytes_; }

 private:
  friend class TensorFile;
  std::span<const u8> bytes_;
  std::shared_ptr<const void> owner_;
};

// A file's list of tensors; their values stay in the file, which is mapped, until they are asked
// for.
class TensorFile {
 public:
  // Throws Io; CheckpointCorrupt for a damaged .oam and DataLoss for other damage; InvalidArgument
  // when the content is none of the kinds or has element types that are not in FileDType. Messages
  // name the path.
  static TensorFile open(const std::filesystem::path& path);
  // The same for a file image; `owner` keeps it valid.
  static TensorFile parse(std::span<const u8> bytes, std::shared_ptr<const void> owner = nullptr);

  FileKind kind() const { return kind_; }
  u64 file_bytes() const { return file_bytes_; }
  // An .npy has one, with the name "array".
  const std::vector<TensorInfo>& tensors() const { return infos_; }
  std::optional<size_t> find(std::string_view name) const;

  // Dense values of tensor `index`, dequantised, inflated and reordered where the file has them
  // otherwise. May be called from several threads unless the file is an .npz.
  TensorBytes values(size_t index) const;
  // Throws NotFound.
  TensorBytes values(std::string_view name) const;

  const Metadata& metadata() const { return metadata_; }      // of safetensors
  const Oam* oam() const { return oam_ ? &*oam_ : nullptr; }  // if this is an .oam

 private:
  FileKind kind_ = FileKind::Oam;
  u64 file_bytes_ = 0;
  std::vector<TensorInfo> infos_;
  Metadata metadata_;
  std::optional<Oam> oam_;
  std::shared_ptr<const void> owner_;
  std::function<TensorBytes(size_t)> load_;
};

inline TensorFile read_tensors(const std::filesystem::path& path) { return TensorFile::open(path); }

// Writes `tensors` as the kind that the ending of `path` tells: .oam (as weights with defaults for
// all else), .safetensors, .npz, or .npy for a single one. Throws InvalidArgument for another
// ending and for tensors that the kind cannot hold, and Io.
void write_tensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                   const Metadata& metadata = {}, Durability durability = Durability::Disk);

}  // namespace oa::ml
