// The Vulkan device on whatever driver is there: memory, copies, submission, splitting, timing,
// errors. On a machine without Vulkan the tests are skipped.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <random>

#include "oa/core/error.h"
#include "oa/device/vulkan/device.h"
#include "oa/kernel/lang.h"

namespace oa::device::vulkan {
namespace {

using kernel::Buffer;
using kernel::Kernel;
using kernel::Scalar;
using kernel::Target;

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

// y[i] = y[i] * 3 + add for every i < n.
Kernel scale_kernel(const Target& target) {
  return kernel::trace("scale", target, target.width, [] {
    Buffer y = kernel::param_buffer(Scalar::U32);
    kernel::U32 n = kernel::param_u32();
    kernel::U32 add = kernel::param_u32();
    kernel::U32 i = kernel::group() * kernel::width() + kernel::lane();
    kernel::If(i < n, [&] { y[i] = kernel::U32(y[i]) * 3u + add; });
  });
}

// counts[group] += 1 and total[0] = number of workgroups.
Kernel count_kernel(const Target& target, u32 width) {
  return kernel::trace("count", target, width, [] {
    Buffer counts = kernel::param_buffer(Scalar::U32);
    Buffer total = kernel::param_buffer(Scalar::U32);
    kernel::If(kernel::lane() == 0u, [&] {
      counts.atomic(kernel::AtomicOp::Add, kernel::group(), kernel::U32(1));
      total[0] = kernel::group_count();
    });
  });
}

// out[k] = parameter k, with more parameters than fit into push constants.
Kernel many_parameters_kernel(const Target& target, u32 params) {
  return kernel::trace("many", target, target.width, [&] {
    Buffer out = kernel::param_buffer(Scalar::U32);
    std::vector<kernel::U32> values;
    for (u32 p = 1; p < params; ++p) values.push_back(kernel::param_u32());
    kernel::If((kernel::lane() | kernel::group()) == 0u, [&] {
      for (u32 p = 1; p < params; ++p) out[p - 1] = values[p - 1];
    });
  });
}

class ScratchCache {
 public:
  ScratchCache() { std::filesystem::remove_all(path()); }
  ~ScratchCache() { std::filesystem::remove_all(path()); }
  static std::string path() {
    return std::filesystem::temp_directory_path() / fmt::format("oa-vulkan-test-{}", getpid());
  }
};

enum class Mode {
  Plain,
  Validated,
  Unmapped,  // as a discrete GPU: no memory is mapped, so copies are staged; pipelines are cached
};

class VulkanDeviceTest : public testing::TestWithParam<Mode> {
 protected:
  void SetUp() override {
    std::string why;
    if (vulkan_devices(&why).empty()) GTEST_SKIP() << "no Vulkan device: " << why;
    options_.validation = GetParam() != Mode::Plain;
    static const ScratchCache cache;  // so that the driver is tried once
    options_.cache_dir = cache.path();
    try {
      device_ = open();
    } catch (const Error& e) {
      // Only the layers may be missing.
      ASSERT_TRUE(options_.validation && e.kind() == ErrorKind::BackendUnavailable) << e.what();
      GTEST_SKIP() << e.what();
    }
  }

  void TearDown() override {
    if (device_ == nullptr || device_->context()->is_lost()) return;
    u32 word = 0;
    const Memory memory = device_->allocate(4);
    EXPECT_NO_THROW(device_->read(memory, 0, &word, 4)) << "validation messages";
  }

  std::unique_ptr<VulkanDevice> open() {
    std::shared_ptr<Instance> instance = Instance::open(options_.validation);
    Physical physical = probe_all(*instance)[0];
    if (GetParam() == Mode::Unmapped) {
      physical.mapped = false;
      physical.info.kind = DeviceKind::DiscreteGpu;
    }
    auto context = std::make_shared<Context>(std::move(instance), std::move(physical));
    return std::make_unique<VulkanDevice>(std::move(context), options_);
  }

  std::shared_ptr<Executable> compile(const Kernel& kernel) {
    const Kernel* list[] = {&kernel};
    return device_->compile(list)[0];
  }

  std::vector<u32> read_words(const Memory& memory, size_t count) {
    std::vector<u32> words(count, 0xdeadbeef);
    device_->read(memory, 0, words.data(), count * 4);
    return words;
  }

  Memory make(const std::vector<u32>& words) {
    const Memory memory = device_->allocate(words.size() * 4);
    device_->write(memory, 0, words.data(), words.size() * 4);
    return memory;
  }

