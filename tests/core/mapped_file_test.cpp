// Mapped files hold what reading gives, and say why they cannot be had.
#include "oa/core/mapped_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <numeric>
#include <vector>

#include "oa/core/error.h"
#include "oa/core/file.h"

namespace oa {
namespace {

namespace fs = std::filesystem;

TEST(MappedFile, HoldsTheFile) {
  const fs::path path = fs::temp_directory_path() / fmt::format("oa-mapped-{}", ::getpid());
  for (const size_t size : {0u, 1u, 4095u, 4096u, 4097u, 1u << 20}) {
    std::vector<u8> bytes(size);
    std::iota(bytes.begin(), bytes.end(), u8{9});
    write_file(path, bytes);
    MappedFile mapped(path);
    EXPECT_EQ(std::vector<u8>(mapped.bytes().begin(), mapped.bytes().end()), bytes);
    MappedFile moved(std::move(mapped));
    EXPECT_TRUE(mapped.bytes().empty());  // NOLINT(bugprone-use-after-move)
    mapped = std::move(moved);
    fs::remove(path);  // the bytes stay
    EXPECT_EQ(std::vector<u8>(mapped.bytes().begin(), mapped.bytes().end()), bytes);
  }
  EXPECT_TRUE(MappedFile().bytes().empty());
}

TEST(MappedFile, SaysWhyNot) {
  const auto message = [](const fs::path& path) -> std::string {
    try {
      const MappedFile mapped(path);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::Io);
      return e.what();
    }
    return "no error";
  };
  EXPECT_EQ(message("/nowhere/at/all"),
            "MappedFile: cannot open '/nowhere/at/all': No such file or directory");
  EXPECT_EQ(message("/"), "MappedFile: cannot map '/': Is a directory");
  EXPECT_EQ(message("/dev/null"), "MappedFile: cannot map '/dev/null': No such device");
}

}  // namespace
}  // namespace oa
