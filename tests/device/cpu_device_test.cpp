// The native CPU device: memory, copies, compilation with its caches, submission, timing, errors.
#include "oa/device/cpu/cpu_device.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <thread>

#include "oa/core/error.h"
#include "oa/core/file.h"
#include "oa/device/cpu/host.h"
#include "oa/kernel/lang.h"

namespace oa::device {
namespace {

namespace fs = std::filesystem;
using kernel::Buffer;
using kernel::Kernel;
using kernel::Scalar;

template <class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

// y[i] = y[i] * 3 + add for every i < n.
Kernel scale_kernel(const kernel::Target& target, u32 factor = 3, const char* name = "scale") {
  return kernel::trace(name, target, target.width, [&] {
    Buffer y = kernel::param_buffer(Scalar::U32);
    kernel::U32 n = kernel::param_u32();
    kernel::U32 add = kernel::param_u32();
    kernel::U32 i = kernel::group() * kernel::width() + kernel::lane();
    kernel::If(i < n, [&] { y[i] = kernel::U32(y[i]) * factor + add; });
  });
}

// out[i] = in[n-1-i] + 1 for every i < n: needs the whole of `in`.
Kernel reverse_kernel(const kernel::Target& target) {
  return kernel::trace("reverse", target, target.width, [&] {
    Buffer in = kernel::param_buffer(Scalar::U32);
    Buffer out = kernel::param_buffer(Scalar::U32);
    kernel::U32 n = kernel::param_u32();
    kernel::U32 i = kernel::group() * kernel::width() + kernel::lane();
    kernel::If(i < n, [&] { out[i] = kernel::U32(in[n - 1u - i]) + 1u; });
  });
}

void dispatch(CommandList& list, const Executable& kernel, u32 groups, std::vector<u64> args,
              bool barrier = false) {
  list.dispatches.push_back({.kernel = &kernel,
                             .groups = groups,
                             .first_arg = static_cast<u32>(list.args.size()),
                             .arg_count = static_cast<u32>(args.size()),
                             .barrier = barrier});
  list.args.insert(list.args.end(), args.begin(), args.end());
}

std::shared_ptr<Executable> compile(CpuDevice& device, const Kernel& kernel) {
  const Kernel* kernels[] = {&kernel};
  return device.compile(kernels).at(0);
}

Memory upload(CpuDevice& device, const std::vector<u32>& values) {
  const Memory m = device.allocate(values.size() * 4);
  device.write(m, 0, values.data(), values.size() * 4);
  return m;
}

std::vector<u32> download(CpuDevice& device, const Memory& m) {
  std::vector<u32> values(m.bytes / 4);
  device.read(m, 0, values.data(), m.bytes);
  return values;
}

u32 groups_for(const CpuDevice& device, size_t n) {
  const u32 width = device.target().width;
  return (static_cast<u32>(n) + width - 1) / width;
}

class CpuDeviceTest : public ::testing::TestWithParam<u32> {
 protected:
  CpuDevice device_{DeviceOptions{.threads = GetParam(), .cache_dir = "-"}};
};

INSTANTIATE_TEST_SUITE_P(Threads, CpuDeviceTest, ::testing::Values(1, 2, 3, 8));

TEST_P(CpuDeviceTest, DescribesItself) {
  EXPECT_EQ(device_.info().id, "cpu");
  EXPECT_EQ(device_.info().kind, DeviceKind::Cpu);
  EXPECT_GT(device_.info().memory_bytes, u64{1} << 26);
  EXPECT_NE(device_.info().name, "");
  EXPECT_TRUE(device_.target().is_cpu());
  EXPECT_EQ(device_.target().threads, GetParam());
  EXPECT_EQ(device_.target().width, 16u);
  EXPECT_GE(device_.target().vector_bytes, 16u);
}

TEST_P(CpuDeviceTest, CopiesOddSizesAndOffsets) {
  for (u64 bytes : {0, 1, 3, 255, 256, 257, 100003}) {
    const Memory m = device_.allocate(bytes);
    EXPECT_EQ(m.bytes, bytes);
    EXPECT_EQ(m.address % 256, 0u);
    EXPECT_EQ(m.host, reinterpret_cast<void*>(m.address));
    std::vector<u8> out(bytes), in(bytes, 0);
    std::iota(out.begin(), out.end(), u8{1});
    for (u64 at = 0; at < bytes; at += 77)
      device_.write(m, at, out.data() + at, std::min<u64>(77, bytes - at));
    for (u64 at = 0; at < bytes; at += 1001)
      device_.read(m, at, in.data() + at, std::min<u64>(1001, bytes - at));
    EXPECT_EQ(in, out);
    device_.release(m);
  }
}

TEST_P(CpuDeviceTest, RunsEveryElementCount) {
  const auto scale = compile(device_, scale_kernel(device_.target()));
  for (u32 n = 0; n <= 100; ++n) {
    std::vector<u32> values(n + 5);
    std::iota(values.begin(), values.end(), 7);
    const Memory m = upload(device_, values);
    CommandList list;
    dispatch(list, *scale, groups_for(device_, n), {m.address, n, 11});
    const Ticket ticket = device_.submit(list);
    EXPECT_TRUE(device_.is_complete(ticket));
    for (u32 i = 0; i < n; ++i) values[i] = values[i] * 3 + 11;
    EXPECT_EQ(download(device_, m), values);
    device_.release(m);
  }
}

TEST_P(CpuDeviceTest, DependentListsKeepTheirOrder) {
  const auto reverse = compile(device_, reverse_kernel(device_.target()));
  const auto scale = compile(device_, scale_kernel(device_.target()));
  for (u32 n : {1u, 17u, 1000u, 40000u}) {
    std::vector<u32> values(n);
    std::iota(values.begin(), values.end(), 0);
    const Memory a = upload(device_, values), b = upload(device_, values);
    CommandList list;
    const u32 groups = groups_for(device_, n);
    for (u32 step = 0; step < 50; ++step) {
      dispatch(list, *reverse, groups, {a.address, b.address, n}, true);
      dispatch(list, *scale, 0, {a.address, n, 0}, step % 2 == 0);  // runs nothing
      dispatch(list, *reverse, groups, {b.address, a.address, n}, true);
    }
    const auto recorded = device_.record(list);
    list.args.assign(list.args.size(), 0);  // the recording has its own copy
    for (u32 i = 0; i < 5; ++i) device_.submit(*recorded);
    for (u32& v : values) v += 500;
    EXPECT_EQ(download(device_, a), values);
    device_.release(a);
    device_.release(b);
  }
}

TEST_P(CpuDeviceTest, AnEmptyDispatchKeepsItsBarrier) {
  const auto reverse = compile(device_, reverse_kernel(device_.target()));
  constexpr u32 n = 20000;
  std::vector<u32> values(n);
  std::iota(values.begin(), values.end(), 0);
  const Memory a = upload(device_, values), b = upload(device_, values);
  CommandList list;
  const u32 groups = groups_for(device_, n);
  dispatch(list, *reverse, groups, {a.address, b.address, n});
  dispatch(list, *reverse, 0, {a.address, b.address, n}, true);
  dispatch(list, *reverse, groups, {b.address, a.address, n});
  for (u32 i = 1; i <= 50; ++i) {
    device_.submit(list);
    for (u32& v : values) v += 2;
    ASSERT_EQ(download(device_, a), values);
  }
}

TEST_P(CpuDeviceTest, IndependentDispatchesAllRun) {
  const auto scale = compile(device_, scale_kernel(device_.target()));
  std::vector<Memory> blocks;
  CommandList list;
  for (u32 i = 0; i < 40; ++i) {
    const u32 n = 1 + i * i * 3;
    blocks.push_back(upload(device_, std::vector<u32>(n, i)));
    dispatch(list, *scale, groups_for(device_, n), {blocks.back().address, n, 1});
  }
  device_.submit(list);
  for (u32 i = 0; i < 40; ++i)
    EXPECT_EQ(download(device_, blocks[i]), std::vector<u32>(1 + i * i * 3, 3 * i + 1));
}

TEST_P(CpuDeviceTest, TimesEveryDispatch) {
  const auto scale = compile(device_, scale_kernel(device_.target()));
  constexpr u32 n = 400000;
  const Memory m = upload(device_, std::vector<u32>(n, 1));
  CommandList list;
  dispatch(list, *scale, groups_for(device_, n), {m.address, n, 1});
  dispatch(list, *scale, 0, {m.address, n, 1});
  dispatch(list, *scale, groups_for(device_, 16), {m.address, 16, 1}, true);
  const Ticket timed = device_.submit(list, true);
  const Ticket untimed = device_.submit(list);
  const std::vector<f64> seconds = device_.durations(timed);
  ASSERT_EQ(seconds.size(), 3u);
  EXPECT_GT(seconds[0], 1e-6);
  EXPECT_GE(seconds[1], 0.0);
  EXPECT_GE(seconds[2], 0.0);
  EXPECT_TRUE(device_.durations(untimed).empty());
  EXPECT_EQ(download(device_, m)[0], ((1 * 3 + 1) * 3 + 1) * 9 + 4u);
  EXPECT_EQ(download(device_, m)[n - 1], (1 * 3 + 1) * 3 + 1u);
  for (u32 i = 0; i < 200; ++i) device_.submit(list, true);
  EXPECT_TRUE(device_.durations(timed).empty());  // only the latest are kept
}

TEST_P(CpuDeviceTest, TicketsGrowAndAreComplete) {
  const Ticket a = device_.submit(CommandList{}), b = device_.submit(CommandList{});
  EXPECT_LT(a, b);
  EXPECT_TRUE(device_.is_complete(0));
  EXPECT_TRUE(device_.is_complete(b));
  device_.wait(b);
  EXPECT_EQ(message_of([&] { device_.wait(b + 1); }),
            "cpu::wait: the ticket was never given out, got 3, expected at most 2");
}

TEST_P(CpuDeviceTest, RefusesWrongLists) {
  const auto scale = compile(device_, scale_kernel(device_.target()));
  CommandList list;
  dispatch(list, *scale, 1, {1, 2});
  EXPECT_EQ(message_of([&] { device_.submit(list); }),
            "cpu::submit: dispatch 0 of kernel 'scale' has the wrong number of arguments, got 2, "
            "expected 3");
  list.dispatches[0].arg_count = 3;
  EXPECT_EQ(message_of([&] { device_.record(list); }),
            "cpu::record: dispatch 0 of kernel 'scale' reads arguments 0 to 3, expected at most 2");
  list.dispatches[0].first_arg = ~0u;
  EXPECT_EQ(message_of([&] { device_.record(list); }),
            "cpu::record: dispatch 0 of kernel 'scale' reads arguments 4294967295 to 4294967298, "
            "expected at most 2");
  list.dispatches[0].kernel = nullptr;
  EXPECT_EQ(message_of([&] { device_.submit(list); }),
            "cpu::submit: dispatch 0 has no kernel, expected a kernel compiled by this device");

  CpuDevice other{DeviceOptions{.threads = 1, .cache_dir = "-"}};
  const auto foreign = compile(other, scale_kernel(other.target()));
  CommandList wrong;
  dispatch(wrong, *foreign, 1, {1, 2, 3});
  EXPECT_EQ(message_of([&] { device_.submit(wrong); }),
            "cpu::submit: dispatch 0 has a kernel of another device, expected a kernel compiled by "
            "this device");
  const std::unique_ptr<Recorded> recorded = other.record(CommandList{});
  EXPECT_EQ(message_of([&] { device_.submit(*recorded); }),
            "cpu::submit: the list was recorded by another device, expected one of this device");
}

TEST_P(CpuDeviceTest, RefusesWrongMemory) {
  const Memory memory = device_.allocate(100);
  u8 byte = 0;
  EXPECT_EQ(message_of([&] { device_.write(memory, 100, &byte, 1); }),
            "cpu::write: the range is outside the memory, got 1 bytes at offset 100, expected at "
            "most 100 bytes");
  EXPECT_EQ(message_of([&] { device_.read(memory, ~u64{0}, &byte, 2); }),
            "cpu::read: the range is outside the memory, got 2 bytes at offset "
            "18446744073709551615, expected at most 100 bytes");
  EXPECT_NO_THROW(device_.write(memory, 100, nullptr, 0));
  device_.release(memory);
  const std::string gone = fmt::format(
      "the memory at {:#x} (100 bytes) is not allocated here, expected live memory of this device",
      memory.address);
  EXPECT_EQ(message_of([&] { device_.release(memory); }), "cpu::release: " + gone);
  EXPECT_EQ(message_of([&] { device_.read(memory, 0, &byte, 1); }), "cpu::read: " + gone);
}

TEST_P(CpuDeviceTest, ReportsExhaustedMemoryWithSizes) {
  const Memory held = device_.allocate(5000);
  const u64 limit = device_.info().max_allocation;
  for (u64 bytes : {~u64{0}, ~u64{0} - 255, u64{1} << 63, limit + 1, limit - 4999}) {
    try {
      device_.allocate(bytes);
      FAIL() << "no error";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::ResourceExhausted);
      EXPECT_EQ(std::string(e.what()),
                fmt::format("cpu::allocate: out of memory, got a request for {} bytes with 5000 "
                            "bytes held, expected at most {} bytes together",
                            bytes, limit));
    }
  }
  EXPECT_EQ(device_.memory_report().allocations, 1u);
  device_.release(held);
}

TEST_P(CpuDeviceTest, CountsMemory) {
  const Memory a = device_.allocate(1000);
  const Memory b = device_.allocate(5 << 20);
  EXPECT_EQ(b.address % (2 << 20), 0u);
  EXPECT_EQ(device_.memory_report().allocated_bytes, 1000u + (5 << 20));
  device_.release(b);
  EXPECT_EQ(device_.memory_report().allocated_bytes, 1000u);
  EXPECT_EQ(device_.memory_report().peak_bytes, 1000u + (5 << 20));
  EXPECT_EQ(device_.memory_report().allocations, 2u);
  device_.release(a);
}

TEST_P(CpuDeviceTest, CompilesEqualKernelsOnce) {
  std::vector<Kernel> kernels;
  for (u32 i = 0; i < 12; ++i)
    kernels.push_back(scale_kernel(device_.target(), 2 + i % 4, i < 4 ? "first" : "again"));
  std::vector<const Kernel*> pointers;
  for (const Kernel& k : kernels) pointers.push_back(&k);
  const auto executables = device_.compile(pointers);
  ASSERT_EQ(executables.size(), 12u);
  EXPECT_EQ(device_.compile_statistics().compiled, 4u);
  EXPECT_EQ(device_.compile_statistics().from_memory, 8u);
  EXPECT_EQ(executables[3]->name(), "first");
  EXPECT_EQ(executables[7]->name(), "again");
  for (u32 i = 0; i < 12; ++i) {
    const Memory m = upload(device_, {10, 20, 30});
    CommandList list;
    dispatch(list, *executables[i], 1, {m.address, 2, 1});
    device_.submit(list);
    const u32 f = 2 + i % 4;
    EXPECT_EQ(download(device_, m), (std::vector<u32>{10 * f + 1, 20 * f + 1, 30}));
    device_.release(m);
  }
  device_.compile(pointers);
  EXPECT_EQ(device_.compile_statistics().compiled, 4u);
}

TEST_P(CpuDeviceTest, ABadKernelFailsItsBatchAndNothingElse) {
  const Kernel good = scale_kernel(device_.target());
  const Kernel huge = kernel::trace("huge", device_.target(), 16, [] {
    kernel::Shared s(Scalar::F32, 1 << 20);
    Buffer out = kernel::param_buffer(Scalar::F32);
    s[kernel::lane()] = kernel::F32(1.0f);
    out[kernel::lane()] = kernel::F32(s[kernel::lane()]);
  });
  const Kernel* batch[] = {&good, &huge};
  EXPECT_THROW(device_.compile(batch), Error);
  const auto scale = compile(device_, good);
  const Memory m = upload(device_, {1});
  CommandList list;
  dispatch(list, *scale, 1, {m.address, 1, 0});
  device_.submit(list);
  EXPECT_EQ(download(device_, m), std::vector<u32>{3});
}

TEST_P(CpuDeviceTest, RecordingsAndKernelsMayOutliveTheDevice) {
  auto device = std::make_unique<CpuDevice>(DeviceOptions{.threads = 2, .cache_dir = "-"});
  const auto scale = compile(*device, scale_kernel(device->target()));
  CommandList list;
  dispatch(list, *scale, 0, {0, 0, 0});
  const auto recorded = device->record(list);
  device.reset();
  EXPECT_THROW(device_.submit(*recorded), Error);
  EXPECT_EQ(scale->name(), "scale");
}

class CpuCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "oa-cpu-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { fs::remove_all(dir_); }

