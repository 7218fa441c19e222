// The fuzz targets over the committed corpus and the fixture files, without libFuzzer.
#include "tests/fuzz/harness.h"
#include "tests/ml_checkpoint/support.h"

namespace oa {
namespace {

namespace fs = std::filesystem;

using Target = void (*)(std::span<const u8>);

// Each file, its beginnings, and each with one byte changed; a finding ends the program.
void replay(const std::string& name, Target target) {
  int files = 0;
  for (const fs::path& folder :
       {fs::path(OA_CORPUS) / name, fs::path(OA_FIXTURES) / "tensor_files"}) {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      std::vector<u8> bytes = read_file(entry.path());
      target(bytes);
      const size_t step = bytes.size() / 50 + 1;
      for (size_t size = 0; size < bytes.size(); size += step) target(std::span(bytes).first(size));
      for (size_t at = 0; at < bytes.size(); at += step) {
        bytes[at] ^= 0xff;
        target(bytes);
        bytes[at] ^= 0xff;
      }
      ++files;
    }
  }
  EXPECT_GT(files, 20);
}

TEST(FuzzCorpus, Oam) { replay("oam", fuzz::oam); }
TEST(FuzzCorpus, Safetensors) { replay("safetensors", fuzz::safetensors); }
TEST(FuzzCorpus, Numpy) { replay("numpy", fuzz::numpy); }
TEST(FuzzCorpus, Bpe) { replay("bpe", fuzz::bpe); }

}  // namespace
}  // namespace oa
