// Submission, completion and the command buffers in between.
#include "oa/device/vulkan/queue.h"

#include <algorithm>
#include <chrono>

namespace oa::device::vulkan {
namespace {

// Waking from a driver's wait costs more than most steps take, so a GPU is polled first. A software
// device runs on the same cores and gains nothing from it.
constexpr auto kPollTime = std::chrono::microseconds(200);

void memory_barrier(Context& context, VkCommandBuffer buffer, VkPipelineStageFlags2 from,
                    VkAccessFlags2 writes, VkPipelineStageFlags2 to, VkAccessFlags2 accesses) {
  const VkMemoryBarrier2 barrier{.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER_2,
                                 .srcStageMask = from,
                                 .srcAccessMask = writes,
                                 .dstStageMask = to,
                                 .dstAccessMask = accesses};
  const VkDependencyInfo info{.sType = VK_STRUCTURE_TYPE_DEPENDENCY_INFO,
                              .memoryBarrierCount = 1,
                              .pMemoryBarriers = &barrier};
  context.api.vkCmdPipelineBarrier2(buffer, &info);
}

constexpr VkPipelineStageFlags2 kCompute = VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT;
constexpr VkPipelineStageFlags2 kCopy = VK_PIPELINE_STAGE_2_COPY_BIT;
constexpr VkPipelineStageFlags2 kHost = VK_PIPELINE_STAGE_2_HOST_BIT;
constexpr VkAccessFlags2 kStorageWrite = VK_ACCESS_2_SHADER_STORAGE_WRITE_BIT;
constexpr VkAccessFlags2 kStorage = VK_ACCESS_2_SHADER_STORAGE_READ_BIT | kStorageWrite;
constexpr VkAccessFlags2 kTransferWrite = VK_ACCESS_2_TRANSFER_WRITE_BIT;
constexpr VkAccessFlags2 kTransfer = VK_ACCESS_2_TRANSFER_READ_BIT | kTransferWrite;

}  // namespace

// Nothing wider: other stages or accesses cost two and a half times as much on NVIDIA.
void barrier_between_kernels(Context& context, VkCommandBuffer buffer) {
  memory_barrier(context, buffer, kCompute, kStorageWrite, kCompute, kStorage);
}
void barrier_before_copies(Context& context, VkCommandBuffer buffer) {
  memory_barrier(context, buffer, kCompute | kCopy, kStorageWrite | kTransferWrite, kCopy,
                 kTransfer);
}
void barrier_after_copies(Context& context, VkCommandBuffer buffer) {
  memory_barrier(context, buffer, kCopy, kTransferWrite, kCompute | kHost,
                 kStorage | VK_ACCESS_2_HOST_READ_BIT);
}
void barrier_to_host(Context& context, VkCommandBuffer buffer) {
  memory_barrier(context, buffer, kCompute, kStorageWrite, kHost, VK_ACCESS_2_HOST_READ_BIT);
}

Queue::Queue(Context& context) : context_(context) {
  const VkSemaphoreTypeCreateInfo type{.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                       .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE,
                                       .initialValue = 0};
  const VkSemaphoreCreateInfo semaphore{.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO,
                                        .pNext = &type};
  context_.check(context_.api.vkCreateSemaphore(context_.device(), &semaphore, nullptr, &timeline_),
                 "open_vulkan");
  const VkCommandPoolCreateInfo pool{.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                     .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                     .queueFamilyIndex = context_.physical().queue_family};
  const VkResult result =
      context_.api.vkCreateCommandPool(context_.device(), &pool, nullptr, &pool_);
  if (result != VK_SUCCESS) {
    context_.api.vkDestroySemaphore(context_.device(), timeline_, nullptr);
    context_.check(result, "open_vulkan");
  }
}

Queue::~Queue() {
  context_.api.vkDeviceWaitIdle(context_.device());
  context_.api.vkDestroyCommandPool(context_.device(), pool_, nullptr);
  context_.api.vkDestroySemaphore(context_.device(), timeline_, nullptr);
}

u64 Queue::submit(std::span<const VkCommandBuffer> buffers, std::span<const Label> last_kernels,
                  const char* op) {
  VkCommandBufferSubmitInfo infos[4];
  OA_CHECK(buffers.size() <= std::size(infos));
  for (size_t i = 0; i < buffers.size(); ++i) {
    infos[i] = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_SUBMIT_INFO, .commandBuffer = buffers[i]};
  }
  const VkSemaphoreSubmitInfo signal{.sType = VK_STRUCTURE_TYPE_SEMAPHORE_SUBMIT_INFO,
                                     .semaphore = timeline_,
                                     .value = next(),
                                     .stageMask = VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT};
  const VkSubmitInfo2 submit{.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO_2,
                             .commandBufferInfoCount = static_cast<u32>(buffers.size()),
                             .pCommandBufferInfos = infos,
                             .signalSemaphoreInfoCount = 1,
                             .pSignalSemaphoreInfos = &signal};
  context_.note_submission(next(), last_kernels);
  context_.check(context_.api.vkQueueSubmit2(context_.queue(), 1, &submit, VK_NULL_HANDLE), op);
  return ++submitted_;
}

u64 Queue::completed(const char* op) {
  if (completed_ == submitted_) return completed_;
  u64 value = 0;
  context_.check(context_.api.vkGetSemaphoreCounterValue(context_.device(), timeline_, &value), op);
  // A lost device may report the largest value.
  completed_ = std::max(completed_, std::min(value, submitted_));
  context_.note_completed(completed_);
  return completed_;
}

void Queue::wait(u64 value, const char* op) {
  if (is_complete(value, op)) return;
  if (!context_.physical().is_software()) {
    const auto end = std::chrono::steady_clock::now() + kPollTime;
    while (std::chrono::steady_clock::now() < end) {
      if (is_complete(value, op)) return;
    }
  }
  const VkSemaphoreWaitInfo info{.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                 .semaphoreCount = 1,
                                 .pSemaphores = &timeline_,
                                 .pValues = &value};
  context_.check(context_.api.vkWaitSemaphores(context_.device(), &info, UINT64_MAX), op);
  completed_ = std::max(completed_, value);
  context_.note_completed(completed_);
}

VkCommandBuffer Queue::begin(VkCommandBufferUsageFlags usage, const char* op) {
  VkCommandBuffer buffer = VK_NULL_HANDLE;
  if (!retired_.empty() && is_complete(retired_.front().value, op)) {
    buffer = retired_.front().buffer;
    retired_.pop_front();
  } else {
    const VkCommandBufferAllocateInfo info{.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                           .commandPool = pool_,
                                           .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                           .commandBufferCount = 1};
    context_.check(context_.api.vkAllocateCommandBuffers(context_.device(), &info, &buffer), op);
  }
  const VkCommandBufferBeginInfo info{.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                      .flags = usage};
  const VkResult result = context_.api.vkBeginCommandBuffer(buffer, &info);
  if (result != VK_SUCCESS) {
    retire(buffer, 0);
    context_.check(result, op);
  }
  return buffer;
}

void Queue::end(VkCommandBuffer buffer, const char* op) {
  context_.check(context_.api.vkEndCommandBuffer(buffer), op);
}

void Queue::retire(VkCommandBuffer buffer, u64 value) {
  // Sorted by value; nearly always this appends.
  auto at = retired_.end();
  while (at != retired_.begin() && std::prev(at)->value > value) --at;
  retired_.insert(at, {buffer, value});
}

}  // namespace oa::device::vulkan
