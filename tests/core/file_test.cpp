// Files: contents of every size, replacement in one step, and failures that leave nothing behind.
#include "oa/core/file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <thread>

#include "oa/core/error.h"
#include "tests/support/killed_writer.h"

namespace oa {
namespace {

namespace fs = std::filesystem;

class File : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "oa-file-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { fs::remove_all(dir_); }

  size_t entries() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(dir_), fs::directory_iterator()));
  }

  fs::path dir_;
};

std::string message_of(auto&& call) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::Io);
    return e.what();
  }
  return "no error";
}

TEST_F(File, RoundTripsEverySize) {
  for (size_t size : {0, 1, 4095, 4096, 4097, 1 << 20}) {
    std::vector<u8> bytes(size);
    std::iota(bytes.begin(), bytes.end(), u8{3});
    for (Durability d : {Durability::Disk, Durability::Rename}) {
      write_file(dir_ / "f", bytes, d);
      EXPECT_EQ(read_file(dir_ / "f"), bytes);
    }
  }
  EXPECT_EQ(entries(), 1u);
}

TEST_F(File, ReadsFilesWhoseSizeIsNotKnownBefore) {
  EXPECT_FALSE(read_file("/proc/self/status").empty());  // reports size 0
}

TEST_F(File, CreatesParentDirectories) {
  write_file(dir_ / "a/b/c", std::vector<u8>{1});
  EXPECT_EQ(read_file(dir_ / "a/b/c"), std::vector<u8>{1});
}

TEST_F(File, WritesInTheWorkingDirectoryWithoutAPath) {
  const fs::path before = fs::current_path();
  fs::current_path(dir_);
  write_file("plain", std::vector<u8>{7});
  fs::current_path(before);
  EXPECT_EQ(read_file(dir_ / "plain"), std::vector<u8>{7});
}

TEST_F(File, NamesThePathAndTheReason) {
  const std::string d = dir_.string();
  EXPECT_EQ(message_of([&] { read_file(dir_ / "none"); }),
            "read_file: cannot open '" + d + "/none': No such file or directory");
  EXPECT_EQ(message_of([&] { read_file(dir_); }),
            "read_file: cannot read '" + d + "': Is a directory");
  write_file(dir_ / "plain", std::vector<u8>{1});
  EXPECT_EQ(message_of([&] { write_file(dir_ / "plain/below", {}); }),
            "write_file: cannot create the directory '" + d + "/plain': Not a directory");
}

TEST_F(File, LeavesNoTemporaryWhenTheTargetIsADirectory) {
  fs::create_directories(dir_ / "target/inside");
  EXPECT_EQ(message_of([&] { write_file(dir_ / "target", std::vector<u8>{1}); }),
            "write_file: cannot rename the new file to '" + (dir_ / "target").string() +
                "': Is a directory");
  EXPECT_EQ(entries(), 1u);
  EXPECT_TRUE(fs::exists(dir_ / "target/inside"));
}

TEST_F(File, AFullDiskKeepsTheOldFileAndLeavesNoTemporary) {
  write_file(dir_ / "f", std::vector<u8>{1, 2, 3});
  rlimit old;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{8192, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message =
      message_of([&] { write_file(dir_ / "f", std::vector<u8>(100000, 9)); });
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_NE(message.find("write_file: cannot write '"), std::string::npos) << message;
  EXPECT_NE(message.find("File too large"), std::string::npos) << message;
  EXPECT_EQ(read_file(dir_ / "f"), (std::vector<u8>{1, 2, 3}));
  EXPECT_EQ(entries(), 1u);
}

TEST_F(File, ATemporaryOfADeadProcessIsNoObstacle) {
  for (int i = 0; i < 200; ++i)
    std::ofstream(dir_ / fmt::format("f.tmp.{}.{}", ::getpid(), i)) << "old";
  write_file(dir_ / "f", std::vector<u8>{5});
  EXPECT_EQ(read_file(dir_ / "f"), std::vector<u8>{5});
}

TEST_F(File, ReadersSeeOneOfTheWholeFiles) {
  const std::vector<u8> a(50000, 1), b(70000, 2);
  write_file(dir_ / "f", a);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int i = 0; i < 300; ++i) write_file(dir_ / "f", i % 2 ? a : b, Durability::Rename);
    stop = true;
  });
  int whole = 0, partial = 0;
  while (!stop) {
    const std::vector<u8> seen = read_file(dir_ / "f");
    ++(seen == a || seen == b ? whole : partial);
  }
  writer.join();
  EXPECT_GT(whole, 0);
  EXPECT_EQ(partial, 0);
}

