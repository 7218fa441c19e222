// The native CPU as a device: host memory, JIT-compiled kernels, and a thread pool that runs a
// whole list inside submit().
#pragma once

#include <deque>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "oa/device/cpu/compiler.h"
#include "oa/device/cpu/thread_pool.h"
#include "oa/device/device.h"

namespace oa::device {

class CpuDevice : public Device {
 public:
  explicit CpuDevice(const DeviceOptions& options);
  ~CpuDevice() override;

  const DeviceInfo& info() const override { return info_; }
  const kernel::Target& target() const override { return target_; }

  Memory allocate(u64 bytes) override;
  void release(const Memory& memory) override;
  MemoryReport memory_report() const override { return report_; }
  void write(const Memory& to, u64 offset, const void* from, u64 bytes) override;
  void read(const Memory& from, u64 offset, void* to, u64 bytes) override;

  std::vector<std::shared_ptr<Executable>> compile(
      std::span<const kernel::Kernel* const> kernels) override {
    return compiler_.compile(kernels);
  }
  u64 kernels_made() const override {
    return compiler_.statistics().compiled + compiler_.statistics().from_disk;
  }

  Ticket submit(const CommandList& list, bool timed = false) override;
  std::unique_ptr<Recorded> record(const CommandList& list) override;
  Ticket submit(Recorded& list) override;

  bool is_complete(Ticket ticket) override;
  void wait(Ticket ticket) override;
  std::vector<f64> durations(Ticket ticket) override;

  const CompileStatistics& compile_statistics() const { return compiler_.statistics(); }
  codegen::CacheStatistics cache_statistics() const { return compiler_.disk_statistics(); }

 private:
  const u8* checked(std::string_view op, const Memory& memory, u64 offset, u64 bytes) const;
  void gather_work(std::string_view op, const CommandList& list, const u64* args);
  void check_ticket(std::string_view op, Ticket ticket) const;

  // Told apart by address: executables and recorded lists keep it alive.
  std::shared_ptr<const void> self_ = std::make_shared<char>();
  codegen::CpuTarget cpu_;
  DeviceInfo info_;
  kernel::Target target_;
  ThreadPool pool_;
  CpuCompiler compiler_;

  std::unordered_map<u64, u64> live_;  // address to bytes
  MemoryReport report_;

  Ticket last_ticket_ = 0;
  std::deque<std::pair<Ticket, std::vector<f64>>> timings_;  // of the latest timed submissions
  std::vector<Work> work_;                                   // scratch, as the next
  Schedule schedule_;
};

}  // namespace oa::device
