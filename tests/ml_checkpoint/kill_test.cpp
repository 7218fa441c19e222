// Checkpoints under SIGKILL: whatever moment it comes, the path holds one whole checkpoint.
#include <signal.h>
#include <sys/wait.h>

#include <random>

#include "oa/ml/checkpoint/tensor_file.h"
#include "tests/ml_checkpoint/support.h"

namespace oa::ml {
namespace {

class KilledSave : public InFolder {};

Oam content(u32 number) {
  Oam oam;
  oam.add_weight("w", FileDType::U32, {20000 + 100 * (number % 7)},
                 bytes_of(std::vector<u32>(20000 + 100 * (number % 7), number)));
  oam.progress.step = number;
  return oam;
}

TEST_F(KilledSave, AWholeCheckpointIsAlwaysThere) {
  const std::filesystem::path path = dir_ / "model.oam";
  write_oam(path, content(0));
  std::mt19937 random(11);
  int advanced = 0, interrupted = 0;
  i64 last = 0;
  for (int round = 0; round < 200; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (auto i = static_cast<u32>(last) + 1;; ++i) {
        try {
          write_oam(path, content(i), i % 3 ? Durability::Rename : Durability::Disk);
        } catch (...) {
          ::_exit(1);
        }
      }
    }
    ::usleep(random() % 4000);
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer failed by itself";

    const Oam seen = read_oam(path);  // all checksums hold
    const auto number = static_cast<u32>(seen.progress.step);
    ASSERT_GE(seen.progress.step, last);
    ASSERT_EQ(copy(seen.weights[0].bytes), copy(content(number).weights[0].bytes));
    advanced += seen.progress.step > last;
    last = seen.progress.step;
    for (const auto& entry : std::filesystem::directory_iterator(dir_)) {
      if (entry.path() == path) continue;
      // The name of what a killed writer leaves behind is never taken for a checkpoint's.
      EXPECT_EQ(kind_of(entry.path()), std::nullopt) << entry.path();
      ++interrupted;
      std::filesystem::remove(entry.path());
    }
  }
  EXPECT_GT(advanced, 10);
  EXPECT_GT(interrupted, 10);
}

}  // namespace
}  // namespace oa::ml
