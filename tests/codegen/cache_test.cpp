// The code cache: what is stored comes back or is missed, whatever happens to the files.
#include "oa/codegen/cache.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "oa/core/file.h"

namespace oa::codegen {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<u8>;

Bytes code_of(u64 seed, size_t size) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<u8>((seed * 131 + i) * 2654435761u >> 13);
  return bytes;
}

Hash128 key_of(u64 n) { return hash_bytes(&n, sizeof n); }

class Cache : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "oa-cache-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    for (const auto& e : fs::directory_iterator(dir_)) found.push_back(e.path());
    return found;
  }

  fs::path dir_;
};

TEST_F(Cache, ReturnsWhatWasStored) {
  CodeCache cache(dir_);
  for (size_t size : {0, 1, 63, 64, 65, 100000}) {
    cache.put(key_of(size), "cpu", code_of(size, size));
    EXPECT_EQ(cache.get(key_of(size), "cpu"), code_of(size, size));
  }
  CodeCache other(dir_);
  EXPECT_EQ(other.get(key_of(65), "cpu"), code_of(65, 65));
  EXPECT_EQ(other.get(key_of(99), "cpu"), std::nullopt);
  const CacheStatistics s = other.statistics();
  EXPECT_EQ(s.hits, 1u);
  EXPECT_EQ(s.misses, 1u);
  EXPECT_EQ(s.rejected, 0u);
  EXPECT_EQ(s.files, 6u);
  EXPECT_EQ(s.bytes, 6 * 64 + 0 + 1 + 63 + 64 + 65 + 100000u);
  EXPECT_EQ(s.directory, dir_.string());
  EXPECT_EQ(s.reason, "");
}

TEST_F(Cache, KindsAreSeparate) {
  CodeCache cache(dir_);
  cache.put(key_of(1), "cpu", code_of(1, 10));
  EXPECT_EQ(cache.get(key_of(1), "spirv"), std::nullopt);
  cache.put(key_of(1), "spirv", code_of(2, 10));
  EXPECT_EQ(cache.get(key_of(1), "cpu"), code_of(1, 10));
  EXPECT_EQ(cache.get(key_of(1), "spirv"), code_of(2, 10));
}

TEST_F(Cache, ALaterPutReplaces) {
  CodeCache cache(dir_);
  cache.put(key_of(1), "cpu", code_of(1, 1000));
  cache.put(key_of(1), "cpu", code_of(2, 10));
  EXPECT_EQ(cache.get(key_of(1), "cpu"), code_of(2, 10));
  EXPECT_EQ(files().size(), 1u);
}

TEST_F(Cache, EveryBitFlipIsNoticedAndTheFileRemoved) {
  CodeCache cache(dir_);
  cache.put(key_of(1), "cpu", code_of(1, 40));
  const fs::path path = files().at(0);
  const Bytes good = read_file(path);
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    Bytes bad = good;
    bad[bit / 8] ^= static_cast<u8>(1u << (bit % 8));
    write_file(path, bad, Durability::Rename);
    ASSERT_EQ(cache.get(key_of(1), "cpu"), std::nullopt) << "bit " << bit;
    ASSERT_FALSE(fs::exists(path));
  }
  EXPECT_EQ(cache.statistics().rejected, good.size() * 8);
  cache.put(key_of(1), "cpu", code_of(1, 40));
  EXPECT_EQ(read_file(path), good);
}

TEST_F(Cache, EveryTruncationAndExtensionIsNoticed) {
  CodeCache cache(dir_);
  cache.put(key_of(1), "cpu", code_of(1, 40));
  const fs::path path = files().at(0);
  const Bytes good = read_file(path);
  for (size_t size = 0; size < good.size(); ++size) {
    write_file(path, std::span(good).first(size), Durability::Rename);
    ASSERT_EQ(cache.get(key_of(1), "cpu"), std::nullopt) << size;
    ASSERT_FALSE(fs::exists(path));
  }
  Bytes longer = good;
  longer.push_back(0);
  write_file(path, longer);
  EXPECT_EQ(cache.get(key_of(1), "cpu"), std::nullopt);
}

TEST_F(Cache, AFileUnderAnotherNameIsForeign) {
  CodeCache cache(dir_);
  cache.put(key_of(1), "cpu", code_of(1, 40));
  const fs::path path = files().at(0);
  fs::rename(path, dir_ / (to_string(key_of(2)) + ".cpu.oac"));
  EXPECT_EQ(cache.get(key_of(2), "cpu"), std::nullopt);
  EXPECT_TRUE(files().empty());
}

TEST_F(Cache, ADirectoryInPlaceOfAnEntryIsAMiss) {
  CodeCache cache(dir_);
  fs::create_directories(dir_ / (to_string(key_of(1)) + ".cpu.oac") / "x");
  EXPECT_EQ(cache.get(key_of(1), "cpu"), std::nullopt);
  cache.put(key_of(1), "cpu", code_of(1, 40));
  EXPECT_EQ(cache.get(key_of(1), "cpu"), std::nullopt);
  EXPECT_NE(cache.statistics().reason.find("Is a directory"), std::string::npos);
}

