// The Vulkan device behind oa/device/device.h: puts memory, queue, staging and pipelines together.
#pragma once

#include <map>
#include <memory>

#include "oa/device/vulkan/compiler.h"
#include "oa/device/vulkan/memory.h"
#include "oa/device/vulkan/queue.h"
#include "oa/device/vulkan/recording.h"
#include "oa/device/vulkan/staging.h"

namespace oa::device::vulkan {

// What recordings refer to as long as the device is open.
struct Core {
  Core(std::shared_ptr<Context> opened, f64 watchdog_seconds);

  std::shared_ptr<Context> context;
  Queue queue;
  Heap memory;
  Heap arguments;  // host-visible, for parameters beyond push constants
  Staging staging;
  SplitLimits limits;
};

// A list as command buffers that can be submitted again and again.
class RecordedList final : public Recorded {
 public:
  RecordedList(const std::shared_ptr<Core>& core, const CommandList& list);
  ~RecordedList() override;

  u64 submit(Core& core);
  bool belongs_to(const Core& core) const { return core_.lock().get() == &core; }

 private:
  struct RecordedPart {
    VkCommandBuffer buffer;
    std::vector<Label> kernels;
  };

  std::weak_ptr<Core> core_;
  std::vector<RecordedPart> parts_;
  std::optional<Memory> block_;
  u64 last_value_ = 0;
};

class VulkanDevice final : public Device {
 public:
  VulkanDevice(std::shared_ptr<Context> context, const DeviceOptions& options);
  ~VulkanDevice() override;

  const DeviceInfo& info() const override { return info_; }
  const kernel::Target& target() const override { return target_; }
  Memory allocate(u64 bytes) override;
  void release(const Memory& memory) override;
  MemoryReport memory_report() const override;
  void write(const Memory& to, u64 offset, const void* from, u64 bytes) override;
  void read(const Memory& from, u64 offset, void* to, u64 bytes) override;
  std::vector<std::shared_ptr<Executable>> compile(
      std::span<const kernel::Kernel* const> kernels) override;
  u64 kernels_made() const override { return compiler_.made(); }
  Ticket submit(const CommandList& list, bool timed = false) override;
  std::unique_ptr<Recorded> record(const CommandList& list) override;
  Ticket submit(Recorded& list) override;
  bool has_timestamps() const override { return context_->physical().timestamp_bits > 0; }
  bool is_complete(Ticket ticket) override;
  void wait(Ticket ticket) override;
  std::vector<f64> durations(Ticket ticket) override;
  std::optional<std::vector<u8>> recall(const Hash128& key) override;
  void remember(const Hash128& key, std::span<const u8> fact) override;

  // For the tests of this folder.
  const std::shared_ptr<Context>& context() const { return context_; }
  SplitLimits& split_limits() { return core_->limits; }
  const Heap& heap() const { return core_->memory; }
  const Trust& trust() const { return trust_; }

 private:
  struct Timed {
    std::unique_ptr<Timestamps> timestamps;  // until read
    std::vector<f64> seconds;
  };

  void run_trials();
  Hash128 of_this_driver(const Hash128& key) const;
  void collect();  // frees what completed work used
  void check_ticket(Ticket ticket, const char* op) const;
  // The value at which everything that was asked for so far, gathered uploads included, is done.
  u64 horizon() const;

  std::shared_ptr<Context> context_;
  std::shared_ptr<Core> core_;
  Compiler compiler_;
  Trust trust_;
  DeviceInfo info_;
  kernel::Target target_;
  MemoryReport report_;
  std::map<Ticket, Timed> timed_;
  std::map<Hash128, std::vector<u8>> facts_;
};

}  // namespace oa::device::vulkan