  CpuDevice open() const { return CpuDevice{DeviceOptions{.threads = 2, .cache_dir = dir_}}; }

  // Compiles the kernel in a fresh device, runs it and returns how it was obtained.
  CompileStatistics use() const {
    CpuDevice device = open();
    const auto scale = compile(device, scale_kernel(device.target()));
    const Memory m = upload(device, {1, 2, 3});
    CommandList list;
    dispatch(list, *scale, 1, {m.address, 3, 100});
    device.submit(list);
    EXPECT_EQ(download(device, m), (std::vector<u32>{103, 106, 109}));
    return device.compile_statistics();
  }

  fs::path only_file() const {
    EXPECT_EQ(std::distance(fs::directory_iterator(dir_), fs::directory_iterator()), 1);
    return fs::directory_iterator(dir_)->path();
  }

  std::string dir_;
};

TEST_F(CpuCacheTest, ASecondDeviceCompilesNothing) {
  EXPECT_EQ(use().compiled, 1u);
  const CompileStatistics second = use();
  EXPECT_EQ(second.compiled, 0u);
  EXPECT_EQ(second.from_disk, 1u);
}

TEST_F(CpuCacheTest, ADamagedFileIsCompiledAnew) {
  use();
  const fs::path path = only_file();
  std::vector<u8> bytes = read_file(path);
  bytes[bytes.size() / 2] ^= 1;
  write_file(path, bytes);
  EXPECT_EQ(use().compiled, 1u);
  EXPECT_EQ(use().from_disk, 1u);
}

