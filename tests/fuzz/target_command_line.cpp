#include "tests/fuzz/command_line.h"

extern "C" int LLVMFuzzerTestOneInput(const oa::u8* data, size_t size) {
  oa::fuzz::command_line({data, size});
  return 0;
}
