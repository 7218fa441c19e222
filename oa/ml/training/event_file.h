// EventFile: scalars in the files that TensorBoard reads.
//
// A file is a row of records: u64 length, u32 masked CRC-32C of the length, data, u32 masked
// CRC-32C of the data, all little-endian. The data are protocol-buffer messages.
#pragma once

#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

#include "oa/core/types.h"

namespace oa::ml::training {

// Of the Castagnoli polynomial, as in RFC 3720.
u32 crc32c(std::span<const u8> bytes);
// As records carry it: rotated and with a constant added.
u32 masked_crc32c(std::span<const u8> bytes);
// One record around `data`.
std::string event_record(std::string_view data);

class EventFile {
 public:
  // Creates `folder` where needed and in it a new file "events.out.tfevents.<seconds>.<host>.<pid>.
  // <number>" with the version record. `wall_time`: seconds since 1970. Throws Io.
  EventFile(const std::filesystem::path& folder, f64 wall_time);

  const std::filesystem::path& path() const { return path_; }
  // A scalar under a tag ("train/loss"). Goes to a buffer.
  void add_scalar(std::string_view tag, u64 step, f32 value, f64 wall_time);
  // Tells readers that a run begins at `step`: what other files say of this step and later ones is
  // outdated.
  void add_start(u64 step, f64 wall_time);
  void flush();  // throws Io

 private:
  std::filesystem::path path_;
  std::ofstream file_;
  std::string buffer_;
};

}  // namespace oa::ml::training
