// Random programs: native code against the reference interpreter, bit for bit.
#include "tests/support/random_kernel.h"

#include <gtest/gtest.h>

#include "oa/kernel/print.h"
#include "oa/kernel/simplify.h"
#include "tests/codegen/gang.h"

namespace oa::codegen {
namespace {

using testing::RandomOptions;
using testing::RandomProgram;

RandomProgram program(u64 seed) {
  static constexpr u32 kWidths[] = {1, 2, 4, 8, 16, 32, 64};
  RandomOptions o;
  o.target = cpu_target();
  o.width = kWidths[seed % 7];
  o.size = 10 + static_cast<u32>(seed * 7 % 60);
  return RandomProgram(seed, o);
}

RandomProgram::Memory interpreted(RandomProgram& p, RandomProgram::Memory memory) {
  const auto views = memory.views();
  kernel::interpret(p.kernel(), p.args(views), views, RandomProgram::kGroups);
  return memory;
}

RandomProgram::Memory native(RandomProgram& p, const kernel::Kernel& k,
                             RandomProgram::Memory memory) {
  static const CpuTarget host = CpuTarget::host();
  run_on(host, k, RandomProgram::kGroups, p.args(memory.views()));
  return memory;
}

void compare(u64 seed, bool simplified) {
  RandomProgram p = program(seed);
  const kernel::Kernel k = simplified ? kernel::simplify(p.kernel()) : p.kernel();
  const RandomProgram::Memory memory = p.memory();
  const auto expected = interpreted(p, memory);
  std::string difference;
  try {
    difference = expected.difference(native(p, k, memory));
  } catch (const std::exception& e) {
    difference = e.what();
  }
  if (!difference.empty()) {
    ADD_FAILURE() << "seed " << seed << (simplified ? " simplified" : "") << ": " << difference
                  << "\n"
                  << kernel::print(k);
  }
}

TEST(RandomKernelOnTheCpu, GivesTheBitsOfTheInterpreter) {
  const auto [from, count] = testing::random_seeds(40);
  for (u64 seed = from; seed < from + count; ++seed) {
    compare(seed, true);
    if (seed % 2 == 0) compare(seed, false);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace oa::codegen
