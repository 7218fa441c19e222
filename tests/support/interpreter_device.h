// A device that runs every kernel in the reference interpreter: for any target, so that what is
// compiled for a GPU can be checked without one. Reads of memory that nothing wrote, accesses
// outside of allocations, missing barriers inside a workgroup and clashes between workgroups are
// errors. Dispatches between two barriers run in reverse order: where they depend on each other,
// a barrier is missing and results are wrong.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "oa/core/error.h"
#include "oa/device/device.h"
#include "oa/kernel/check.h"

namespace oa::test {

// Targets as the native CPU and as a graphics card would state them.
inline kernel::Target cpu_target() { return {}; }
inline kernel::Target gpu_target() {
  kernel::Target t;
  t.kind = kernel::Target::Kind::Vulkan;
  t.width = 64;
  t.subgroup = 32;
  t.threads = 64;
  t.f64 = false;
  return t;
}

class InterpreterDevice : public device::Device {
 public:
  explicit InterpreterDevice(const kernel::Target& target) : target_(target) {
    info_.id = target.is_cpu() ? "interpreter:cpu" : "interpreter:gpu";
    info_.name = info_.id;
    info_.driver = "reference interpreter";
    info_.memory_bytes = info_.max_allocation = 1ull << 32;
  }

  const device::DeviceInfo& info() const override { return info_; }
  const kernel::Target& target() const override { return target_; }

  device::Memory allocate(u64 bytes) override {
    auto block = std::make_unique<Block>();
    block->data.resize(bytes + 256);
    block->written.assign(bytes, false);
    const u64 at = (reinterpret_cast<u64>(block->data.data()) + 255) / 256 * 256;
    device::Memory memory{.address = at, .bytes = bytes, .host = nullptr, .handle = ++last_handle_};
    block->view = {at, reinterpret_cast<void*>(at), bytes, &block->written};
    blocks_[memory.handle] = std::move(block);
    report_.allocated_bytes += bytes;
    report_.peak_bytes = std::max(report_.peak_bytes, report_.allocated_bytes);
    ++report_.allocations;
    return memory;
  }
  void release(const device::Memory& memory) override {
    const auto it = blocks_.find(memory.handle);
    OA_CHECK(it != blocks_.end());
    report_.allocated_bytes -= it->second->view.bytes;
    blocks_.erase(it);
  }
  device::MemoryReport memory_report() const override { return report_; }

  void write(const device::Memory& to, u64 offset, const void* from, u64 bytes) override {
    Block& b = *blocks_.at(to.handle);
    OA_CHECK(offset + bytes <= b.view.bytes);
    std::memcpy(static_cast<u8*>(b.view.data) + offset, from, bytes);
    for (u64 i = offset; i < offset + bytes; ++i) b.written[i] = true;
  }
  void read(const device::Memory& from, u64 offset, void* to, u64 bytes) override {
    Block& b = *blocks_.at(from.handle);
    OA_CHECK(offset + bytes <= b.view.bytes);
    for (u64 i = offset; i < offset + bytes; ++i) {
      if (b.written[i]) continue;
      fail(ErrorKind::Internal, "interpreter", "byte {} of {} was read but never written",
           i - offset, bytes);
    }
    std::memcpy(to, static_cast<u8*>(b.view.data) + offset, bytes);
  }

  std::vector<std::shared_ptr<device::Executable>> compile(
      std::span<const kernel::Kernel* const> kernels) override {
    std::vector<std::shared_ptr<device::Executable>> list;
    for (const kernel::Kernel* k : kernels) {
      list.push_back(std::make_shared<Held>(*k));
      ++compiled_;
    }
    return list;
  }

  device::Ticket submit(const device::CommandList& list, bool) override {
    size_t begin = 0;
    for (size_t i = 0; i <= list.dispatches.size(); ++i) {
      if (i < list.dispatches.size() && (i == begin || !list.dispatches[i].barrier)) continue;
      for (size_t k = i; k-- > begin;) dispatch(list, list.dispatches[k]);
      begin = i;
    }
    return ++last_ticket_;
  }
  std::unique_ptr<device::Recorded> record(const device::CommandList& list) override {
    return std::make_unique<HeldList>(list);
  }
  device::Ticket submit(device::Recorded& list) override {
    return submit(static_cast<HeldList&>(list).list, false);
  }
  bool is_complete(device::Ticket ticket) override { return ticket <= last_ticket_; }
  void wait(device::Ticket) override {}
  std::vector<f64> durations(device::Ticket) override { return {}; }

  u64 compiled() const { return compiled_; }

 private:
  struct Block {
    std::vector<u8> data;
    std::vector<bool> written;
    kernel::BufferView view;
  };
  struct Held final : device::Executable {
    explicit Held(const kernel::Kernel& k) : Executable(k.name), kernel(k) {}
    kernel::Kernel kernel;
  };
  struct HeldList final : device::Recorded {
    explicit HeldList(device::CommandList l) : list(std::move(l)) {}
    device::CommandList list;
  };

  // The blocks that the arguments point into, so that a stray address is found.
  void dispatch(const device::CommandList& list, const device::Dispatch& d) {
    const std::span<const u64> args(list.args.data() + d.first_arg, d.arg_count);
    std::vector<kernel::BufferView> views;
    for (const auto& [handle, block] : blocks_) {
      const kernel::BufferView& v = block->view;
      const bool used = std::any_of(args.begin(), args.end(), [&](u64 a) {
        return a >= v.address && a < v.address + v.bytes;
      });
      if (used) views.push_back(v);
    }
    kernel::run_checked(static_cast<const Held&>(*d.kernel).kernel, args, views, d.groups);
  }

  kernel::Target target_;
  device::DeviceInfo info_;
  std::map<u64, std::unique_ptr<Block>> blocks_;
  u64 last_handle_ = 0;
  device::MemoryReport report_;
  device::Ticket last_ticket_ = 0;
  u64 compiled_ = 0;
};

}  // namespace oa::test
