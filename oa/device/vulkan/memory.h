// Device memory: large blocks that allocations are cut from. A block is one VkDeviceMemory under
// one VkBuffer, so every byte has a device address.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include "oa/device/vulkan/context.h"

namespace oa::device::vulkan {

struct HeapOptions {
  VkMemoryPropertyFlags wanted = 0;
  VkMemoryPropertyFlags liked = 0;
  u64 block_bytes = 0;  // allocations above half of it get a block of their own
  bool mapped = false;  // Memory::host is set
};

class Heap {
 public:
  static constexpr u64 kAlignment = 256;

  // Throws NoSuitableDevice when the device has no memory of the wanted kind.
  Heap(Context& context, const HeapOptions& options);
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  // Empty when the device has no room; `last_result` then tells the driver's reason.
  std::optional<Memory> allocate(u64 bytes);
  // The memory is free again once the timeline has reached `after`; collect() sees to it.
  void release(const Memory& memory, u64 after, const char* op);
  void collect(u64 completed);
  void trim();  // gives empty blocks back to the driver

  // Value of the timeline at which every release so far has taken effect.
  u64 last_release() const { return releases_.empty() ? 0 : releases_.back().after; }

  struct Place {
    VkBuffer buffer;
    u64 offset;
    void* host;  // null where the memory is not mapped
  };
  // Where `bytes` at `offset` of `memory` are. Throws InvalidArgument for memory that is not ours
  // or was released, OutOfRange for a range outside it.
  Place place(const Memory& memory, u64 offset, u64 bytes, const char* op) const;

  u64 max_bytes() const { return max_bytes_; }  // of one allocation
  u64 allocated_bytes() const { return allocated_; }
  u64 reserved_bytes() const { return reserved_; }  // in blocks, used or not
  VkResult last_result() const { return last_result_; }

 private:
  struct Block {
    VkDeviceMemory memory = VK_NULL_HANDLE;
    VkBuffer buffer = VK_NULL_HANDLE;
    u64 address = 0;
    u64 bytes = 0;
    u8* host = nullptr;
    std::map<u64, u64> free;                     // offset -> bytes
    std::set<std::pair<u64, u64>> free_by_size;  // (bytes, offset)
    struct Piece {
      u64 bytes;      // asked for
      u64 taken;      // with alignment
      bool released;  // waits for the timeline
    };
    std::unordered_map<u64, Piece> pieces;  // by offset
  };
  struct Release {
    u64 after;
    u64 block;
    u64 offset;
  };

  Block* add_block(u64 bytes, u64* id);
  void destroy(Block& block);
  Memory cut(u64 id, Block& block, u64 offset, u64 bytes, u64 taken);
  static void add_free(Block& block, u64 offset, u64 bytes);
  static void remove_free(Block& block, u64 offset);
  void free_piece(u64 id, u64 offset);
  const Block::Piece* find(const Memory& memory) const;

  Context& context_;
  HeapOptions options_;
  u32 type_ = 0;
  u64 max_bytes_ = 0;
  std::map<u64, Block> blocks_;  // by handle
  u64 next_handle_ = 1;
  std::deque<Release> releases_;
  u64 allocated_ = 0;
  u64 reserved_ = 0;
  VkResult last_result_ = VK_SUCCESS;
};

}  // namespace oa::device::vulkan
