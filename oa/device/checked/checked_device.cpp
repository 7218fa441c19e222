#include "oa/device/checked/checked_device.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <unordered_map>

#include "oa/core/error.h"
#include "oa/kernel/interpret_memory.h"
#include "oa/kernel/verify.h"

namespace oa::device {
namespace {

constexpr u64 kAlignment = 256;
constexpr u64 kMaxBytes = u64{4} << 30;

struct CheckedExecutable : Executable {
  CheckedExecutable(kernel::Kernel k, const void* owned_by)
      : Executable(k.name), kernel(std::move(k)), owner(owned_by) {}
  kernel::Kernel kernel;
  const void* owner;
};

struct CheckedRecorded : Recorded {
  CommandList list;
};

class CheckedDevice : public Device {
 public:
  explicit CheckedDevice(CheckedShape shape) {
    const bool gpu = shape == CheckedShape::Gpu;
    target_.kind = gpu ? kernel::Target::Kind::Vulkan : kernel::Target::Kind::Cpu;
    target_.width = gpu ? 64 : 16;
    target_.subgroup = gpu ? 8 : 16;
    target_.threads = 4;
    target_.f64 = true;
    target_.fragments = target_.fragments_bf16 = target_.fragments_subnormal = gpu;
    info_.id = gpu ? "checked_gpu" : "checked";
    info_.name = "reference interpreter";
    info_.driver = "checks races, bounds and initialisation";
    info_.kind = DeviceKind::Cpu;
    info_.memory_bytes = info_.max_allocation = kMaxBytes;
  }

  const DeviceInfo& info() const override { return info_; }
  const kernel::Target& target() const override { return target_; }
  MemoryReport memory_report() const override { return report_; }

  Memory allocate(u64 bytes) override {
    if (bytes > kMaxBytes - report_.allocated_bytes) {
      fail(
          ErrorKind::ResourceExhausted, "checked::allocate",
          "out of memory, got a request for {} bytes with {} bytes held, expected at most {} bytes "
          "together",
          bytes, report_.allocated_bytes, kMaxBytes);
    }
    Block b;
    b.bytes = bytes;
    b.data.resize(bytes + kAlignment);
    b.written.resize(bytes);
    const u64 start = reinterpret_cast<u64>(b.data.data());
    const u64 address = (start + kAlignment - 1) / kAlignment * kAlignment;
    blocks_.emplace(address, std::move(b));
    report_.allocated_bytes += bytes;
    report_.peak_bytes = std::max(report_.peak_bytes, report_.allocated_bytes);
    ++report_.allocations;
    return {.address = address, .bytes = bytes, .host = nullptr, .handle = address};
  }

  void release(const Memory& memory) override {
    block("checked::release", memory, 0, 0);
    blocks_.erase(memory.address);
    report_.allocated_bytes -= memory.bytes;
  }

  void write(const Memory& to, u64 offset, const void* from, u64 bytes) override {
    Block& b = block("checked::write", to, offset, bytes);
    if (bytes) std::memcpy(reinterpret_cast<void*>(to.address + offset), from, bytes);
    std::fill_n(b.written.begin() + static_cast<i64>(offset), bytes, true);
  }

  void read(const Memory& from, u64 offset, void* to, u64 bytes) override {
    const Block& b = block("checked::read", from, offset, bytes);
    const auto begin = b.written.begin() + static_cast<i64>(offset);
    const auto end = begin + static_cast<i64>(bytes);
    if (const auto missing = std::find(begin, end, false); missing != end) {
      fail(ErrorKind::Internal, "checked::read",
           "byte {} of a read of {} bytes was never written, expected initialised memory",
           missing - begin, bytes);
    }
    if (bytes) std::memcpy(to, reinterpret_cast<const void*>(from.address + offset), bytes);
  }