  Dispatch dispatch(CommandList& list, const Executable& kernel, u32 groups,
                    std::initializer_list<u64> args, bool barrier = true) {
    Dispatch d{.kernel = &kernel,
               .groups = groups,
               .first_arg = static_cast<u32>(list.args.size()),
               .arg_count = static_cast<u32>(args.size()),
               .barrier = barrier};
    for (u64 arg : args) list.args.push_back(arg);
    list.dispatches.push_back(d);
    return d;
  }

  u32 groups_for(u32 n) const {
    return (n + device_->target().width - 1) / device_->target().width;
  }

  DeviceOptions options_;
  std::unique_ptr<VulkanDevice> device_;
};

std::string mode_name(const testing::TestParamInfo<Mode>& mode) {
  constexpr const char* kNames[] = {"Plain", "Validated", "Unmapped"};
  return kNames[static_cast<int>(mode.param)];
}

INSTANTIATE_TEST_SUITE_P(Drivers, VulkanDeviceTest,
                         testing::Values(Mode::Plain, Mode::Validated, Mode::Unmapped), mode_name);

TEST_P(VulkanDeviceTest, DescribesItself) {
  const DeviceInfo& info = device_->info();
  EXPECT_EQ(info.id, "vulkan:0");
  EXPECT_FALSE(info.name.empty());
  EXPECT_FALSE(info.driver.empty());
  EXPECT_NE(info.kind, DeviceKind::Cpu);
  EXPECT_GT(info.memory_bytes, 0u);
  EXPECT_GE(info.capabilities.size(), 10u);
  for (const auto& [name, value] : info.capabilities) {
    EXPECT_FALSE(value.empty()) << name;
    RecordProperty(name, value);
  }
  const Target& target = device_->target();
  EXPECT_EQ(target.kind, Target::Kind::Vulkan);
  EXPECT_TRUE(std::has_single_bit(target.width));
  EXPECT_EQ(target.width % target.subgroup, 0u);
  EXPECT_GE(target.shared_bytes, 16384u);
  EXPECT_GE(target.threads, 1u);
}

TEST_P(VulkanDeviceTest, CopiesOddSizesAndOffsets) {
  std::mt19937 random(1);
  std::vector<u8> model(1 << 16);
  for (u8& b : model) b = static_cast<u8>(random());
  const Memory memory = device_->allocate(model.size());
  EXPECT_EQ(memory.bytes, model.size());
  EXPECT_EQ(memory.address % 256, 0u);
  device_->write(memory, 0, model.data(), model.size());
  for (u64 bytes : {0, 1, 3, 4, 5, 31, 257, 4093}) {
    for (u64 offset : {0, 1, 7, 256, 65536 - 4093}) {
      std::vector<u8> piece(bytes);
      for (u8& b : piece) b = static_cast<u8>(random());
      device_->write(memory, offset, piece.data(), bytes);
      std::copy(piece.begin(), piece.end(), model.begin() + offset);
      std::vector<u8> back(bytes);
      device_->read(memory, offset, back.data(), bytes);
      ASSERT_EQ(back, piece) << bytes << " at " << offset;
    }
  }
  std::vector<u8> all(model.size());
  device_->read(memory, 0, all.data(), all.size());
  EXPECT_EQ(all, model);
}

TEST_P(VulkanDeviceTest, CopiesMoreThanTheRingHolds) {
  const u64 bytes = (u64{40} << 20) + 13;
  std::vector<u8> data(bytes);
  for (u64 i = 0; i < bytes; ++i) data[i] = static_cast<u8>(i * 2654435761u >> 13);
  const Memory memory = device_->allocate(bytes);
  // A pending kernel keeps a mapped device from copying at once.
  const auto scale = compile(scale_kernel(device_->target()));
  const Memory words = make(std::vector<u32>(1024, 1));
  CommandList list;
  dispatch(list, *scale, groups_for(1024), {words.address, 1024, 0});
  device_->submit(list);
  device_->write(memory, 0, data.data(), bytes);
  std::vector<u8> back(bytes);
  device_->read(memory, 0, back.data(), bytes);
  EXPECT_EQ(std::memcmp(back.data(), data.data(), bytes), 0);
}

// Reads start wherever the writes before them left the ring.
TEST_P(VulkanDeviceTest, ReadsMoreThanTheRingHoldsFromAnyStart) {
  const u64 quarter = u64{8} << 20, bytes = 6 * quarter;
  std::vector<u8> data(bytes), back(bytes);
  for (u64 i = 0; i < bytes; ++i) data[i] = static_cast<u8>((i + (i >> 23)) * 2654435761u >> 13);
  const Memory memory = device_->allocate(bytes);
  for (u64 start = 0; start < 4; ++start) {
    device_->write(memory, 0, data.data(), bytes);
    device_->write(memory, 0, data.data(), start * quarter + 1);
    std::fill(back.begin(), back.end(), 0);
    device_->read(memory, 0, back.data(), bytes);
    EXPECT_EQ(std::memcmp(back.data(), data.data(), bytes), 0) << start;
  }
}

TEST_P(VulkanDeviceTest, LaterWritesWin) {
  const Memory memory = make(std::vector<u32>(64, 0));
  const auto scale = compile(scale_kernel(device_->target()));
  CommandList list;
  dispatch(list, *scale, groups_for(64), {memory.address, 64, 1});
  device_->submit(list);  // so that writes are gathered
  for (u32 i = 0; i < 200; ++i) {
    const u32 value = i;
    device_->write(memory, 4 * (i % 3), &value, 4);
  }
  const std::vector<u32> words = read_words(memory, 4);
  EXPECT_EQ(words, (std::vector<u32>{198, 199, 197, 1}));
}

TEST_P(VulkanDeviceTest, WritesAndListsKeepTheirOrder) {
  const auto scale = compile(scale_kernel(device_->target()));
  const u32 n = 1000;
  const Memory memory = make(std::vector<u32>(n, 1));
  u32 model = 1;
  for (u32 round = 0; round < 20; ++round) {
    CommandList list;
    dispatch(list, *scale, groups_for(n), {memory.address, n, round}, false);
    dispatch(list, *scale, groups_for(n), {memory.address, n, 7});
    device_->submit(list);
    model = (model * 3 + round) * 3 + 7;
    if (round % 3 == 0) {
      model = round;
      const std::vector<u32> fresh(n, model);
      device_->write(memory, 0, fresh.data(), n * 4);
    }
  }
  EXPECT_EQ(read_words(memory, n), std::vector<u32>(n, model));
}

TEST_P(VulkanDeviceTest, TicketsCompleteInOrder) {
  EXPECT_TRUE(device_->is_complete(0));
  EXPECT_NO_THROW(device_->wait(0));
  const Ticket before = device_->submit(CommandList{});
  EXPECT_NO_THROW(device_->wait(before));

  const auto scale = compile(scale_kernel(device_->target()));
  const Memory memory = make(std::vector<u32>(256, 0));
  std::vector<Ticket> tickets;
  for (u32 i = 0; i < 5; ++i) {
    CommandList list;
    dispatch(list, *scale, groups_for(256), {memory.address, 256, i});
    tickets.push_back(device_->submit(list));
    EXPECT_GT(tickets.back(), i == 0 ? before : tickets[i - 1]);
  }
  device_->wait(tickets[4]);
  for (Ticket t : tickets) EXPECT_TRUE(device_->is_complete(t));
  EXPECT_EQ(message_of([&] { device_->wait(tickets[4] + 1); }),
            fmt::format("vulkan::wait: the ticket was never given out, got {}, expected at most {}",
                        tickets[4] + 1, tickets[4]));
}

TEST_P(VulkanDeviceTest, EmptyDispatchesRunNothingButKeepTheirBarrier) {
  const auto scale = compile(scale_kernel(device_->target()));
  const Memory memory = make(std::vector<u32>(32, 5));
  CommandList list;
  dispatch(list, *scale, 0, {memory.address, 32, 1});
  const Ticket ticket = device_->submit(list, true);
  EXPECT_EQ(device_->durations(ticket), std::vector<f64>{0.0});
  EXPECT_EQ(read_words(memory, 32), std::vector<u32>(32, 5));

  const SplitLimits limits = device_->split_limits();
  std::vector<Dispatch> dispatches(3);
  dispatches[0].groups = 4;
  dispatches[1].barrier = true;
  dispatches[2].groups = 1;
  const Plan plan = plan_submission(dispatches, limits);
  ASSERT_EQ(plan.pieces.size(), 2u);
  EXPECT_TRUE(plan.pieces[0].barrier);
  EXPECT_TRUE(plan.pieces[1].barrier);
}

TEST_P(VulkanDeviceTest, ArgumentsBeyondPushConstantsGoThroughMemory) {
  for (u32 params : {15u, 16u, 17u, 31u, 32u, 33u, 200u}) {
    const auto many = compile(many_parameters_kernel(device_->target(), params));
    const Memory out = make(std::vector<u32>(params, 0));
    CommandList list;
    Dispatch d{.kernel = many.get(), .groups = 2, .arg_count = params};
    list.args.push_back(out.address);
    std::vector<u32> expected;
    for (u32 p = 1; p < params; ++p) {
      expected.push_back(p * 7919);
      list.args.push_back(p * 7919);
    }
    list.dispatches.push_back(d);
    device_->submit(list);
    EXPECT_EQ(read_words(out, params - 1), expected) << params;

    // The same, recorded: the arguments must live as long as the recording.
    const std::unique_ptr<Recorded> recorded = device_->record(list);
    const std::vector<u32> zeros(params, 0);
    for (int round = 0; round < 3; ++round) {
      device_->write(out, 0, zeros.data(), params * 4);
      device_->submit(*recorded);
      EXPECT_EQ(read_words(out, params - 1), expected) << params;
    }
  }
}

TEST_P(VulkanDeviceTest, RecordedListsRunAgainAndAgain) {
  const auto scale = compile(scale_kernel(device_->target()));
  const u32 n = 300;
  const Memory memory = make(std::vector<u32>(n, 2));
  CommandList list;
  dispatch(list, *scale, groups_for(n), {memory.address, n, 5});
  dispatch(list, *scale, groups_for(n), {memory.address, n, 6});
  std::unique_ptr<Recorded> recorded = device_->record(list);
  u32 model = 2;
  Ticket last = 0;
  for (int i = 0; i < 10; ++i) {
    last = device_->submit(*recorded);
    model = (model * 3 + 5) * 3 + 6;
  }
  recorded.reset();  // while it runs
  device_->wait(last);
  EXPECT_EQ(read_words(memory, n), std::vector<u32>(n, model));
}

TEST_P(VulkanDeviceTest, RecordingsAndKernelsMayOutliveTheDevice) {
  const auto scale = compile(scale_kernel(device_->target()));
  const Memory memory = make(std::vector<u32>(16, 2));
  CommandList list;
  dispatch(list, *scale, 1, {memory.address, 16, 5});
  std::unique_ptr<Recorded> recorded = device_->record(list);
  device_->submit(*recorded);
  device_.reset();
  recorded.reset();
}

// Every workgroup of a dispatch runs once, however the dispatch is cut.
TEST_P(VulkanDeviceTest, SplitsHugeDispatches) {
  const auto count = compile(count_kernel(device_->target(), device_->target().subgroup));
  const SplitLimits limits = device_->split_limits();
  for (const auto& [groups, in_grid, seconds] :
       std::vector<std::tuple<u32, u32, f64>>{{1000, 1u << 20, 1e9},
                                              {1000, 7, 1e9},
                                              {1000, 100, 1e9},
                                              {1001, 64, 0.1},
                                              {13, 1u << 20, 1e-3},
                                              {1, 1, 1e-9}}) {
    device_->split_limits() = limits;
    device_->split_limits().groups = in_grid;
    device_->split_limits().seconds = seconds;
    const Memory counts = make(std::vector<u32>(groups + 64, 0));
    const Memory total = make({0});
    CommandList list;
    dispatch(list, *count, groups, {counts.address, total.address});
    list.dispatches[0].flops = limits.flops_per_second;  // one second
    const Plan plan = plan_submission(list.dispatches, device_->split_limits());
    if (seconds == 0.1) {
      EXPECT_EQ(plan.parts.size(), 11u);
    }
    const Ticket ticket = device_->submit(list);
    EXPECT_EQ(ticket, device_->submit(CommandList{}));
    std::vector<u32> expected(groups + 64, 1);
    std::fill(expected.begin() + groups, expected.end(), 0);
    EXPECT_EQ(read_words(counts, groups + 64), expected)
        << groups << " " << in_grid << " " << seconds;
    EXPECT_EQ(read_words(total, 1)[0], groups);
    device_->release(counts);
    device_->release(total);
  }
  device_->split_limits() = limits;
}

TEST_P(VulkanDeviceTest, RunsMoreWorkgroupsThanAGridMayHave) {
  const u32 groups = 70001;  // above the 65535 that lavapipe and many GPUs have
  const auto count = compile(count_kernel(device_->target(), device_->target().subgroup));
  const Memory counts = make(std::vector<u32>(groups, 0));
  const Memory total = make({0});
  CommandList list;
  dispatch(list, *count, groups, {counts.address, total.address});
  device_->submit(list);
  EXPECT_EQ(read_words(counts, groups), std::vector<u32>(groups, 1));
}

TEST(VulkanPlan, PutsShortDispatchesTogetherAndLongOnesApart) {
  const SplitLimits limits{
      .groups = 65535, .flops_per_second = 1e9, .dispatch_seconds = 0, .seconds = 0.5};
  std::vector<Dispatch> dispatches;
  for (f64 flops : {2e8, 2e8, 2e8, 0.0, 2.4e9, 1e8}) {
    dispatches.push_back({.groups = 100, .flops = flops});
  }
  const Plan plan = plan_submission(dispatches, limits);
  // Two; one and the free one; five ranges, and the last joins the fifth unless that is full.
  ASSERT_EQ(plan.parts.size(), 8u);
  EXPECT_EQ(plan.parts[0].count, 2u);
  EXPECT_EQ(plan.parts[1].count, 2u);
  u32 next = 0;
  for (u32 p = 2; p < 7; ++p) {
    const Piece& piece = plan.pieces[plan.parts[p].first];
    EXPECT_EQ(piece.dispatch, 4u);
    EXPECT_EQ(piece.base, next);
    next += piece.count;
  }
  EXPECT_EQ(next, 100u);
  EXPECT_TRUE(plan.pieces[0].barrier);
  for (size_t i = 1; i < plan.pieces.size(); ++i) EXPECT_FALSE(plan.pieces[i].barrier);
}

TEST(VulkanPlan, SurvivesSenselessEstimates) {
  const SplitLimits limits{
      .groups = 65535, .flops_per_second = 1e9, .dispatch_seconds = 1e-6, .seconds = 0.5};
  for (f64 flops : {-1.0, std::nan(""), HUGE_VAL, 1e300}) {
    const std::vector<Dispatch> dispatches{{.groups = 3, .flops = flops}};
    const Plan plan = plan_submission(dispatches, limits);
    u32 sum = 0;
    for (const Piece& piece : plan.pieces) sum += piece.count;
    EXPECT_EQ(sum, 3u) << flops;
  }
}

TEST_P(VulkanDeviceTest, TimesEveryDispatch) {
  const auto scale = compile(scale_kernel(device_->target()));
  const u32 n = 1 << 16;
  const Memory memory = make(std::vector<u32>(n, 1));
  CommandList list;
  dispatch(list, *scale, groups_for(n), {memory.address, n, 1});
  dispatch(list, *scale, 0, {memory.address, n, 1});
  dispatch(list, *scale, groups_for(64), {memory.address, 64, 1});
  list.dispatches[0].flops = device_->split_limits().flops_per_second * 2;  // several parts
  const Ticket untimed = device_->submit(list);
  const Ticket timed = device_->submit(list, true);
  EXPECT_TRUE(device_->durations(untimed).empty());
  const std::vector<f64> seconds = device_->durations(timed);
  ASSERT_EQ(seconds.size(), 3u);
  EXPECT_GT(seconds[0], 0.0);
  EXPECT_LT(seconds[0], 10.0);
  EXPECT_EQ(seconds[1], 0.0);
  EXPECT_GE(seconds[2], 0.0);
  EXPECT_EQ(device_->durations(timed), seconds);
}

TEST_P(VulkanDeviceTest, RefusesWrongLists) {
  const auto scale = compile(scale_kernel(device_->target()));
  CommandList list;
  dispatch(list, *scale, 1, {1, 2});
  EXPECT_EQ(message_of([&] { device_->submit(list); }),
            "vulkan::submit: dispatch 0 of kernel 'scale' has the wrong number of arguments, "
            "got 2, expected 3");
  list.dispatches[0].arg_count = 3;
  EXPECT_EQ(message_of([&] { device_->record(list); }),
            "vulkan::record: dispatch 0 of kernel 'scale' reads arguments 0 to 3, expected at "
            "most 2");
  list.dispatches[0].kernel = nullptr;
  EXPECT_EQ(message_of([&] { device_->submit(list); }),
            "vulkan::submit: dispatch 0 has no kernel, expected a kernel compiled by this device");

  const auto other = open();
  const Kernel kernel = scale_kernel(other->target());
  const Kernel* kernels[] = {&kernel};
  const auto foreign = other->compile(kernels)[0];
  CommandList wrong;
  dispatch(wrong, *foreign, 1, {1, 2, 3});
  EXPECT_EQ(message_of([&] { device_->submit(wrong); }),
            "vulkan::submit: dispatch 0 has a kernel of another device, expected a kernel compiled "
            "by this device");
  const std::unique_ptr<Recorded> recorded = other->record(CommandList{});
  EXPECT_EQ(message_of([&] { device_->submit(*recorded); }),
            "vulkan::submit: the list was recorded by another device, expected one of this device");
}

TEST_P(VulkanDeviceTest, RefusesWrongMemory) {
  const Memory memory = device_->allocate(100);
  u8 byte = 0;
  EXPECT_EQ(message_of([&] { device_->write(memory, 100, &byte, 1); }),
            "vulkan::write: the range is outside the memory, got 1 bytes at offset 100, expected "
            "at most 100 bytes");
  EXPECT_EQ(message_of([&] { device_->read(memory, ~u64{0}, &byte, 1); }),
            "vulkan::read: the range is outside the memory, got 1 bytes at offset "
            "18446744073709551615, expected at most 100 bytes");
  EXPECT_NO_THROW(device_->write(memory, 100, nullptr, 0));
  device_->release(memory);
  const std::string gone = fmt::format(
      "the memory at {:#x} (100 bytes) is not allocated here, expected live memory of this device",
      memory.address);
  EXPECT_EQ(message_of([&] { device_->release(memory); }), "vulkan::release: " + gone);
  EXPECT_EQ(message_of([&] { device_->read(memory, 0, &byte, 1); }), "vulkan::read: " + gone);
}

TEST_P(VulkanDeviceTest, ReportsExhaustedMemoryWithSizes) {
  try {
    device_->allocate(u64{1} << 60);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::ResourceExhausted);
    EXPECT_NE(std::string(e.what()).find("got a request for 1152921504606846976 bytes"),
              std::string::npos)
        << e.what();
  }
  EXPECT_NO_THROW(device_->allocate(16));
}

TEST_P(VulkanDeviceTest, CountsMemory) {
  const MemoryReport before = device_->memory_report();
  const Memory a = device_->allocate(1000);
  const Memory b = device_->allocate(5000);
  EXPECT_EQ(device_->memory_report().allocated_bytes, before.allocated_bytes + 6000);
  device_->release(a);
  EXPECT_EQ(device_->memory_report().allocated_bytes, before.allocated_bytes + 5000);
  EXPECT_EQ(device_->memory_report().peak_bytes, before.allocated_bytes + 6000);
  EXPECT_EQ(device_->memory_report().allocations, before.allocations + 2);
  device_->release(b);
}

// Random allocations never overlap, and all space comes back.
TEST_P(VulkanDeviceTest, AllocationsNeverOverlap) {
  std::mt19937 random(7);
  std::map<u64, Memory> live;  // by address
  for (int i = 0; i < 3000; ++i) {
    if (live.size() > 100 || (!live.empty() && random() % 3 == 0)) {
      auto at = std::next(live.begin(), random() % live.size());
      device_->release(at->second);
      live.erase(at);
      continue;
    }
    const u64 bytes = random() % 8 == 0 ? random() % (1 << 20) : random() % 2000;
    const Memory m = device_->allocate(bytes);
    ASSERT_EQ(m.address % 256, 0u);
    auto after = live.lower_bound(m.address);
    if (after != live.end()) {
      ASSERT_LE(m.address + std::max<u64>(bytes, 1), after->first);
    }
    if (after != live.begin()) {
      const Memory& before = std::prev(after)->second;
      ASSERT_LE(before.address + std::max<u64>(before.bytes, 1), m.address);
    }
    live[m.address] = m;
  }
  for (const auto& [address, memory] : live) device_->release(memory);
  live.clear();
  const u64 reserved = device_->heap().reserved_bytes();
  // With everything released, one allocation of most of a block fits into what is there.
  const Memory large = device_->allocate(u64{31} << 20);
  EXPECT_EQ(device_->heap().reserved_bytes(), reserved);
  device_->release(large);
  const Memory own = device_->allocate(u64{300} << 20);
  EXPECT_GT(device_->heap().reserved_bytes(), reserved);
  device_->release(own);  // nothing runs, so it goes at once
  EXPECT_EQ(device_->heap().reserved_bytes(), reserved);
}

TEST_P(VulkanDeviceTest, ReleaseWaitsForSubmittedWork) {
  const auto scale = compile(scale_kernel(device_->target()));
  const u32 n = 1 << 16;
  const Memory memory = make(std::vector<u32>(n, 1));
  const Memory keep = make(std::vector<u32>(n, 1));
  CommandList list;
  for (u32 i = 0; i < 8; ++i) dispatch(list, *scale, groups_for(n), {memory.address, n, i});
  const Ticket ticket = device_->submit(list);
  const bool pending = !device_->is_complete(ticket);
  device_->release(memory);
  const Memory next = device_->allocate(n * 4);
  if (pending && !device_->is_complete(ticket)) {
    EXPECT_NE(next.address, memory.address);
  }
  device_->wait(ticket);
  EXPECT_EQ(read_words(keep, n), std::vector<u32>(n, 1));
}

TEST_P(VulkanDeviceTest, CompilesEqualKernelsOnce) {
  const Kernel a = scale_kernel(device_->target());
  Kernel b = scale_kernel(device_->target());
  b.name = "other name";
  const Kernel c = count_kernel(device_->target(), device_->target().width);
  const Kernel* kernels[] = {&a, &c, &b};
  const auto first = device_->compile(kernels);
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(first[0], first[2]);
  EXPECT_NE(first[0], first[1]);
  EXPECT_EQ(device_->compile(kernels), first);
  EXPECT_TRUE(device_->compile({}).empty());
}

TEST_P(VulkanDeviceTest, KeepsPipelinesOnDisk) {
  if (device_->context()->physical().is_software())
    GTEST_SKIP() << "compiles at the first dispatch";
  const auto count_files = [] {
    size_t files = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(ScratchCache::path())) {
      files += entry.path().string().find("vulkan-pipeline") != std::string::npos;
    }
    return files;
  };
  const Kernel kernel = many_parameters_kernel(device_->target(), 5);
  compile(kernel);
  const size_t files = count_files();
  EXPECT_GE(files, 1u);
  const auto other = open();
  const Kernel* one[] = {&kernel};
  EXPECT_NE(other->compile(one)[0], nullptr);
  EXPECT_EQ(count_files(), files);
}

