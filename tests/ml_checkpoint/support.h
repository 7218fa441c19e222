// What the tests of file formats share: fixture files, a temporary folder, expected values,
// messages.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "oa/core/error.h"
#include "oa/core/file.h"
#include "oa/ml/checkpoint/tensor_view.h"

namespace oa::ml {

inline std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(OA_FIXTURES) / "tensor_files" / name;
}

class InFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "oa-files-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  size_t entries() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(dir_),
                                             std::filesystem::directory_iterator()));
  }

  std::filesystem::path dir_;
};

// What `call` throws: kind and text, or Internal and "no error".
std::pair<ErrorKind, std::string> thrown(auto&& call) {
  try {
    call();
  } catch (const Error& e) {
    return {e.kind(), e.what()};
  }
  return {ErrorKind::Internal, "no error"};
}

#define EXPECT_ERROR(call, wanted_kind, wanted_text)                   \
  do {                                                                 \
    const auto [kind_, text_] = ::oa::ml::thrown([&] { (void)call; }); \
    EXPECT_EQ(kind_, ErrorKind::wanted_kind) << text_;                 \
    EXPECT_EQ(text_, wanted_text);                                     \
  } while (false)

template <class T>
std::vector<u8> bytes_of(const std::vector<T>& values) {
  std::vector<u8> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

inline std::vector<u8> copy(std::span<const u8> bytes) { return {bytes.begin(), bytes.end()}; }

template <class T>
std::vector<T> values_of(std::span<const u8> bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

// The bytes of a fixture's values: element i is 3 i - 5, truth values are i % 3 == 0.
inline std::vector<u8> fixture_values(u64 count, FileDType dtype) {
  std::vector<u8> bytes;
  const auto add = [&](auto v) {
    const auto* p = reinterpret_cast<const u8*>(&v);
    bytes.insert(bytes.end(), p, p + sizeof v);
  };
  for (u64 i = 0; i < count; ++i) {
    const i64 v = static_cast<i64>(i) * 3 - 5;
    const auto real = static_cast<f32>(v);
    switch (dtype) {
      case FileDType::F32: add(real); break;
      case FileDType::F16: add(f32_to_f16(real)); break;
      case FileDType::BF16: add(f32_to_bf16(real)); break;
      case FileDType::F64: add(static_cast<f64>(v)); break;
      case FileDType::C64: add(std::pair(real, 0.0f)); break;
      case FileDType::C128: add(std::pair(static_cast<f64>(v), 0.0)); break;
      case FileDType::Bool: add(static_cast<u8>(i % 3 == 0)); break;
      case FileDType::F8E5M2:
      case FileDType::F8E4M3: add(static_cast<u8>(i)); break;
      default: {  // two's complement of any width, little-endian
        const auto* p = reinterpret_cast<const u8*>(&v);
        bytes.insert(bytes.end(), p, p + size_bytes(dtype));
      }
    }
  }
  return bytes;
}

}  // namespace oa::ml
