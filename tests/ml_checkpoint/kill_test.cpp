// Checkpoints under SIGKILL: whatever moment it comes, the path holds one whole checkpoint.
#include <random>

#include "oa/ml/checkpoint/tensor_file.h"
#include "tests/ml_checkpoint/support.h"
#include "tests/support/killed_writer.h"

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
  std::mt19937 random(11);
  int interrupted = 0;
  i64 last = 0;
  // 200 rounds, and more until some writer was killed in the middle of a file.
  for (int round = 0; round < 200 || (interrupted == 0 && round < 1000); ++round) {
    const auto save = [&](u32 i) {
      write_oam(path, content(static_cast<u32>(last) + 1 + i),
                i % 8 == 7 ? Durability::Disk : Durability::Rename);
    };
    ASSERT_NO_FATAL_FAILURE(run_and_kill(save, random() % 2000));

    const Oam seen = read_oam(path);  // all checksums hold
    const auto number = static_cast<u32>(seen.progress.step);
    ASSERT_GT(seen.progress.step, last);
    ASSERT_EQ(copy(seen.weights[0].bytes), copy(content(number).weights[0].bytes));
    last = seen.progress.step;
    for (const auto& entry : std::filesystem::directory_iterator(dir_)) {
      if (entry.path() == path) continue;
      // The name of what a killed writer leaves behind is never taken for a checkpoint's.
      EXPECT_EQ(kind_of(entry.path()), std::nullopt) << entry.path();
      ++interrupted;
      std::filesystem::remove(entry.path());
    }
  }
  EXPECT_GT(interrupted, 0);
}

}  // namespace
}  // namespace oa::ml
