// Runs single kernels on a Vulkan device for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "oa/device/device.h"
#include "oa/kernel/lang.h"

namespace oa::device::test {

using Bytes = std::vector<u8>;

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <class T>
std::vector<T> values_of(const Bytes& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// Tests on the first Vulkan device, a software one in most places; skipped where there is none.
class VulkanTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!device_) {
      std::string why;
      if (vulkan_devices(&why).empty()) GTEST_SKIP() << "no Vulkan device: " << why;
      DeviceOptions options;
      options.cache_dir = "-";
      device_ = open_vulkan(0, options);
    }
  }
  static void TearDownTestSuite() { device_.reset(); }

  const kernel::Target& target() const { return device_->target(); }

  kernel::Kernel traced(const std::function<void()>& body, u32 width = 0) const {
    return kernel::trace("test", target(), width ? width : target().width, body);
  }

  // Parameters are the addresses of the buffers, then `extra`. The buffers come back changed.
  void run(const kernel::Kernel& k, u32 groups, const std::vector<Bytes*>& buffers,
           const std::vector<u64>& extra = {}) const {
    const kernel::Kernel* kernels[] = {&k};
    const auto executable = compile_ ? compile_(k) : device_->compile(kernels)[0];
    CommandList list;
    std::vector<Memory> memory;
    for (const Bytes* b : buffers) {
      memory.push_back(device_->allocate(std::max<u64>(b->size(), 4)));
      if (!b->empty()) device_->write(memory.back(), 0, b->data(), b->size());
      list.args.push_back(memory.back().address);
    }
    list.args.insert(list.args.end(), extra.begin(), extra.end());
    ASSERT_EQ(list.args.size(), k.params);
    list.dispatches.push_back({.kernel = executable.get(),
                               .groups = groups,
                               .first_arg = 0,
                               .arg_count = static_cast<u32>(list.args.size())});
    device_->wait(device_->submit(list));
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (!buffers[i]->empty()) {
        device_->read(memory[i], 0, buffers[i]->data(), buffers[i]->size());
      }
      device_->release(memory[i]);
    }
  }

  static inline std::unique_ptr<Device> device_;
  std::function<std::shared_ptr<Executable>(const kernel::Kernel&)> compile_;  // if not the device
};

}  // namespace oa::device::test
