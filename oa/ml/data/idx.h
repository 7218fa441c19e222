// IDX files, the format of MNIST and its relatives: one array with its type and extents,
// big-endian, often compressed by gzip.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "oa/core/dtype.h"

namespace oa::ml::data {

struct IdxArray {
  DType dtype = DType::U8;   // U8, I32, F32 or F64; files of 8 and 16-bit signed numbers become I32
  std::vector<u64> extents;  // 1 to 8 axes
  std::vector<u8> data;      // row-major, in the machine's byte order

  u64 elements() const;
};

// DataLoss unless the bytes, packed by gzip or not, are just what the header says. Whatever the
// header claims, no more memory is taken than about twice what the file really unpacks to, eight
// times that for signed bytes.
IdxArray parse_idx(std::span<const u8> file);
// Also Io.
IdxArray load_idx(const std::filesystem::path& path);

struct LabeledImages {
  u64 count = 0, rows = 0, columns = 0;
  std::vector<u8> pixels;  // [count, rows, columns], 0 to 255
  std::vector<u8> labels;  // [count]
};

// DataLoss if the files are not U8 arrays [n, rows, columns] and [n].
LabeledImages load_idx_images(const std::filesystem::path& images,
                              const std::filesystem::path& labels);

}  // namespace oa::ml::data