TEST_F(Cache, SweepsTheLeastRecentlyUsed) {
  constexpr size_t kSize = 1000 - 64;
  CodeCache cache(dir_, 10000);
  const auto now = fs::file_time_type::clock::now();
  for (u64 i = 0; i < 12; ++i) {
    write_file(dir_ / "keep.txt", Bytes(50000));  // not ours: neither counted nor removed
    cache.put(key_of(i), "cpu", code_of(i, kSize));
  }
  // The limit held all the time, within what may be added between two sweeps.
  EXPECT_LE(cache.statistics().bytes, 12500u);
  for (const fs::path& p : files()) fs::remove(p);
  for (u64 i = 0; i < 12; ++i) {
    const fs::path path = dir_ / (to_string(key_of(i)) + ".cpu.oac");
    CodeCache(dir_, 1 << 20).put(key_of(i), "cpu", code_of(i, kSize));
    fs::last_write_time(path, now - std::chrono::minutes(100 - i));
  }
  write_file(dir_ / "keep.txt", Bytes(50000));
  EXPECT_TRUE(cache.get(key_of(0), "cpu"));  // the oldest becomes the youngest
  cache.sweep();
  EXPECT_TRUE(fs::exists(dir_ / "keep.txt"));
  EXPECT_TRUE(cache.get(key_of(0), "cpu"));
  EXPECT_EQ(cache.statistics().files, 7u);
  for (u64 i = 1; i <= 5; ++i) EXPECT_FALSE(cache.get(key_of(i), "cpu")) << i;
  for (u64 i = 6; i < 12; ++i) EXPECT_TRUE(cache.get(key_of(i), "cpu")) << i;
}

TEST_F(Cache, SweepsByTheNumberOfFilesToo) {
  CodeCache cache(dir_, u64{1} << 30, 16);
  const auto now = fs::file_time_type::clock::now();
  for (u64 i = 0; i < 100; ++i) {
    cache.put(key_of(i), "cpu", code_of(i, 10));
    // What may be added between two sweeps: a quarter, and the one that is due.
    ASSERT_LE(cache.statistics().files, 16u + 16 / 4 + 1) << i;
  }
  EXPECT_EQ(cache.statistics().limit_files, 16u);
  // Exactly the limit is no reason to remove; one more brings it to three quarters, oldest first.
  for (const fs::path& f : files()) fs::remove(f);
  CodeCache quiet(dir_, u64{1} << 30, 1000);
  for (u64 i = 0; i < 17; ++i) {
    quiet.put(key_of(i), "cpu", code_of(i, 10));
    fs::last_write_time(dir_ / (to_string(key_of(i)) + ".cpu.oac"),
                        now - std::chrono::seconds(100 - i));
    if (i != 15) continue;
    cache.sweep();
    EXPECT_EQ(files().size(), 16u);
  }
  cache.sweep();
  EXPECT_EQ(files().size(), 12u);
  for (u64 i = 0; i < 17; ++i) {
    EXPECT_EQ(fs::exists(dir_ / (to_string(key_of(i)) + ".cpu.oac")), i >= 5) << i;
  }
}

TEST_F(Cache, SweepsOldTemporariesOnly) {
  CodeCache cache(dir_);
  const std::string stem = to_string(key_of(1)) + ".cpu.oac.tmp.";
  std::ofstream(dir_ / (stem + "1.2")) << "old";
  std::ofstream(dir_ / (stem + "1.3")) << "young";
  fs::last_write_time(dir_ / (stem + "1.2"),
                      fs::file_time_type::clock::now() - std::chrono::hours(2));
  cache.sweep();
  EXPECT_FALSE(fs::exists(dir_ / (stem + "1.2")));
  EXPECT_TRUE(fs::exists(dir_ / (stem + "1.3")));
  EXPECT_EQ(cache.statistics().files, 0u);
}

TEST_F(Cache, AnEntryAboveTheLimitIsNotStored) {
  CodeCache cache(dir_, 1000);
  cache.put(key_of(1), "cpu", code_of(1, 1000));
  EXPECT_TRUE(files().empty());
  EXPECT_EQ(cache.statistics().reason, "");
}

TEST_F(Cache, AnImpossibleDirectoryTurnsItOff) {
  write_file(dir_ / "plain", Bytes{1});
  CodeCache cache(dir_ / "plain" / "cache");
  cache.put(key_of(1), "cpu", code_of(1, 10));
  EXPECT_EQ(cache.get(key_of(1), "cpu"), std::nullopt);
  cache.sweep();
  EXPECT_EQ(cache.statistics().reason,
            "cannot create '" + (dir_ / "plain/cache").string() + "': Not a directory");
  EXPECT_EQ(cache.statistics().files, 0u);
}

