// Random programs: the text form, the verifier and the simplifier against the interpreter.
#include "tests/support/random_kernel.h"

#include <gtest/gtest.h>

#include "oa/core/error.h"
#include "oa/kernel/hash.h"
#include "oa/kernel/parse.h"
#include "oa/kernel/print.h"
#include "oa/kernel/simplify.h"
#include "oa/kernel/verify.h"

namespace oa::testing {
namespace {

RandomProgram program(u64 seed) {
  static constexpr u32 kWidths[] = {1, 2, 4, 8, 16, 32, 64};
  RandomOptions o;
  o.width = kWidths[seed % 7];
  o.size = 10 + static_cast<u32>(seed * 7 % 90);
  if (seed % 3 == 0) {
    o.target.kind = Target::Kind::Vulkan;
    o.target.subgroup = 1u << (seed % 5);
  }
  return RandomProgram(seed, o);
}

RandomProgram::Memory run(RandomProgram& p, const Kernel& k, RandomProgram::Memory memory) {
  const auto views = memory.views();
  InterpretOptions options{.max_steps = 200'000'000};
  interpret(k, p.args(views), views, RandomProgram::kGroups, options);
  return memory;
}

TEST(RandomKernel, IsLegalAndItsTextParsesBack) {
  const auto [from, count] = random_seeds(400);
  for (u64 seed = from; seed < from + count; ++seed) {
    const RandomProgram p = program(seed);
    ASSERT_NO_THROW(verify(p.kernel())) << print(p.kernel());
    const std::string text = print(p.kernel());
    ASSERT_EQ(hash(parse(text)), hash(p.kernel())) << text;
  }
}

TEST(RandomKernel, SimplifiedProgramsGiveTheSameBits) {
  size_t before = 0, after = 0;
  const auto [from, count] = random_seeds(400);
  for (u64 seed = from; seed < from + count; ++seed) {
    RandomProgram p = program(seed);
    const Kernel simple = simplify(p.kernel());
    ASSERT_NO_THROW(verify(simple)) << print(p.kernel()) << print(simple);
    const RandomProgram::Memory memory = p.memory();
    const auto expected = run(p, p.kernel(), memory);
    const auto got = run(p, simple, memory);
    ASSERT_EQ(expected.difference(got), "") << "seed " << seed << "\n"
                                            << print(p.kernel()) << print(simple);
    before += p.kernel().instrs.size(), after += simple.instrs.size();
  }
  EXPECT_LT(after * 2, before);
}

TEST(RandomKernel, SimplifyingTwiceChangesLittleAndKeepsTheBits) {
  const auto [from, count] = random_seeds(400);
  for (u64 seed = from; seed < from + count; seed += 3) {
    RandomProgram p = program(seed);
    const Kernel once = simplify(p.kernel()), twice = simplify(once);
    ASSERT_LE(twice.instrs.size(), once.instrs.size() + 2) << print(once) << print(twice);
    const RandomProgram::Memory memory = p.memory();
    ASSERT_EQ(run(p, once, memory).difference(run(p, twice, memory)), "") << seed;
  }
}

}  // namespace
}  // namespace oa::testing
