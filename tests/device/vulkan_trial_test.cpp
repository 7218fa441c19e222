// The trials of Vulkan drivers: a correct machine passes them, and a slightly wrong one does not.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "oa/core/error.h"
#include "oa/device/vulkan/device.h"
#include "oa/device/vulkan/trial.h"
#include "oa/kernel/interpret.h"

namespace oa::device::vulkan {
namespace {

using kernel::Scalar;
using kernel::Target;

Target vulkan_target() {
  return {.kind = Target::Kind::Vulkan, .width = 32, .subgroup = 8, .fragments = true};
}

// The memory that the interpreter leaves for a trial.
std::vector<std::vector<u8>> interpreted(const Trial& trial) {
  std::vector<std::vector<u8>> memory;
  for (const Trial::Block& block : trial.blocks) memory.push_back(block.before);
  std::vector<kernel::BufferView> views;
  std::vector<u64> args;
  for (std::vector<u8>& m : memory) {
    args.push_back(0x10000 * (args.size() + 1));
    views.push_back({.address = args.back(), .data = m.data(), .bytes = m.size()});
  }
  kernel::interpret(trial.kernel, args, views, 1);
  return memory;
}

void expect_interpreter_passes(const Trial& trial) {
  const auto memory = interpreted(trial);
  for (size_t i = 0; i < memory.size(); ++i) EXPECT_EQ(memory[i], trial.blocks[i].after) << i;
}

TEST(VulkanTrial, ExpectsWhatTheKernelsMean) {
  for (Scalar s : {Scalar::F32, Scalar::F64}) {
    expect_interpreter_passes(fma_trial(vulkan_target(), s));
    expect_interpreter_passes(division_trial(vulkan_target(), s));
  }
  for (Scalar s : {Scalar::F16, Scalar::BF16}) {
    const Trial trial = fragment_trial(vulkan_target(), s);
    expect_interpreter_passes(trial);
    EXPECT_NE(trial.blocks[3].before, trial.blocks[3].after);
  }
  expect_interpreter_passes(
      fragment_trial(vulkan_target(), Scalar::F16, FragmentNumbers::Subnormal));
}

TEST(VulkanTrial, FindsSubnormalHalvesThatAreFlushed) {
  Trial trial = fragment_trial(vulkan_target(), Scalar::F16, FragmentNumbers::Subnormal);
  for (size_t i = 1; i < trial.blocks[0].before.size(); i += 2) {
    EXPECT_EQ(trial.blocks[0].before[i] & 0x7c, 0) << "a normal half at " << i / 2;
  }
  std::ranges::fill(trial.blocks[0].before, u8{0});
  EXPECT_NE(interpreted(trial)[3], trial.blocks[3].after);
}

// Replaces every Fma of a kernel by a multiplication: a driver that rounds twice and worse.
TEST(VulkanTrial, FindsWrongArithmetic) {
  for (Scalar s : {Scalar::F32, Scalar::F64}) {
    Trial trial = fma_trial(vulkan_target(), s);
    for (kernel::Instr& i : trial.kernel.instrs) {
      if (i.op == kernel::Op::Fma)
        i = {.op = kernel::Op::Mul, .type = i.type, .args = {i.args[0], i.args[1]}};
    }
    EXPECT_NE(interpreted(trial)[3], trial.blocks[3].after);
  }
  Trial fragments = fragment_trial(vulkan_target(), Scalar::F16);
  for (kernel::Instr& i : fragments.kernel.instrs) {
    if (i.op == kernel::Op::FragLoad && i.type.use == kernel::FragUse::B) i.imm ^= 1;
  }
  EXPECT_NE(interpreted(fragments)[3], fragments.blocks[3].after);
}

class VulkanTrust : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (vulkan_devices(&why).empty()) GTEST_SKIP() << "no Vulkan device: " << why;
    directory_ = std::filesystem::temp_directory_path() / fmt::format("oa-trial-{}", getpid());
    std::filesystem::remove_all(directory_);
  }
  void TearDown() override {
    if (!directory_.empty()) std::filesystem::remove_all(directory_);
  }