TEST_F(Cache, ADirectoryThatVanishesIsMadeAgain) {
  CodeCache cache(dir_ / "c");
  cache.put(key_of(1), "cpu", code_of(1, 10));
  fs::remove_all(dir_ / "c");
  EXPECT_EQ(cache.get(key_of(1), "cpu"), std::nullopt);
  cache.put(key_of(1), "cpu", code_of(1, 10));
  EXPECT_TRUE(cache.get(key_of(1), "cpu"));
  fs::remove_all(dir_ / "c");
  write_file(dir_ / "c", Bytes{1});
  cache.put(key_of(1), "cpu", code_of(1, 10));  // a file is there now
  EXPECT_EQ(cache.get(key_of(1), "cpu"), std::nullopt);
  EXPECT_NE(cache.statistics().reason, "");
}

TEST_F(Cache, DashTurnsItOff) {
  CodeCache cache("-");
  cache.put(key_of(1), "cpu", code_of(1, 10));
  EXPECT_EQ(cache.get(key_of(1), "cpu"), std::nullopt);
  EXPECT_EQ(cache.statistics().reason, "switched off");
  EXPECT_FALSE(fs::exists("-"));
}

// Sets variables for one test.
class Environment {
 public:
  Environment(std::initializer_list<std::pair<const char*, const char*>> values) {
    for (const auto& [name, value] : values) {
      const char* old = std::getenv(name);
      old_.emplace_back(name, old ? std::optional<std::string>(old) : std::nullopt);
      value ? ::setenv(name, value, 1) : ::unsetenv(name);
    }
  }
  ~Environment() {
    for (const auto& [name, value] : old_)
      value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
  }

 private:
  std::vector<std::pair<std::string, std::optional<std::string>>> old_;
};

TEST(CacheDirectory, FollowsTheEnvironment) {
  {
    Environment e{{"OA_CACHE_DIR", "/a"}, {"XDG_CACHE_HOME", "/b"}, {"HOME", "/c"}};
    EXPECT_EQ(CodeCache::default_directory(), "/a");
  }
  {
    Environment e{{"OA_CACHE_DIR", ""}, {"XDG_CACHE_HOME", "/b"}, {"HOME", "/c"}};
    EXPECT_EQ(CodeCache::default_directory(), "/b/oa");
  }
  {
    Environment e{{"OA_CACHE_DIR", nullptr}, {"XDG_CACHE_HOME", "relative"}, {"HOME", "/c"}};
    EXPECT_EQ(CodeCache::default_directory(), "/c/.cache/oa");
  }
  {
    Environment e{{"OA_CACHE_DIR", nullptr}, {"XDG_CACHE_HOME", nullptr}, {"HOME", nullptr}};
    EXPECT_EQ(CodeCache::default_directory(), "");
    CodeCache cache;
    EXPECT_EQ(cache.statistics().reason, "none of OA_CACHE_DIR, XDG_CACHE_HOME and HOME is set");
  }
  {
    Environment e{{"OA_CACHE_DIR", "-"}};
    EXPECT_EQ(CodeCache().statistics().reason, "switched off");
  }
}

// Hammers the directory with gets and puts of the same few keys, and tears files on the way.
// Returns the number of wrong answers.
int hammer(const fs::path& dir, u64 seed) {
  CodeCache cache(dir, 60000);
  int wrong = 0;
  u64 random = seed * 0x9e3779b97f4a7c15u + 1;
  for (int i = 0; i < 1500; ++i) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    const u64 n = (random >> 33) % 16;
    const Bytes expected = code_of(n, 500 * n);
    if ((random >> 40) % 64 == 0) {
      std::error_code ignored;
      fs::resize_file(dir / (to_string(key_of(n)) + ".cpu.oac"), 70, ignored);
    }
    const auto found = cache.get(key_of(n), "cpu");
    if (!found) cache.put(key_of(n), "cpu", expected);
    if (found && *found != expected) ++wrong;
  }
  return wrong + (cache.statistics().reason.empty() ? 0 : 1);
}

TEST_F(Cache, FourProcessesShareADirectory) {
  std::vector<pid_t> children;
  for (u64 p = 0; p < 4; ++p) {
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) ::_exit(std::min(hammer(dir_, p), 100));
    children.push_back(pid);
  }
  for (pid_t pid : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
  for (const fs::path& p : files()) EXPECT_EQ(p.extension(), ".oac") << p;
}

TEST_F(Cache, FourThreadsShareAnObject) {
  CodeCache cache(dir_, 60000);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (u64 t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (u64 i = 0; i < 400; ++i) {
        const u64 n = (i * 7 + t) % 16;
        const auto found = cache.get(key_of(n), "cpu");
        if (!found) cache.put(key_of(n), "cpu", code_of(n, 300 * n));
        if (found && *found != code_of(n, 300 * n)) ++wrong;
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
  const CacheStatistics s = cache.statistics();
  EXPECT_EQ(s.hits + s.misses, 1600u);
  EXPECT_EQ(s.reason, "");
}

}  // namespace
}  // namespace oa::codegen
