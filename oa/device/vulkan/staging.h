// Host copies: a ring of mapped memory, a command buffer that gathers uploads until something needs
// them, and reads that wait.
#pragma once

#include "oa/device/vulkan/memory.h"
#include "oa/device/vulkan/queue.h"

namespace oa::device::vulkan {

// Space that is taken in order and is free again when a value of the timeline is reached. Of two
// takes in a row the second leaves the first one's place alone, free or not, while both are at most
// a quarter of the ring.
class Ring {
 public:
  explicit Ring(u64 bytes) : bytes_(bytes) {}

  // An offset to `bytes` bytes in one piece, in use until `value`; empty if there is no room.
  std::optional<u64> take(u64 bytes, u64 value);
  void collect(u64 completed);
  u64 oldest() const { return used_.front().value; }  // there must be one
  u64 bytes() const { return bytes_; }

 private:
  struct Used {
    u64 end;  // position, counted on and on
    u64 value;
  };
  u64 bytes_;
  u64 head_ = 0;
  u64 tail_ = 0;
  std::deque<Used> used_;
};

class Staging {
 public:
  Staging(Context& context, Queue& queue, Heap& device_memory);
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // See Device::write and Device::read.
  void write(const Memory& to, u64 offset, const void* from, u64 bytes);
  void read(const Memory& from, u64 offset, void* to, u64 bytes);

  // The uploads gathered so far, ended and ready to be submitted before anything else; null when
  // there are none. They must be submitted at once, as part of the queue's next submission.
  VkCommandBuffer take_uploads();
  void flush();  // submits them alone
  bool has_uploads() const { return uploads_ != VK_NULL_HANDLE; }

 private:
  struct Range {
    VkBuffer buffer;
    u64 begin;
    u64 end;
  };

  u64 take(u64 bytes, const char* op);
  void add_upload(const Heap::Place& to, u64 ring_offset, u64 bytes);

  Context& context_;
  Queue& queue_;
  Heap& device_memory_;
  Heap host_memory_;
  Memory block_;  // the ring's bytes
  Heap::Place block_place_{};
  Ring ring_;
  VkCommandBuffer uploads_ = VK_NULL_HANDLE;
  std::vector<Range> written_;  // by the gathered uploads
  u64 gathered_bytes_ = 0;
};

}  // namespace oa::device::vulkan
