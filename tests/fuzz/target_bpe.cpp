#include "tests/fuzz/harness.h"

extern "C" int LLVMFuzzerTestOneInput(const oa::u8* data, size_t size) {
  oa::fuzz::bpe({data, size});
  return 0;
}
