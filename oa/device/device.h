// The interface of a device: memory, compiled kernels, and ordered execution of dispatch lists.
//
// A device runs command lists in the order of their submission; each has a ticket, and tickets
// complete in order. All calls come from the engine's thread. The native CPU (cpu/) runs a list
// inside submit(); Vulkan (vulkan/) runs it on the card's queue.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "oa/core/hash.h"
#include "oa/core/types.h"
#include "oa/kernel/ir.h"

namespace oa::device {

enum class DeviceKind : u8 { Cpu, DiscreteGpu, IntegratedGpu, SoftwareGpu };

struct DeviceInfo {
  std::string id;      // what Engine::open and OA_DEVICE accept: "cpu", "vulkan:0"
  std::string name;    // "AMD EPYC ...", "NVIDIA H200"
  std::string driver;  // driver name and version; LLVM version and CPU features on the CPU
  DeviceKind kind = DeviceKind::Cpu;
  u64 memory_bytes = 0;                                           // memory of the device
  u64 max_allocation = 0;                                         // largest single allocation
  std::vector<std::pair<std::string, std::string>> capabilities;  // for people: name, value
};

// One block of device memory.
struct Memory {
  u64 address = 0;  // what kernels see
  u64 bytes = 0;
  void* host = nullptr;  // the same memory for the host, where it can be mapped (always on the CPU)
  u64 handle = 0;        // the device's own key
};

struct MemoryReport {
  u64 allocated_bytes = 0;  // held now
  u64 peak_bytes = 0;
  u64 allocations = 0;  // calls of allocate() so far
};

// A kernel ready to run on the device that compiled it.
class Executable {
 public:
  virtual ~Executable() = default;
  const std::string& name() const { return name_; }

 protected:
  explicit Executable(std::string name) : name_(std::move(name)) {}

 private:
  std::string name_;
};

struct Dispatch {
  const Executable* kernel = nullptr;
  u32 groups = 0;     // workgroups; 0 is legal and runs nothing
  u32 first_arg = 0;  // index into CommandList::args
  u32 arg_count = 0;
  bool barrier = false;  // wait for the memory effects of every earlier dispatch of the list
  f64 flops = 0;  // estimate; lets Vulkan split a list before a watchdog fires (0: unknown, small)
};

// Dispatches with their parameters (kernel::Op::Param, 8 bytes each). Lists of one device run in
// order; the first dispatch of a list always waits for the lists before it.
struct CommandList {
  std::vector<Dispatch> dispatches;
  std::vector<u64> args;
};

// A list whose arguments stay the same, recorded once for cheap resubmission.
class Recorded {
 public:
  virtual ~Recorded() = default;
};

using Ticket = u64;  // 0: nothing submitted, always complete

class Device {
 public:
  virtual ~Device() = default;

  virtual const DeviceInfo& info() const = 0;
  virtual const kernel::Target& target() const = 0;

  // Memory is uninitialised and aligned to 256 bytes at least. Throws ResourceExhausted with the
  // sizes. release() of memory that submitted work still uses is safe: it is deferred.
  virtual Memory allocate(u64 bytes) = 0;
  virtual void release(const Memory& memory) = 0;
  virtual MemoryReport memory_report() const = 0;

  // Host copies, ordered with submitted lists: write() comes after everything submitted so far and
  // before what follows, and may return early (the source is consumed); read() waits.
  virtual void write(const Memory& to, u64 offset, const void* from, u64 bytes) = 0;
  virtual void read(const Memory& from, u64 offset, void* to, u64 bytes) = 0;

  // Compiles kernels, several at a time where that helps; memory and disk caches come first.
  virtual std::vector<std::shared_ptr<Executable>> compile(
      std::span<const kernel::Kernel* const> kernels) = 0;

  // Kernels that compile() found in none of this object's memory: compiled, or loaded from disk.
  // Devices that compile nothing make none.
  virtual u64 kernels_made() const { return 0; }

  // Runs a list. The kernels and the memory must stay alive until the ticket is complete. With
  // `timed`, durations() later tells the time of each dispatch.
  virtual Ticket submit(const CommandList& list, bool timed = false) = 0;
  virtual std::unique_ptr<Recorded> record(const CommandList& list) = 0;
  virtual Ticket submit(Recorded& list) = 0;

  // False where timed submissions have no durations.
  virtual bool has_timestamps() const { return true; }

  virtual bool is_complete(Ticket ticket) = 0;
  virtual void wait(Ticket ticket) = 0;  // throws BackendFailure if the device was lost
  // Seconds of each dispatch of a timed submission, empty if it was not timed. Waits.
  virtual std::vector<f64> durations(Ticket ticket) = 0;

  // Small facts about this driver that outlive the process, kept with its compiled kernels: such as
  // which of several was the fastest. Devices without a use for them know none.
  virtual std::optional<std::vector<u8>> recall(const Hash128&) { return std::nullopt; }
  virtual void remember(const Hash128&, std::span<const u8>) {}
};

struct DeviceOptions {
  u32 threads = 0;  // CPU worker threads including the caller; 0: OA_THREADS, else all cores
  bool validation = false;  // Vulkan validation layers; a message becomes an error
  std::string cache_dir;  // empty: OA_CACHE_DIR, else the user's cache folder; "-" : no disk cache
  f64 watchdog_seconds = 0.5;  // Vulkan: longest estimated submission
};

std::unique_ptr<Device> open_cpu(const DeviceOptions& options);
// `index` counts physical devices as listed by vulkan_devices().
std::unique_ptr<Device> open_vulkan(u32 index, const DeviceOptions& options);

// Physical Vulkan devices, best first within the loader's order; empty when there is no loader, no
// driver or no device that fits, with the reason in `why` if given.
std::vector<DeviceInfo> vulkan_devices(std::string* why = nullptr);
DeviceInfo cpu_info();

}  // namespace oa::device
