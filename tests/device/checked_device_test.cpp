// The checking device: right programs give right results, wrong ones are named.
#include "oa/device/checked/checked_device.h"

#include <gtest/gtest.h>

#include "oa/core/error.h"
#include "oa/device/select.h"
#include "oa/kernel/lang.h"

namespace oa::device {
namespace {

using namespace oa::kernel;

class CheckedDeviceTest : public testing::Test {
 protected:
  Memory filled(u32 count, f32 value) {
    const Memory m = device_->allocate(count * 4);
    const std::vector<f32> data(count, value);
    device_->write(m, 0, data.data(), count * 4);
    return m;
  }

  // y[i] = x[i] + 1 for the lanes of all groups.
  std::shared_ptr<Executable> add_one() {
    const Kernel k = trace("add_one", device_->target(), 16, [] {
      Buffer x = param_buffer(Scalar::F32), y = param_buffer(Scalar::F32);
      const U32 i = group() * U32(16) + lane();
      y[i] = F32(x[i]) + 1.0f;
    });
    const Kernel* const kernels[] = {&k};
    return device_->compile(kernels)[0];
  }

  std::string error_of(const CommandList& list) {
    try {
      device_->submit(list);
    } catch (const Error& e) {
      return e.message();
    }
    return "no error";
  }

  std::unique_ptr<Device> device_ = open("checked");
};

TEST_F(CheckedDeviceTest, RunsListsInOrder) {
  const auto k = add_one();
  const Memory x = filled(32, 1.0f), y = device_->allocate(128), z = device_->allocate(128);
  CommandList list{
      .dispatches =
          {{.kernel = k.get(), .groups = 2, .first_arg = 0, .arg_count = 2},
           {.kernel = k.get(), .groups = 2, .first_arg = 2, .arg_count = 2, .barrier = true}},
      .args = {x.address, y.address, y.address, z.address}};
  device_->submit(list);
  std::vector<f32> out(32);
  device_->read(z, 0, out.data(), 128);
  EXPECT_EQ(out, std::vector<f32>(32, 3.0f));
  const auto recorded = device_->record(list);
  EXPECT_TRUE(device_->is_complete(device_->submit(*recorded)));
  EXPECT_EQ(device_->durations(device_->submit(list, true)).size(), 2u);
}

TEST_F(CheckedDeviceTest, ReportsAMissingBarrierBetweenDispatches) {
  const auto k = add_one();
  const Memory x = filled(32, 1.0f), y = device_->allocate(128), z = device_->allocate(128);
  CommandList list{.dispatches = {{.kernel = k.get(), .groups = 2, .first_arg = 0, .arg_count = 2},
                                  {.kernel = k.get(), .groups = 2, .first_arg = 2, .arg_count = 2}},
                   .args = {x.address, y.address, y.address, z.address}};
  EXPECT_NE(error_of(list).find("race between dispatches, the cell was written by an earlier one "
                                "without a barrier in between"),
            std::string::npos);
  list.args = {x.address, y.address, x.address, z.address};  // two readers of one buffer
  EXPECT_EQ(error_of(list), "no error");
  list.args = {x.address, y.address, z.address, x.address};  // the second overwrites the input
  EXPECT_NE(error_of(list).find("the cell was read by an earlier one"), std::string::npos);
  // A barrier covers everything before it, also what an earlier dispatch did.
  list.dispatches.push_back(list.dispatches[0]);
  list.dispatches[2].barrier = true;
  list.dispatches[2].first_arg = 4;
  list.args = {x.address, y.address, x.address, z.address, y.address, z.address};
  EXPECT_EQ(error_of(list), "no error");
}

TEST_F(CheckedDeviceTest, ReportsReadsOfUnwrittenMemoryAndBounds) {
  const auto k = add_one();
  const Memory x = device_->allocate(128), y = device_->allocate(128);
  CommandList list{.dispatches = {{.kernel = k.get(), .groups = 2, .first_arg = 0, .arg_count = 2}},
                   .args = {x.address, y.address}};
  EXPECT_NE(error_of(list).find("never written, at byte 0 of the 128 bytes"), std::string::npos);
  std::vector<f32> out(32);
  EXPECT_THROW(device_->read(y, 0, out.data(), 128), Error);
  const Memory full = filled(32, 0.0f);
  list.args[0] = full.address;
  list.dispatches[0].groups = 3;
  EXPECT_NE(error_of(list).find("out of bounds, got index 32, expected 0 .. 31"),
            std::string::npos);
}

TEST_F(CheckedDeviceTest, RefusesForeignKernelsAndMemory) {
  const auto other = open("checked_gpu");
  EXPECT_EQ(other->target().kind, Target::Kind::Vulkan);
  const auto k = add_one();
  const Memory x = filled(16, 1.0f);
  const CommandList list{
      .dispatches = {{.kernel = k.get(), .groups = 1, .first_arg = 0, .arg_count = 2}},
      .args = {x.address, x.address}};
  EXPECT_THROW(other->submit(list), Error);
  EXPECT_THROW(other->release(x), Error);
  CommandList short_list = list;
  short_list.args.pop_back();
  EXPECT_THROW(device_->submit(short_list), Error);
  device_->release(x);
  EXPECT_THROW(device_->release(x), Error);
  EXPECT_EQ(device_->memory_report().allocated_bytes, 0u);
  EXPECT_THROW(device_->allocate(~0ull), Error);
}

}  // namespace
}  // namespace oa::device