TEST_F(CpuCacheTest, AnEntryThatIsNoObjectIsCompiledAnew) {
  use();
  // A well-formed entry, but with text in place of the object.
  const std::string name = only_file().filename().string();
  const Hash128 key{.lo = std::stoull(name.substr(16, 16), nullptr, 16),
                    .hi = std::stoull(name.substr(0, 16), nullptr, 16)};
  const std::string text = "this is no object file";
  codegen::CodeCache(dir_).put(key, "cpu", {reinterpret_cast<const u8*>(text.data()), text.size()});
  EXPECT_EQ(use().compiled, 1u);
  EXPECT_EQ(use().from_disk, 1u);
}

TEST_F(CpuCacheTest, AnUnusableDirectoryIsSurvived) {
  write_file(fs::path(dir_) / "plain", std::vector<u8>{1});
  dir_ += "/plain/below";
  EXPECT_EQ(use().compiled, 1u);
  EXPECT_NE(open().cache_statistics().reason, "");
  dir_ = fs::path(dir_).parent_path().parent_path();
}

// Sets OA_THREADS for one test.
class ThreadsVariable {
 public:
  explicit ThreadsVariable(const char* value) {
    if (const char* old = std::getenv("OA_THREADS")) old_ = old;
    ::setenv("OA_THREADS", value, 1);
  }
  ~ThreadsVariable() {
    old_.empty() ? ::unsetenv("OA_THREADS") : ::setenv("OA_THREADS", old_.c_str(), 1);
  }