  std::vector<std::shared_ptr<Executable>> compile(
      std::span<const kernel::Kernel* const> kernels) override {
    std::vector<std::shared_ptr<Executable>> out;
    for (const kernel::Kernel* k : kernels) {
      kernel::verify(*k);
      out.push_back(std::make_shared<CheckedExecutable>(*k, this));
    }
    return out;
  }

  Ticket submit(const CommandList& list, bool timed) override {
    run(list);
    ++last_;
    timed_ticket_ = timed ? last_ : timed_ticket_;
    return last_;
  }

  std::unique_ptr<Recorded> record(const CommandList& list) override {
    auto recorded = std::make_unique<CheckedRecorded>();
    recorded->list = list;
    return recorded;
  }

  Ticket submit(Recorded& recorded) override {
    run(dynamic_cast<CheckedRecorded&>(recorded).list);
    return ++last_;
  }

  bool is_complete(Ticket) override { return true; }
  void wait(Ticket) override {}
  std::vector<f64> durations(Ticket ticket) override {
    return ticket != 0 && ticket == timed_ticket_ ? seconds_ : std::vector<f64>();
  }

 private:
  struct Block {
    u64 bytes = 0;
    std::vector<std::byte> data;
    std::vector<bool> written;
  };

  Block& block(std::string_view op, const Memory& memory, u64 offset, u64 bytes) {
    const auto found = blocks_.find(memory.address);
    if (found == blocks_.end() || found->second.bytes != memory.bytes) {
      invalid(op,
              "the memory at {:#x} ({} bytes) is not allocated here, expected live memory of this "
              "device",
              memory.address, memory.bytes);
    }
    if (offset > memory.bytes || bytes > memory.bytes - offset) {
      fail(ErrorKind::OutOfRange, op,
           "the range is outside the memory, got {} bytes at offset {}, expected at most {} bytes",
           bytes, offset, memory.bytes);
    }
    return found->second;
  }

  const CheckedExecutable& executable(const CommandList& list, const Dispatch& d) const {
    const auto* e = dynamic_cast<const CheckedExecutable*>(d.kernel);
    if (!e || e->owner != this) {
      invalid("checked::submit", "a dispatch has {}, expected a kernel compiled by this device",
              d.kernel ? "a kernel of another device" : "no kernel");
    }
    if (d.arg_count != e->kernel.params || u64{d.first_arg} + d.arg_count > list.args.size()) {
      invalid("checked::submit", "arguments of kernel '{}', got {} from {} of {}, expected {}",
              e->name(), d.arg_count, d.first_arg, list.args.size(), e->kernel.params);
    }
    return *e;
  }

  void run(const CommandList& list) {
    u32 granule = 4;
    for (const Dispatch& d : list.dispatches) {
      granule = std::min(granule, kernel::DeviceMemory::granule_of(executable(list, d).kernel));
    }
    std::vector<kernel::BufferView> views;
    for (auto& [address, b] : blocks_) {
      views.push_back({address, reinterpret_cast<void*>(address), b.bytes, &b.written});
    }
    const kernel::InterpretOptions options;
    kernel::DeviceMemory memory(views, granule, options);
    seconds_.clear();
    for (const Dispatch& d : list.dispatches) {
      const auto start = std::chrono::steady_clock::now();
      memory.begin_dispatch(d.groups, d.barrier);
      kernel::interpret(executable(list, d).kernel,
                        std::span(list.args).subspan(d.first_arg, d.arg_count), memory, d.groups,
                        options);
      seconds_.push_back(
          std::chrono::duration<f64>(std::chrono::steady_clock::now() - start).count());
    }
  }

  DeviceInfo info_;
  kernel::Target target_;
  std::map<u64, Block> blocks_;  // by address
  MemoryReport report_;
  Ticket last_ = 0, timed_ticket_ = 0;
  std::vector<f64> seconds_;  // of the dispatches of the last list
};

}  // namespace

std::unique_ptr<Device> open_checked(CheckedShape shape) {
  return std::make_unique<CheckedDevice>(shape);
}

}  // namespace oa::device