TEST_F(File, ThreadsMayWriteTheSameFile) {
  std::vector<std::thread> threads;
  for (u8 t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i)
        write_file(dir_ / "f", std::vector<u8>(1000, t), Durability::Rename);
    });
  for (std::thread& t : threads) t.join();
  const std::vector<u8> last = read_file(dir_ / "f");
  EXPECT_EQ(last, std::vector<u8>(1000, last[0]));
  EXPECT_EQ(entries(), 1u);
}

TEST_F(File, PiecesReplaceTheTargetOnlyWhenCommitted) {
  write_file(dir_ / "f", std::vector<u8>{1});
  {
    AtomicFile file(dir_ / "f");
    file.write(std::vector<u8>{2, 3});
    file.seek(4);
    file.write(std::vector<u8>{5});
    file.seek(0);
    file.write(std::vector<u8>{9});
    EXPECT_EQ(file.position(), 1u);
    EXPECT_EQ(read_file(dir_ / "f"), std::vector<u8>{1});
    file.commit();
    EXPECT_THROW(file.write(std::vector<u8>{1}), Error);
  }
  EXPECT_EQ(read_file(dir_ / "f"), (std::vector<u8>{9, 3, 0, 0, 5}));
  {
    AtomicFile file(dir_ / "f");
    file.write(std::vector<u8>{7});
    EXPECT_EQ(entries(), 2u);
  }
  EXPECT_EQ(read_file(dir_ / "f"), (std::vector<u8>{9, 3, 0, 0, 5}));
  EXPECT_EQ(entries(), 1u);
}

TEST_F(File, MapsFilesOfEverySize) {
  for (size_t size : {0, 1, 65535, 65536, 1 << 20}) {
    std::vector<u8> bytes(size);
    std::iota(bytes.begin(), bytes.end(), u8{3});
    write_file(dir_ / "f", bytes);
    const SharedFile file(dir_ / "f");
    EXPECT_TRUE(std::ranges::equal(file.bytes(), bytes));
  }
  EXPECT_FALSE(SharedFile("/proc/self/status").bytes().empty());
  EXPECT_EQ(message_of([&] { SharedFile file(dir_ / "none"); }),
            "read_file: cannot open '" + dir_.string() + "/none': No such file or directory");
  EXPECT_EQ(message_of([&] { SharedFile file(dir_); }),
            "read_file: cannot read '" + dir_.string() + "': Is a directory");
}

TEST_F(File, AMappingOutlivesReplacementAndTheObject) {
  write_file(dir_ / "f", std::vector<u8>(100000, 4));
  std::shared_ptr<const void> owner;
  std::span<const u8> bytes;
  {
    const SharedFile file(dir_ / "f");
    bytes = file.bytes();
    owner = file.owner();
  }
  write_file(dir_ / "f", std::vector<u8>(10, 5));
  EXPECT_EQ(std::ranges::count(bytes, 4), 100000);
}

TEST_F(File, AKilledWriterLeavesAWholeFile) {
  // Each content tells its own length and number, so that any mixture would show.
  const auto content = [](u32 number) {
    number %= 250;  // so that the byte tells the length, too
    return std::vector<u8>(20000 + 7777 * (number % 5), static_cast<u8>(number));
  };
  const fs::path path = dir_ / "f";
  std::mt19937 random(7);
  int interrupted = 0;
  // Rounds go on until some writer was killed in the middle of a file.
  for (int round = 0; round < 50 || (interrupted == 0 && round < 1000); ++round) {
    const auto save = [&](u32 i) {
      write_file(path, content(i), i % 4 == 3 ? Durability::Disk : Durability::Rename);
    };
    ASSERT_NO_FATAL_FAILURE(run_and_kill(save, random() % 3000));
    const std::vector<u8> seen = read_file(path);
    ASSERT_FALSE(seen.empty());
    ASSERT_EQ(seen.size(), content(seen[0] % 5).size());
    ASSERT_EQ(std::ranges::count(seen, seen[0]), static_cast<std::ptrdiff_t>(seen.size()));
    interrupted += entries() > 1;
    for (const fs::directory_entry& e : fs::directory_iterator(dir_)) fs::remove(e.path());
  }
  EXPECT_GT(interrupted, 0);
}

