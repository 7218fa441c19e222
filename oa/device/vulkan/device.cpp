// The calls of the device interface in terms of the parts of this folder.
#include "oa/device/vulkan/device.h"

#include <algorithm>

namespace oa::device::vulkan {
namespace {

constexpr const char* kFactKind = "vulkan-fact";

constexpr u64 kMiB = u64{1} << 20;
constexpr size_t kTimedKept = 256;

HeapOptions memory_options(const Physical& p) {
  const u64 block = p.info.memory_bytes >= 16384 * kMiB ? 256 * kMiB : 64 * kMiB;
  if (!p.mapped) {
    return {.wanted = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, .block_bytes = block, .mapped = false};
  }
  return {.wanted = kMappedMemory,
          .liked = VK_MEMORY_PROPERTY_HOST_CACHED_BIT,
          .block_bytes = block,
          .mapped = true};
}

HeapOptions argument_options() {
  return {.wanted = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
          .liked = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT,
          .block_bytes = kMiB,
          .mapped = true};
}

// Memory for the arguments of a plan, written; empty if all of them fit into push constants.
std::optional<Memory> make_arguments(Core& core, const CommandList& list, Plan& plan,
                                     const char* op) {
  const u64 bytes = place_arguments(list, core.context->physical().push_bytes, plan);
  if (bytes == 0) return std::nullopt;
  core.arguments.collect(core.queue.completed(op));
  std::optional<Memory> block = core.arguments.allocate(bytes);
  if (!block) {
    fail(ErrorKind::ResourceExhausted, op, "no memory for {} bytes of kernel arguments, got {}",
         bytes, result_name(core.arguments.last_result()));
  }
  write_arguments(list, plan, block->host);
  return block;
}

// Records the parts of a plan. On an error, the command buffers made so far are given back.
template <class Use>
void record_parts(Core& core, const Recording& recording, VkCommandBufferUsageFlags usage,
                  const char* op, Use use) {
  for (size_t i = 0; i < recording.plan.parts.size(); ++i) {
    const Part& part = recording.plan.parts[i];
    const VkCommandBuffer buffer = core.queue.begin(usage, op);
    if (i == 0 && recording.timestamps != nullptr) recording.timestamps->reset(buffer);
    record_part(recording, part, buffer);
    if (i + 1 == recording.plan.parts.size() && core.context->physical().mapped) {
      barrier_to_host(*core.context, buffer);
    }
    core.queue.end(buffer, op);
    use(buffer, last_kernels(recording.list, recording.plan, part));
  }
}

// Submits a command buffer after the uploads gathered so far.
u64 submit_part(Core& core, VkCommandBuffer buffer, std::span<const Label> kernels,
                const char* op) {
  const VkCommandBuffer uploads = core.staging.take_uploads();
  const VkCommandBuffer both[] = {uploads, buffer};
  const size_t skip = uploads == VK_NULL_HANDLE ? 1 : 0;
  return core.queue.submit(std::span(both).subspan(skip), kernels, op);
}

}  // namespace

Core::Core(std::shared_ptr<Context> opened, f64 watchdog_seconds)
    : context(std::move(opened)),
      queue(*context),
      memory(*context, memory_options(context->physical())),
      arguments(*context, argument_options()),
      staging(*context, queue, memory) {
  const Physical& p = context->physical();
  limits = {.groups = p.max_groups,
            .flops_per_second = p.flops_per_second,
            .dispatch_seconds = p.is_software() ? 1e-4 : 3e-6,
            .seconds = watchdog_seconds};
}

RecordedList::RecordedList(const std::shared_ptr<Core>& core, const CommandList& list)
    : core_(core) {
  constexpr const char* kOp = "vulkan::record";
  check_list(*core->context, list, kOp);
  Plan plan = plan_submission(list.dispatches, core->limits);
  block_ = make_arguments(*core, list, plan, kOp);
  const Recording recording{.context = *core->context,
                            .list = list,
                            .plan = plan,
                            .block_address = block_ ? block_->address : 0};
  record_parts(*core, recording, VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT, kOp,
               [&](VkCommandBuffer buffer, std::vector<Label> kernels) {
                 parts_.push_back({buffer, std::move(kernels)});
               });
}

RecordedList::~RecordedList() {
  const std::shared_ptr<Core> core = core_.lock();
  if (!core) return;  // the device is closed, and everything was destroyed with it
  for (const RecordedPart& part : parts_) core->queue.retire(part.buffer, last_value_);
  if (block_) core->arguments.release(*block_, last_value_, "vulkan::record");
}

u64 RecordedList::submit(Core& core) {
  for (const RecordedPart& part : parts_) {
    last_value_ = submit_part(core, part.buffer, part.kernels, "vulkan::submit");
  }
  return core.queue.submitted();
}

VulkanDevice::VulkanDevice(std::shared_ptr<Context> context, const DeviceOptions& options)
    : context_(std::move(context)),
      core_(std::make_shared<Core>(context_, options.watchdog_seconds)),
      compiler_(context_, options),
      info_(context_->physical().info),
      target_(context_->physical().target) {
  run_trials();
}

void VulkanDevice::run_trials() {
  const Physical& p = context_->physical();
  trust_ = find_trust(*this, p, compiler_.disk(), [this](const kernel::Kernel& kernel) {
    const kernel::Kernel* one[] = {&kernel};
    return compiler_.compile(one)[0];
  });
  report_ = {};
  compiler_.use(lowering_target(p, trust_));
  target_.fragments = p.target.fragments && trust_.fragments;
  target_.fragments_bf16 = p.target.fragments_bf16 && trust_.fragments_bf16;
  target_.fragments_subnormal = target_.fragments && trust_.fragments_subnormal;
  auto tested = [](bool good) { return std::string(good ? "yes, tested" : "no, by test"); };
  info_.capabilities.emplace_back("fused multiply-add", tested(trust_.fused_fma));
  info_.capabilities.emplace_back("exact division", tested(trust_.exact_division));
  if (p.target.fragments) {
    info_.capabilities.emplace_back("fragments f16", tested(trust_.fragments));
    info_.capabilities.emplace_back("fragments bf16", tested(trust_.fragments_bf16));
    info_.capabilities.emplace_back("fragments f16, subnormal", tested(trust_.fragments_subnormal));
  }
}

Hash128 VulkanDevice::of_this_driver(const Hash128& key) const {
  Hasher h;
  h.add(key);
  h.bytes(context_->physical().cache_uuid.data(), context_->physical().cache_uuid.size());
  h.text(info_.name);
  h.text(info_.driver);
  return h.finish();
}

std::optional<std::vector<u8>> VulkanDevice::recall(const Hash128& key) {
  if (const auto it = facts_.find(key); it != facts_.end()) return it->second;
  auto fact = compiler_.disk().get(of_this_driver(key), kFactKind);
  if (fact) facts_[key] = *fact;
  return fact;
}

void VulkanDevice::remember(const Hash128& key, std::span<const u8> fact) {
  facts_[key] = {fact.begin(), fact.end()};
  compiler_.disk().put(of_this_driver(key), kFactKind, fact);
}

VulkanDevice::~VulkanDevice() {
  context_->api.vkDeviceWaitIdle(context_->device());
  timed_.clear();
}

u64 VulkanDevice::horizon() const {
  return core_->staging.has_uploads() ? core_->queue.next() : core_->queue.submitted();
}

void VulkanDevice::collect() {
  core_->memory.collect(core_->queue.known_completed());
  core_->arguments.collect(core_->queue.known_completed());
}

Memory VulkanDevice::allocate(u64 bytes) {
  constexpr const char* kOp = "vulkan::allocate";
  context_->require_sound();
  Heap& heap = core_->memory;
  core_->queue.completed(kOp);
  collect();
  std::optional<Memory> memory = heap.allocate(bytes);
  if (!memory && heap.last_release() > 0) {
    core_->staging.flush();
    core_->queue.wait(heap.last_release(), kOp);
    collect();
    memory = heap.allocate(bytes);
  }
  if (!memory) {
    heap.trim();
    memory = heap.allocate(bytes);
  }
  if (!memory) {
    const DeviceInfo& info = context_->physical().info;
    const u64 left = context_->physical().memory_left(context_->instance().api());
    fail(ErrorKind::ResourceExhausted, kOp,
         "no memory on '{}' ({}), got a request for {} bytes, expected at most {}; "
         "{} bytes are allocated, {} of {} bytes are free by the driver's budget",
         info.name, result_name(heap.last_result()), bytes, heap.max_bytes(),
         heap.allocated_bytes(), context_->physical().memory_budget ? std::to_string(left) : "?",
         info.memory_bytes);
  }
  ++report_.allocations;
  report_.peak_bytes = std::max(report_.peak_bytes, heap.allocated_bytes());
  return *memory;
}

// Asks the driver nothing, so that it cannot fail on a lost device.
void VulkanDevice::release(const Memory& memory) {
  core_->memory.release(memory, horizon(), "vulkan::release");
  collect();
}

MemoryReport VulkanDevice::memory_report() const {
  MemoryReport report = report_;
  report.allocated_bytes = core_->memory.allocated_bytes();
  return report;
}

void VulkanDevice::write(const Memory& to, u64 offset, const void* from, u64 bytes) {
  context_->require_sound();
  core_->staging.write(to, offset, from, bytes);
}

void VulkanDevice::read(const Memory& from, u64 offset, void* to, u64 bytes) {
  context_->require_sound();
  core_->staging.read(from, offset, to, bytes);
  context_->require_sound();
}

std::vector<std::shared_ptr<Executable>> VulkanDevice::compile(
    std::span<const kernel::Kernel* const> kernels) {
  context_->require_sound();
  auto executables = compiler_.compile(kernels);
  context_->require_sound();
  return executables;
}

Ticket VulkanDevice::submit(const CommandList& list, bool timed) {
  constexpr const char* kOp = "vulkan::submit";
  context_->require_sound();
  check_list(*context_, list, kOp);
  Plan plan = plan_submission(list.dispatches, core_->limits);
  std::unique_ptr<Timestamps> timestamps;
  if (timed && !plan.pieces.empty() && context_->physical().timestamp_bits > 0) {
    timestamps = std::make_unique<Timestamps>(
        *context_, static_cast<u32>(plan.pieces.size() + plan.parts.size()),
        list.dispatches.size());
  }
  const std::optional<Memory> block = make_arguments(*core_, list, plan, kOp);
  const Recording recording{.context = *context_,
                            .list = list,
                            .plan = plan,
                            .block_address = block ? block->address : 0,
                            .timestamps = timestamps.get()};
  record_parts(*core_, recording, VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT, kOp,
               [&](VkCommandBuffer buffer, const std::vector<Label>& kernels) {
                 core_->queue.retire(buffer, core_->queue.next());
                 submit_part(*core_, buffer, kernels, kOp);
               });
  if (timed && plan.pieces.empty()) {  // a ticket of its own, to keep its durations under
    core_->staging.flush();
    core_->queue.submit({}, {}, kOp);
  }
  const Ticket ticket = core_->queue.submitted();
  if (block) core_->arguments.release(*block, ticket, kOp);
  if (timestamps) {
    timed_[ticket] = {std::move(timestamps), {}};
  } else if (timed && plan.pieces.empty()) {
    timed_[ticket].seconds.assign(list.dispatches.size(), 0.0);
  }
  while (timed_.size() > kTimedKept && core_->queue.is_complete(timed_.begin()->first, kOp)) {
    timed_.erase(timed_.begin());
  }
  return ticket;
}

std::unique_ptr<Recorded> VulkanDevice::record(const CommandList& list) {
  context_->require_sound();
  return std::make_unique<RecordedList>(core_, list);
}

Ticket VulkanDevice::submit(Recorded& list) {
  context_->require_sound();
  auto* recorded = dynamic_cast<RecordedList*>(&list);
  if (recorded == nullptr || !recorded->belongs_to(*core_)) {
    invalid("vulkan::submit",
            "the list was recorded by another device, expected one of this device");
  }
  return recorded->submit(*core_);
}

void VulkanDevice::check_ticket(Ticket ticket, const char* op) const {
  if (ticket > core_->queue.submitted()) {
    invalid(op, "the ticket was never given out, got {}, expected at most {}", ticket,
            core_->queue.submitted());
  }
}

bool VulkanDevice::is_complete(Ticket ticket) {
  constexpr const char* kOp = "vulkan::is_complete";
  context_->require_sound();
  check_ticket(ticket, kOp);
  return core_->queue.is_complete(ticket, kOp);
}

void VulkanDevice::wait(Ticket ticket) {
  constexpr const char* kOp = "vulkan::wait";
  context_->require_sound();
  check_ticket(ticket, kOp);
  core_->queue.wait(ticket, kOp);
  collect();
  context_->require_sound();
}

std::vector<f64> VulkanDevice::durations(Ticket ticket) {
  wait(ticket);
  const auto at = timed_.find(ticket);
  if (at == timed_.end()) return {};
  Timed& timed = at->second;
  if (timed.timestamps) {
    timed.seconds = timed.timestamps->durations();
    timed.timestamps.reset();
  }
  return timed.seconds;
}

}  // namespace oa::device::vulkan

