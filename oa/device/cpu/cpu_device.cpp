// Memory, copies and submission of the CPU device.
#include "oa/device/cpu/cpu_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "oa/core/error.h"
#include "oa/device/cpu/host.h"

namespace oa::device {
namespace {

constexpr u64 kAlignment = 256;
constexpr u64 kHugePage = u64{2} << 20;
constexpr size_t kMaxTimings = 64;

kernel::Target target_of(const codegen::CpuTarget& cpu, u32 threads) {
  kernel::Target t;
  t.kind = kernel::Target::Kind::Cpu;
  t.width = 16;
  t.subgroup = 16;
  t.vector_registers = cpu.vector_registers;
  t.vector_bytes = cpu.vector_bytes;
  t.shared_bytes = static_cast<u32>(codegen::kMaxSharedBytes);
  t.threads = threads;
  t.f64 = true;
  return t;
}

DeviceInfo info_of(const codegen::CpuTarget& cpu, u32 threads) {
  DeviceInfo info;
  info.id = "cpu";
  info.name = cpu_name();
  info.driver = fmt::format("LLVM {}, {}", codegen::llvm_version(), cpu.cpu);
  info.kind = DeviceKind::Cpu;
  info.memory_bytes = memory_limit();
  info.max_allocation = info.memory_bytes;
  std::string features;
  for (const char* f : {"sse4.2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512vl", "avx512bw",
                        "avx512dq", "avx512bf16", "avx512fp16", "amx-bf16"})
    if (cpu.has(f)) features += fmt::format("{}{}", features.empty() ? "" : " ", f);
  info.capabilities = {
      {"threads", std::to_string(threads)},
      {"cores", std::to_string(homes(usable_cores()).size())},
      {"vector", fmt::format("{} bits, {} registers", cpu.vector_bytes * 8, cpu.vector_registers)},
      {"features", features},
      {"f64", "yes"},
  };
  return info;
}

class CpuRecorded : public Recorded {
 public:
  std::vector<u64> args;
  Schedule schedule;
  std::shared_ptr<const void> owner;
};

}  // namespace

CpuDevice::CpuDevice(const DeviceOptions& options)
    : cpu_(codegen::CpuTarget::host()),
      pool_(thread_count(options.threads)),
      compiler_(target_of(cpu_, pool_.threads()), cpu_, options.cache_dir, pool_, self_) {
  info_ = info_of(cpu_, pool_.threads());
  target_ = target_of(cpu_, pool_.threads());
}

CpuDevice::~CpuDevice() {
  for (const auto& [address, bytes] : live_) std::free(reinterpret_cast<void*>(address));
}

Memory CpuDevice::allocate(u64 bytes) {
  // The system grants more than there is and kills the process later, so the limit is kept here.
  void* block = nullptr;
  if (bytes <= info_.max_allocation && report_.allocated_bytes <= info_.max_allocation - bytes) {
    // Whole vectors may be read at the end of a block.
    const u64 alignment = bytes >= kHugePage ? kHugePage : kAlignment;
    const u64 size = std::max<u64>(1, (bytes + alignment - 1) / alignment) * alignment;
    block = std::aligned_alloc(alignment, size);
    if (block && alignment == kHugePage) ::madvise(block, size, MADV_HUGEPAGE);  // only a hint
  }
  if (!block)
    fail(ErrorKind::ResourceExhausted, "cpu::allocate",
         "out of memory, got a request for {} bytes with {} bytes held, expected at most {} bytes "
         "together",
         bytes, report_.allocated_bytes, info_.max_allocation);
  const u64 address = reinterpret_cast<u64>(block);
  try {
    live_.emplace(address, bytes);
  } catch (...) {
    std::free(block);
    throw;
  }
  report_.allocated_bytes += bytes;
  report_.peak_bytes = std::max(report_.peak_bytes, report_.allocated_bytes);
  ++report_.allocations;
  return {.address = address, .bytes = bytes, .host = block, .handle = address};
}

const u8* CpuDevice::checked(std::string_view op, const Memory& memory, u64 offset,
                             u64 bytes) const {
  const auto found = live_.find(memory.address);
  if (found == live_.end() || found->second != memory.bytes)
    invalid(op,
            "the memory at {:#x} ({} bytes) is not allocated here, expected live memory of this "
            "device",
            memory.address, memory.bytes);
  if (offset > memory.bytes || bytes > memory.bytes - offset)
    fail(ErrorKind::OutOfRange, op,
         "the range is outside the memory, got {} bytes at offset {}, expected at most {} bytes",
         bytes, offset, memory.bytes);
  return reinterpret_cast<const u8*>(memory.address) + offset;
}

void CpuDevice::release(const Memory& memory) {
  checked("cpu::release", memory, 0, 0);
  live_.erase(memory.address);
  report_.allocated_bytes -= memory.bytes;
  std::free(reinterpret_cast<void*>(memory.address));
}

void CpuDevice::write(const Memory& to, u64 offset, const void* from, u64 bytes) {
  const u8* target = checked("cpu::write", to, offset, bytes);
  if (bytes != 0) std::memcpy(const_cast<u8*>(target), from, bytes);
}

void CpuDevice::read(const Memory& from, u64 offset, void* to, u64 bytes) {
  const u8* source = checked("cpu::read", from, offset, bytes);
  if (bytes != 0) std::memcpy(to, source, bytes);
}

// Checks a list and puts what the pool needs to know into work_; parameters are taken from `args`.
void CpuDevice::gather_work(std::string_view op, const CommandList& list, const u64* args) {
  work_.clear();
  for (size_t i = 0; i < list.dispatches.size(); ++i) {
    const Dispatch& d = list.dispatches[i];
    const auto* kernel = dynamic_cast<const CpuExecutable*>(d.kernel);
    if (!kernel || kernel->owner() != self_)
      invalid(op, "dispatch {} has {}, expected a kernel compiled by this device", i,
              d.kernel ? "a kernel of another device" : "no kernel");
    if (d.arg_count != kernel->params())
      invalid(op,
              "dispatch {} of kernel '{}' has the wrong number of arguments, got {}, expected {}",
              i, kernel->name(), d.arg_count, kernel->params());
    if (u64{d.first_arg} + d.arg_count > list.args.size())
      invalid(op, "dispatch {} of kernel '{}' reads arguments {} to {}, expected at most {}", i,
              kernel->name(), d.first_arg, u64{d.first_arg} + d.arg_count, list.args.size());
    work_.push_back({kernel->function(), args + d.first_arg, d.groups,
                     kernel->group_ns(d.groups, d.flops), d.barrier});
  }
}

Ticket CpuDevice::submit(const CommandList& list, bool timed) {
  gather_work("cpu::submit", list, list.args.data());
  schedule_.build(work_, pool_.threads(), timed);
  if (timed) {
    std::vector<f64> seconds(list.dispatches.size());
    pool_.run(schedule_, seconds.data());
    if (timings_.size() == kMaxTimings) timings_.pop_front();
    timings_.emplace_back(last_ticket_ + 1, std::move(seconds));
  } else {
    pool_.run(schedule_);
  }
  return ++last_ticket_;
}

std::unique_ptr<Recorded> CpuDevice::record(const CommandList& list) {
  auto recorded = std::make_unique<CpuRecorded>();
  recorded->args = list.args;
  recorded->owner = self_;
  gather_work("cpu::record", list, recorded->args.data());
  recorded->schedule.build(work_, pool_.threads());
  return recorded;
}

Ticket CpuDevice::submit(Recorded& list) {
  auto* recorded = dynamic_cast<CpuRecorded*>(&list);
  if (!recorded || recorded->owner != self_)
    invalid("cpu::submit", "the list was recorded by another device, expected one of this device");
  pool_.run(recorded->schedule);
  return ++last_ticket_;
}

void CpuDevice::check_ticket(std::string_view op, Ticket ticket) const {
  if (ticket > last_ticket_)
    invalid(op, "the ticket was never given out, got {}, expected at most {}", ticket,
            last_ticket_);
}

bool CpuDevice::is_complete(Ticket ticket) {
  check_ticket("cpu::is_complete", ticket);
  return true;
}

void CpuDevice::wait(Ticket ticket) { check_ticket("cpu::wait", ticket); }

std::vector<f64> CpuDevice::durations(Ticket ticket) {
  check_ticket("cpu::durations", ticket);
  for (const auto& [timed, seconds] : timings_)
    if (timed == ticket) return seconds;
  return {};
}

std::unique_ptr<Device> open_cpu(const DeviceOptions& options) {
  return std::make_unique<CpuDevice>(options);
}

DeviceInfo cpu_info() { return info_of(codegen::CpuTarget::host(), thread_count(0)); }

}  // namespace oa::device