TEST_F(File, RemovesWhatKilledWritersLeft) {
  const fs::path path = dir_ / "f";
  std::mt19937 random(3);
  u64 left = 0;
  for (int round = 0; round < 20 || (left == 0 && round < 1000); ++round) {
    const auto save = [&](u32) {
      write_file(path, std::vector<u8>(200000, 1), Durability::Rename);
    };
    ASSERT_NO_FATAL_FAILURE(run_and_kill(save, random() % 2000));
    left = entries() - 1;
  }
  ASSERT_GT(left, 0u);
  EXPECT_EQ(remove_abandoned(dir_, "g"), 0u) << "of another target";
  EXPECT_EQ(entries(), left + 1);
  EXPECT_EQ(remove_abandoned(dir_, "f"), left);
  EXPECT_EQ(entries(), 1u);
  EXPECT_EQ(read_file(path).size(), 200000u);
  EXPECT_EQ(remove_abandoned(dir_ / "nowhere"), 0u);
}

TEST_F(File, LeavesOtherFilesAndLivingWriters) {
  AtomicFile open(dir_ / "f");
  open.write(std::vector<u8>{1, 2});
  write_file(dir_ / "aim", std::vector<u8>{1});
  for (const char* name : {"f.tmp", "f.tmp.", "f.tmp.1", "f.tmp.1.", "f.tmp..1", "f.tmp.1.2.3",
                           "f.tmp.1.2x", "f.tmp.-1.2", ".tmp.1.2", "f.temp.1.2", "f.tmp.1 .2"}) {
    write_file(dir_ / name, std::vector<u8>{1});
  }
  fs::create_symlink(dir_ / "aim", dir_ / "f.tmp.5.5");
  fs::create_directory(dir_ / "f.tmp.6.6");
  ASSERT_EQ(::mkfifo((dir_ / "f.tmp.7.7").c_str(), 0600), 0);
  const size_t before = entries();
  EXPECT_EQ(remove_abandoned(dir_), 0u);
  EXPECT_EQ(entries(), before);
  write_file(dir_ / "f.tmp.1.2", std::vector<u8>{1});
  EXPECT_EQ(remove_abandoned(dir_), 1u);
  open.commit();
  EXPECT_EQ(read_file(dir_ / "f"), (std::vector<u8>{1, 2}));
}

TEST_F(File, CleaningDuringSavesLosesNoSave) {
  std::atomic<bool> stop{false};
  std::thread cleaner([&] {
    while (!stop) remove_abandoned(dir_);
  });
  for (u32 i = 0; i < 2000; ++i) {
    write_file(dir_ / "f", std::vector<u8>(8, static_cast<u8>(i)), Durability::Rename);
    ASSERT_EQ(read_file(dir_ / "f")[0], static_cast<u8>(i));
  }
  stop = true;
  cleaner.join();
  EXPECT_EQ(entries(), 1u);
}

TEST_F(File, PreparesDirectories) {
  EXPECT_EQ(prepare_directory(dir_ / "x/y"), "");
  EXPECT_TRUE(fs::is_directory(dir_ / "x/y"));
  EXPECT_EQ(fs::status(dir_ / "x/y").permissions(), fs::perms::owner_all);
  EXPECT_EQ(prepare_directory(dir_ / "x/y"), "");
  write_file(dir_ / "plain", std::vector<u8>{1});
  EXPECT_EQ(prepare_directory(dir_ / "plain/below"),
            "cannot create '" + (dir_ / "plain/below").string() + "': Not a directory");
}

}  // namespace
}  // namespace oa