namespace oa::device {

std::unique_ptr<Device> open_vulkan(u32 index, const DeviceOptions& options) {
  using namespace vulkan;
  std::shared_ptr<Instance> instance = Instance::open(options.validation);
  std::vector<Physical> all = probe_all(*instance);
  if (index >= all.size()) {
    fail(ErrorKind::NoSuitableDevice, "open_vulkan",
         "there is no such Vulkan device, got index {}, expected one of {} devices", index,
         all.size());
  }
  Physical& physical = all[index];
  if (!physical.unfit.empty()) {
    fail(ErrorKind::NoSuitableDevice, "open_vulkan", "'{}' cannot be used: {}", physical.info.name,
         physical.unfit);
  }
  auto context = std::make_shared<Context>(std::move(instance), std::move(physical));
  return std::make_unique<VulkanDevice>(std::move(context), options);
}

std::vector<DeviceInfo> vulkan_devices(std::string* why) {
  using namespace vulkan;
  std::vector<DeviceInfo> infos;
  std::string reason;
  try {
    const std::shared_ptr<Instance> instance = Instance::open(false);
    const std::vector<Physical> all = probe_all(*instance);
    for (const Physical& p : all) {
      if (p.unfit.empty())
        infos.push_back(p.info);
      else
        reason += fmt::format("{}'{}': {}", reason.empty() ? "" : "; ", p.info.name, p.unfit);
    }
    if (all.empty()) reason = "the Vulkan drivers offer no device";
  } catch (const Error& e) {
    reason = e.message();
  }
  if (why != nullptr) *why = reason;
  return infos;
}

}  // namespace oa::device