TEST_P(VulkanDeviceTest, RefusesKernelsBeyondTheLimits) {
  const Target& target = device_->target();
  const u32 cells = target.shared_bytes / 4 + 1;
  const Kernel shared = kernel::trace("greedy", target, target.width, [&] {
    Buffer out = kernel::param_buffer(Scalar::F32);
    kernel::Shared tile(Scalar::F32, cells);
    tile[kernel::lane()] = kernel::F32(1.0f);
    kernel::barrier();
    out[kernel::lane()] = tile[kernel::lane()];
  });
  EXPECT_EQ(message_of([&] { compile(shared); }),
            fmt::format("vulkan::compile: kernel 'greedy' uses too much workgroup memory, got {} "
                        "bytes, expected at most {}",
                        cells * 4, target.shared_bytes));
  const u32 lanes = device_->context()->physical().max_group_lanes;
  const Kernel wide = count_kernel(target, std::bit_floor(lanes) * 2);
  EXPECT_EQ(message_of([&] { compile(wide); }),
            fmt::format("vulkan::compile: kernel 'count' has too many lanes, got {}, expected at "
                        "most {}",
                        std::bit_floor(lanes) * 2, lanes));
}

VkResult VKAPI_PTR lost_submit(VkQueue, u32, const VkSubmitInfo2*, VkFence) {
  return VK_ERROR_DEVICE_LOST;
}
VkResult VKAPI_PTR lost_counter(VkDevice, VkSemaphore, u64*) { return VK_ERROR_DEVICE_LOST; }

