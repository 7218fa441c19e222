// A folder of its own for a test, and errors as text.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "oa/core/error.h"
#include "oa/core/file.h"
#include "oa/ml/tokenizer/tokenizer.h"

namespace oa::test {

class InFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "oa-data-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::filesystem::path put(const std::filesystem::path& name, std::string_view content) const {
    write_file(dir_ / name, ml::tokenizer::bytes_of(content));
    return dir_ / name;
  }
  // The message without the folder's name.
  std::string shown(std::string message) const {
    for (size_t at; (at = message.find(dir_.string())) != message.npos;)
      message.replace(at, dir_.string().size(), "DIR");
    return message;
  }

  std::filesystem::path dir_;
};

inline std::pair<ErrorKind, std::string> error_of(auto&& call) {
  try {
    call();
  } catch (const Error& e) {
    return {e.kind(), e.what()};
  }
  return {ErrorKind::Internal, "no error"};
}

}  // namespace oa::test