  static std::unique_ptr<VulkanDevice> open(const std::string& cache) {
    auto device = open_vulkan(0, {.cache_dir = cache});
    return std::unique_ptr<VulkanDevice>(dynamic_cast<VulkanDevice*>(device.release()));
  }

  std::filesystem::path directory_;
};

TEST_F(VulkanTrust, IsFoundOncePerDriver) {
  const auto first = open(directory_.string());
  const auto second = open(directory_.string());
  const auto uncached = open("-");
  EXPECT_EQ(first->trust(), second->trust());
  EXPECT_EQ(first->trust(), uncached->trust());
  EXPECT_EQ(first->memory_report().allocations, 0u);

  codegen::CodeCache disk(directory_.string());
  int runs = 0;
  const CompileOne count = [&](const kernel::Kernel& k) {
    ++runs;
    const kernel::Kernel* one[] = {&k};
    return first->compile(one)[0];
  };
  EXPECT_EQ(find_trust(*first, first->context()->physical(), disk, count), first->trust());
  EXPECT_EQ(runs, 0);
  codegen::CodeCache none("-");
  find_trust(*first, first->context()->physical(), none, count);
  EXPECT_GT(runs, 0);
}

// A trial that never came to its end is begun again, but not for ever.
TEST_F(VulkanTrust, GivesUpOnTrialsThatNeverEnd) {
  const auto device = open("-");
  Physical physical = device->context()->physical();
  physical.target.fragments = true;
  codegen::CodeCache disk(directory_.string());
  struct Killed {};
  int begun = 0;
  const CompileOne die = [&](const kernel::Kernel& k) -> std::shared_ptr<Executable> {
    if (k.name != "trial fragments") fail(ErrorKind::BackendFailure, "test", "no");
    ++begun;
    throw Killed();
  };
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW(find_trust(*device, physical, disk, die), Killed);
  }
  EXPECT_EQ(find_trust(*device, physical, disk, die), Trust{});
  EXPECT_EQ(begun, 3);
}

TEST_F(VulkanTrust, ALostDeviceIsNotTriedAgain) {
  const auto device = open("-");
  Physical physical = device->context()->physical();
  physical.target.fragments = true;
  codegen::CodeCache disk(directory_.string());
  // Any kernel will do for a device that dies when it runs.
  const kernel::Kernel plain = division_trial(physical.target, Scalar::F32).kernel;
  const CompileOne compile = [&](const kernel::Kernel& k) {
    if (k.name == "trial fragments") {
      device->context()->api.vkQueueSubmit2 = [](VkQueue, u32, const VkSubmitInfo2*, VkFence) {
        return VK_ERROR_DEVICE_LOST;
      };
    }
    const kernel::Kernel* one[] = {&plain};
    return device->compile(one)[0];
  };
  EXPECT_THROW(find_trust(*device, physical, disk, compile), Error);
  EXPECT_TRUE(device->context()->is_lost());
  const auto next = open("-");
  const CompileOne never = [](const kernel::Kernel&) -> std::shared_ptr<Executable> {
    ADD_FAILURE() << "tried again";
    return nullptr;
  };
  EXPECT_FALSE(find_trust(*next, physical, disk, never).fragments);
}

TEST_F(VulkanTrust, FollowsTheOutcome) {
  const auto device = open("-");
  codegen::CodeCache none("-");
  const CompileOne refuse = [](const kernel::Kernel&) -> std::shared_ptr<Executable> {
    fail(ErrorKind::BackendFailure, "test", "no");
  };
  EXPECT_EQ(find_trust(*device, device->context()->physical(), none, refuse), Trust{});
  EXPECT_EQ(device->target().fragments,
            device->context()->physical().target.fragments && device->trust().fragments);
}

}  // namespace
}  // namespace oa::device::vulkan