TEST_P(VulkanDeviceTest, ALostDeviceNamesItsKernelsAndStaysLost) {
  const auto scale = compile(scale_kernel(device_->target()));
  const auto count = compile(count_kernel(device_->target(), device_->target().width));
  const Memory memory = make(std::vector<u32>(64, 1));
  CommandList list;
  dispatch(list, *scale, 1, {memory.address, 64, 0});
  dispatch(list, *count, 1, {memory.address, memory.address});
  const std::unique_ptr<Recorded> recorded = device_->record(list);

  const auto real = device_->context()->api.vkQueueSubmit2;
  device_->context()->api.vkQueueSubmit2 = lost_submit;
  const std::string text = message_of([&] { device_->submit(*recorded); });
  device_->context()->api.vkQueueSubmit2 = real;
  EXPECT_EQ(text,
            fmt::format("vulkan::submit: the device '{}' was lost, got VK_ERROR_DEVICE_LOST; last "
                        "submitted kernels: scale, count; open a new device to go on",
                        device_->info().name));
  EXPECT_EQ(message_of([&] { device_->submit(list); }), text);
  EXPECT_EQ(message_of([&] { device_->wait(0); }), text);
  EXPECT_EQ(message_of([&] { device_->is_complete(0); }), text);
  EXPECT_EQ(message_of([&] { device_->allocate(1); }), text);
  u32 word = 0;
  EXPECT_EQ(message_of([&] { device_->read(memory, 0, &word, 4); }), text);
  EXPECT_EQ(message_of([&] { device_->write(memory, 0, &word, 4); }), text);
  EXPECT_EQ(message_of([&] { compile(scale_kernel(device_->target())); }), text);
  EXPECT_NO_THROW(device_->release(memory));

  const auto fresh = open();
  const Memory again = fresh->allocate(4);
  EXPECT_NO_THROW(fresh->write(again, 0, &word, 4));
}

