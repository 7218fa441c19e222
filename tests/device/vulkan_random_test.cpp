// Random programs: a Vulkan device against the reference interpreter. Floats stay away from what
// devices may do their own way (subnormals, NaN, fused multiplication).
#include <gtest/gtest.h>

#include "oa/kernel/print.h"
#include "oa/kernel/simplify.h"
#include "tests/device/vulkan_run.h"
#include "tests/support/random_kernel.h"

namespace oa::device {
namespace {

using oa::testing::RandomOptions;
using oa::testing::RandomProgram;

class VulkanRandom : public test::VulkanTest {
 protected:
  RandomProgram program(u64 seed) const {
    RandomOptions o;
    o.target = target();
    o.width = 1u << (3 + seed % 5);
    o.size = 10 + static_cast<u32>(seed * 7 % 60);
    o.wide = false;
    o.exact_floats = false;
    return RandomProgram(seed, o);
  }

  RandomProgram::Memory on_device(RandomProgram& p, const kernel::Kernel& k,
                                  RandomProgram::Memory memory) const {
    const auto views = memory.views();
    std::vector<test::Bytes> bytes;
    std::vector<test::Bytes*> buffers;
    bytes.reserve(views.size());
    for (const kernel::BufferView& v : views) {
      const u8* data = static_cast<const u8*>(v.data);
      bytes.emplace_back(data, data + v.bytes);
      buffers.push_back(&bytes.back());
    }
    const std::vector<u64> args = p.args(views);
    run(k, RandomProgram::kGroups, buffers,
        {args.begin() + static_cast<i64>(views.size()), args.end()});
    for (size_t b = 0; b < views.size(); ++b) {
      std::memcpy(views[b].data, bytes[b].data(), bytes[b].size());
    }
    return memory;
  }
};

TEST_F(VulkanRandom, GivesTheBitsOfTheInterpreter) {
  const auto [from, count] = oa::testing::random_seeds(20);
  for (u64 seed = from; seed < from + count; ++seed) {
    RandomProgram p = program(seed);
    const RandomProgram::Memory memory = p.memory();
    RandomProgram::Memory expected = memory;
    const auto views = expected.views();
    kernel::interpret(p.kernel(), p.args(views), views, RandomProgram::kGroups);
    for (const kernel::Kernel& k : {kernel::simplify(p.kernel()), p.kernel()}) {
      const std::string difference = expected.difference(on_device(p, k, memory));
      ASSERT_EQ(difference, "") << "seed " << seed << "\n" << kernel::print(k);
      if (seed % 4) break;  // the traced form of some is enough
    }
  }
}

}  // namespace
}  // namespace oa::device
