// The block allocator: best fit within a block, oldest block first, neighbours joined on release.
#include "oa/device/vulkan/memory.h"

#include <algorithm>

namespace oa::device::vulkan {
namespace {

constexpr VkBufferUsageFlags kUsage =
    VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT |
    VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;

constexpr u64 align_up(u64 x) { return (x + Heap::kAlignment - 1) & ~(Heap::kAlignment - 1); }

VkBufferCreateInfo buffer_info(u64 bytes) {
  return {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = bytes, .usage = kUsage};
}

}  // namespace

Heap::Heap(Context& context, const HeapOptions& options) : context_(context), options_(options) {
  const VkBufferCreateInfo buffer = buffer_info(kAlignment);
  const VkDeviceBufferMemoryRequirements query{
      .sType = VK_STRUCTURE_TYPE_DEVICE_BUFFER_MEMORY_REQUIREMENTS, .pCreateInfo = &buffer};
  VkMemoryRequirements2 needs{.sType = VK_STRUCTURE_TYPE_MEMORY_REQUIREMENTS_2};
  context_.api.vkGetDeviceBufferMemoryRequirements(context_.device(), &query, &needs);
  type_ = context_.physical().memory_type(needs.memoryRequirements.memoryTypeBits, options.wanted,
                                          options.liked);
  if (type_ == VK_MAX_MEMORY_TYPES) {
    fail(ErrorKind::NoSuitableDevice, "open_vulkan",
         "'{}' has no fitting memory type, expected one with the property flags {:#x}",
         context_.physical().info.name, options.wanted);
  }
  const VkPhysicalDeviceMemoryProperties& memory = context_.physical().memory;
  max_bytes_ = std::min<u64>(context_.physical().max_buffer_bytes,
                             memory.memoryHeaps[memory.memoryTypes[type_].heapIndex].size) -
               kAlignment;
}

Heap::~Heap() {
  for (auto& [id, block] : blocks_) destroy(block);
}

void Heap::destroy(Block& block) {
  context_.api.vkDestroyBuffer(context_.device(), block.buffer, nullptr);
  context_.api.vkFreeMemory(context_.device(), block.memory, nullptr);
  reserved_ -= block.bytes;
}

Heap::Block* Heap::add_block(u64 bytes, u64* id) {
  const VolkDeviceTable& api = context_.api;
  const VkDevice device = context_.device();
  Block block{.bytes = bytes};
  reserved_ += bytes;
  auto give_up = [&](VkResult result) {
    last_result_ = result;
    destroy(block);
    if (result == VK_ERROR_DEVICE_LOST) context_.check(result, "vulkan::allocate");
    return nullptr;
  };
  const VkBufferCreateInfo buffer = buffer_info(bytes);
  if (VkResult r = api.vkCreateBuffer(device, &buffer, nullptr, &block.buffer); r != VK_SUCCESS) {
    return give_up(r);
  }
  VkMemoryRequirements needs;
  api.vkGetBufferMemoryRequirements(device, block.buffer, &needs);
  const VkMemoryAllocateFlagsInfo flags{.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                        .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
  const VkMemoryAllocateInfo memory{.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                    .pNext = &flags,
                                    .allocationSize = needs.size,
                                    .memoryTypeIndex = type_};
  if (VkResult r = api.vkAllocateMemory(device, &memory, nullptr, &block.memory); r != VK_SUCCESS) {
    return give_up(r);
  }
  if (VkResult r = api.vkBindBufferMemory(device, block.buffer, block.memory, 0); r != VK_SUCCESS) {
    return give_up(r);
  }
  if (options_.mapped) {
    void* host = nullptr;
    if (VkResult r = api.vkMapMemory(device, block.memory, 0, VK_WHOLE_SIZE, 0, &host);
        r != VK_SUCCESS) {
      return give_up(r);
    }
    block.host = static_cast<u8*>(host);
  }
  const VkBufferDeviceAddressInfo address{.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO,
                                          .buffer = block.buffer};
  block.address = api.vkGetBufferDeviceAddress(device, &address);
  *id = next_handle_++;
  return &blocks_.emplace(*id, std::move(block)).first->second;
}

void Heap::add_free(Block& block, u64 offset, u64 bytes) {
  auto next = block.free.lower_bound(offset);
  if (next != block.free.end() && offset + bytes == next->first) {
    bytes += next->second;
    const u64 joined = next->first;
    ++next;
    remove_free(block, joined);
  }
  if (next != block.free.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      remove_free(block, offset);
    }
  }
  block.free.emplace(offset, bytes);
  block.free_by_size.emplace(bytes, offset);
}

void Heap::remove_free(Block& block, u64 offset) {
  const auto at = block.free.find(offset);
  block.free_by_size.erase({at->second, offset});
  block.free.erase(at);
}

Memory Heap::cut(u64 id, Block& block, u64 offset, u64 bytes, u64 taken) {
  block.pieces[offset] = {.bytes = bytes, .taken = taken, .released = false};
  allocated_ += bytes;
  return {.address = block.address + offset,
          .bytes = bytes,
          .host = block.host == nullptr ? nullptr : block.host + offset,
          .handle = id};
}

std::optional<Memory> Heap::allocate(u64 bytes) {
  if (bytes > max_bytes_) {
    last_result_ = VK_ERROR_OUT_OF_DEVICE_MEMORY;
    return std::nullopt;
  }
  const u64 taken = std::max(align_up(bytes), kAlignment);  // empty memory has an address too
  if (taken <= options_.block_bytes / 2) {
    for (auto& [id, block] : blocks_) {
      const auto fit = block.free_by_size.lower_bound({taken, 0});
      if (fit == block.free_by_size.end()) continue;
      const auto [size, offset] = *fit;
      remove_free(block, offset);
      if (size > taken) add_free(block, offset + taken, size - taken);
      return cut(id, block, offset, bytes, taken);
    }
  }
  const bool own = taken > options_.block_bytes / 2;
  u64 id = 0;
  // Room to align the first address, which drivers align less than we promise.
  Block* block = add_block((own ? taken : options_.block_bytes) + kAlignment, &id);
  if (block == nullptr) return std::nullopt;
  const u64 first = align_up(block->address) - block->address;
  if (!own) add_free(*block, first + taken, options_.block_bytes - taken);
  return cut(id, *block, first, bytes, taken);
}

const Heap::Block::Piece* Heap::find(const Memory& memory) const {
  const auto block = blocks_.find(memory.handle);
  if (block == blocks_.end()) return nullptr;
  const auto piece = block->second.pieces.find(memory.address - block->second.address);
  if (piece == block->second.pieces.end() || piece->second.released ||
      piece->second.bytes != memory.bytes) {
    return nullptr;
  }
  return &piece->second;
}

void Heap::release(const Memory& memory, u64 after, const char* op) {
  if (find(memory) == nullptr) {
    invalid(op,
            "the memory at {:#x} ({} bytes) is not allocated here, expected live memory of "
            "this device",
            memory.address, memory.bytes);
  }
  Block& block = blocks_.at(memory.handle);
  const u64 offset = memory.address - block.address;
  block.pieces.at(offset).released = true;
  allocated_ -= memory.bytes;
  releases_.push_back({after, memory.handle, offset});
}

void Heap::collect(u64 completed) {
  while (!releases_.empty() && releases_.front().after <= completed) {
    free_piece(releases_.front().block, releases_.front().offset);
    releases_.pop_front();
  }
}

void Heap::free_piece(u64 id, u64 offset) {
  const auto at = blocks_.find(id);
  Block& block = at->second;
  const u64 taken = block.pieces.at(offset).taken;
  block.pieces.erase(offset);
  if (taken > options_.block_bytes / 2) {
    destroy(block);
    blocks_.erase(at);
    return;
  }
  add_free(block, offset, taken);
}

void Heap::trim() {
  for (auto at = blocks_.begin(); at != blocks_.end();) {
    if (at->second.pieces.empty()) {
      destroy(at->second);
      at = blocks_.erase(at);
    } else {
      ++at;
    }
  }
}

Heap::Place Heap::place(const Memory& memory, u64 offset, u64 bytes, const char* op) const {
  if (find(memory) == nullptr) {
    invalid(op,
            "the memory at {:#x} ({} bytes) is not allocated here, expected live memory of "
            "this device",
            memory.address, memory.bytes);
  }
  if (offset > memory.bytes || bytes > memory.bytes - offset) {
    fail(ErrorKind::OutOfRange, op,
         "the range is outside the memory, got {} bytes at offset {}, expected at most {} bytes",
         bytes, offset, memory.bytes);
  }
  const Block& block = blocks_.at(memory.handle);
  const u64 at = memory.address - block.address + offset;
  return {block.buffer, at, block.host == nullptr ? nullptr : block.host + at};
}

}  // namespace oa::device::vulkan