TEST_P(VulkanDeviceTest, ALossIsFoundWhileWaiting) {
  const auto scale = compile(scale_kernel(device_->target()));
  const Memory memory = make(std::vector<u32>(64, 1));
  CommandList list;
  dispatch(list, *scale, 1, {memory.address, 64, 0});
  const Ticket ticket = device_->submit(list);
  device_->context()->api.vkGetSemaphoreCounterValue = lost_counter;
  const std::string text = message_of([&] { device_->wait(ticket); });
  EXPECT_NE(text.find("vulkan::wait: the device"), std::string::npos) << text;
  EXPECT_NE(text.find("last submitted kernels: scale;"), std::string::npos) << text;
}

TEST_P(VulkanDeviceTest, ValidationMessagesBecomeErrors) {
  if (!options_.validation) GTEST_SKIP() << "needs the validation layers";
  device_->context()->instance().inject_error("first");
  device_->context()->instance().inject_error("second");
  EXPECT_EQ(message_of([&] { device_->wait(0); }),
            "vulkan: the validation layers report 2 errors: first");
  EXPECT_NO_THROW(device_->wait(0)) << "messages are reported once";
}

// Sets a variable of the environment for the length of a test.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    setenv(name, value, 1);
  }
  ~Setting() {
    if (old_) {
      setenv(name_, old_->c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

TEST(OpenVulkan, WithoutADriverThereIsAReasonAndNoDevice) {
  const Setting drivers("VK_DRIVER_FILES", "/nonexistent/driver.json");
  const Setting old_drivers("VK_ICD_FILENAMES", "/nonexistent/driver.json");
  std::string why;
  EXPECT_TRUE(vulkan_devices(&why).empty());
  EXPECT_FALSE(why.empty());
  EXPECT_TRUE(vulkan_devices().empty());
  try {
    open_vulkan(0, {});
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_TRUE(e.kind() == ErrorKind::BackendUnavailable ||
                e.kind() == ErrorKind::NoSuitableDevice)
        << e.what();
  }
}

TEST(OpenVulkan, SaysThatTheValidationLayerIsMissing) {
  std::string why;
  if (vulkan_devices(&why).empty()) GTEST_SKIP() << "no Vulkan device: " << why;
  const Setting layers("VK_LAYER_PATH", "/nonexistent");
  EXPECT_EQ(message_of([] { open_vulkan(0, {.validation = true}); }),
            "open_vulkan: validation was asked for, got no layer VK_LAYER_KHRONOS_validation, "
            "expected it to be installed");
}

TEST(OpenVulkan, RefusesAnIndexThatIsNotThere) {
  std::string why;
  if (vulkan_devices(&why).empty()) GTEST_SKIP() << "no Vulkan device: " << why;
  const std::string text = message_of([] { open_vulkan(1000, {}); });
  EXPECT_EQ(text.find("open_vulkan: there is no such Vulkan device, got index 1000, expected"), 0u)
      << text;
}

}  // namespace
}  // namespace oa::device::vulkan