 private:
  std::string old_;
};

TEST(CpuHost, CountsThreads) {
  {
    const ThreadsVariable v("3");
    EXPECT_EQ(thread_count(0), 3u);
    EXPECT_EQ(thread_count(5), 5u);  // the option comes first
    EXPECT_EQ(open_cpu({.cache_dir = "-"})->target().threads, 3u);
  }
  {
    const ThreadsVariable v("");
    EXPECT_GE(thread_count(0), 1u);
    EXPECT_LE(thread_count(0), homes(usable_cores()).size());
  }
  for (const char* bad : {"0", "-1", "two", "2x", " 2", "1025", "99999999999999", "1.5"}) {
    const ThreadsVariable v(bad);
    EXPECT_EQ(
        message_of([] { open_cpu({.cache_dir = "-"}); }),
        fmt::format("open_cpu: OA_THREADS is no thread count, got '{}', expected 1 to 1024", bad));
  }
  EXPECT_EQ(message_of([] { open_cpu({.threads = 2000, .cache_dir = "-"}); }),
            "open_cpu: too many threads, got 2000, expected at most 1024");
}

TEST(CpuHost, KnowsItsCoresAndMemory) {
  const std::vector<Core> cores = usable_cores();
  ASSERT_FALSE(cores.empty());
  for (size_t i = 0; i < cores.size(); ++i) {
    EXPECT_TRUE(i == 0 || cores[i - 1].number < cores[i].number);
    EXPECT_LE(cores[i].home, cores[i].number);
  }
  EXPECT_EQ(homes({{2, 2}, {3, 3}, {6, 2}, {7, 3}, {9, 9}}), (std::vector<u32>{2, 3, 9}));
  EXPECT_GT(memory_limit(), u64{1} << 26);
  EXPECT_EQ(cpu_info().id, "cpu");
}

TEST(CpuEstimate, GrowsWithTheWork) {
  const kernel::Target target;
  const auto loop = [&](u32 trips) {
    return estimate_group(
        kernel::trace("loop", target, 16,
                      [&] {
                        Buffer x = kernel::param_buffer(Scalar::F32);
                        kernel::For(kernel::lane(), kernel::U32(16 * trips), kernel::U32(16),
                                    [&](kernel::U32 i) { x[i] = kernel::F32(x[i]) * 2.0f + 1.0f; });
                      }),
        target);
  };
  EXPECT_TRUE(loop(10).certain);
  EXPECT_NEAR(loop(1000).ns / loop(100).ns, 10, 0.5);
  const GroupCost open =
      estimate_group(kernel::trace("open", target, 16,
                                   [&] {
                                     Buffer x = kernel::param_buffer(Scalar::F32);
                                     kernel::U32 n = kernel::param_u32();
                                     kernel::For(kernel::lane(), n, kernel::U32(16),
                                                 [&](kernel::U32 i) { x[i] = kernel::F32(1.0f); });
                                   }),
                     target);
  EXPECT_FALSE(open.certain);
  EXPECT_GT(open.ns, 0);
}

}  // namespace
}  // namespace oa::device
