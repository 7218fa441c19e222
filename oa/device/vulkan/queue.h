// The queue of a device: submissions counted by one timeline semaphore, and command buffers that
// are used again once their submission is complete.
#pragma once

#include <deque>
#include <initializer_list>
#include <span>
#include <vector>

#include "oa/device/vulkan/context.h"

namespace oa::device::vulkan {

class Queue {
 public:
  explicit Queue(Context& context);
  ~Queue();  // waits for the device
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // Submits command buffers that run in order and after everything before; returns the value that
  // the timeline has when they are complete. Values count up by one.
  u64 submit(std::span<const VkCommandBuffer> buffers, std::span<const Label> last_kernels,
             const char* op);
  u64 submitted() const { return submitted_; }
  // The value of the next submission.
  u64 next() const { return submitted_ + 1; }

  u64 completed(const char* op);  // asks the driver
  u64 known_completed() const { return completed_; }
  bool is_complete(u64 value, const char* op) {
    return value <= completed_ || value <= completed(op);
  }
  void wait(u64 value, const char* op);

  // A command buffer in the recording state. retire() gives it back, to be used again after
  // `value`.
  VkCommandBuffer begin(VkCommandBufferUsageFlags usage, const char* op);
  void end(VkCommandBuffer buffer, const char* op);
  void retire(VkCommandBuffer buffer, u64 value);

 private:
  struct Retired {
    VkCommandBuffer buffer;
    u64 value;
  };

  Context& context_;
  VkSemaphore timeline_ = VK_NULL_HANDLE;
  VkCommandPool pool_ = VK_NULL_HANDLE;
  std::deque<Retired> retired_;
  u64 submitted_ = 0;
  u64 completed_ = 0;
};

// Memory barriers of the three kinds that occur.
void barrier_between_kernels(Context& context, VkCommandBuffer buffer);
void barrier_before_copies(Context& context, VkCommandBuffer buffer);  // kernels, copies -> copies
void barrier_after_copies(Context& context, VkCommandBuffer buffer);   // copies -> kernels, host
void barrier_to_host(Context& context, VkCommandBuffer buffer);        // kernels -> host

}  // namespace oa::device::vulkan
