// Chunked copies through the ring. A chunk is at most a quarter of it, so that the host fills one
// chunk while the device copies another.
#include "oa/device/vulkan/staging.h"

#include <algorithm>
#include <cstring>

namespace oa::device::vulkan {
namespace {

constexpr u64 kGpuRingBytes = u64{32} << 20;
constexpr u64 kMappedRingBytes = u64{4} << 20;  // where most copies need no staging
constexpr u64 kRingAlignment = 64;
constexpr size_t kMaxGathered = 64;

}  // namespace

std::optional<u64> Ring::take(u64 bytes, u64 value) {
  bytes = (bytes + kRingAlignment - 1) & ~(kRingAlignment - 1);
  u64 begin = head_;
  if (begin % bytes_ + bytes > bytes_) begin += bytes_ - begin % bytes_;  // not around the end
  if (begin + bytes - tail_ > bytes_) return std::nullopt;
  head_ = begin + bytes;
  used_.push_back({head_, value});
  return begin % bytes_;
}

void Ring::collect(u64 completed) {
  while (!used_.empty() && used_.front().value <= completed) {
    tail_ = used_.front().end;
    used_.pop_front();
  }
}

Staging::Staging(Context& context, Queue& queue, Heap& device_memory)
    : context_(context),
      queue_(queue),
      device_memory_(device_memory),
      host_memory_(context, {.wanted = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
                                       VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
                             .liked = VK_MEMORY_PROPERTY_HOST_CACHED_BIT,
                             .block_bytes = 0,
                             .mapped = true}),
      ring_(context.physical().mapped ? kMappedRingBytes : kGpuRingBytes) {
  const std::optional<Memory> block = host_memory_.allocate(ring_.bytes());
  if (!block) context_.check(host_memory_.last_result(), "open_vulkan");
  block_ = *block;
  block_place_ = host_memory_.place(block_, 0, ring_.bytes(), "open_vulkan");
}

u64 Staging::take(u64 bytes, const char* op) {
  while (true) {
    if (std::optional<u64> offset = ring_.take(bytes, queue_.next())) return *offset;
    ring_.collect(queue_.completed(op));
    if (std::optional<u64> offset = ring_.take(bytes, queue_.next())) return *offset;
    if (ring_.oldest() > queue_.submitted()) flush();
    if (ring_.oldest() > queue_.submitted()) queue_.submit({}, {}, op);  // an upload failed
    queue_.wait(ring_.oldest(), op);
  }
}

void Staging::write(const Memory& to, u64 offset, const void* from, u64 bytes) {
  constexpr const char* kOp = "vulkan::write";
  Heap::Place place = device_memory_.place(to, offset, bytes, kOp);
  if (bytes == 0) return;
  if (place.host != nullptr && !has_uploads() && queue_.is_complete(queue_.submitted(), kOp)) {
    std::memcpy(place.host, from, bytes);
    return;
  }
  const u64 chunk = ring_.bytes() / 4;
  const u8* source = static_cast<const u8*>(from);
  while (bytes > 0) {
    const u64 n = std::min(bytes, chunk);
    const u64 at = take(n, kOp);
    std::memcpy(static_cast<u8*>(block_.host) + at, source, n);
    add_upload(place, at, n);
    if (gathered_bytes_ >= chunk || written_.size() >= kMaxGathered) flush();
    source += n;
    place.offset += n;
    bytes -= n;
  }
}

void Staging::add_upload(const Heap::Place& to, u64 ring_offset, u64 bytes) {
  const Range range{to.buffer, to.offset, to.offset + bytes};
  if (!has_uploads()) {
    uploads_ = queue_.begin(VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT, "vulkan::write");
    barrier_before_copies(context_, uploads_);
  } else if (std::any_of(written_.begin(), written_.end(), [&](const Range& w) {
               return w.buffer == range.buffer && w.begin < range.end && range.begin < w.end;
             })) {
    barrier_before_copies(context_, uploads_);
    written_.clear();
  }
  const VkBufferCopy region{
      .srcOffset = block_place_.offset + ring_offset, .dstOffset = to.offset, .size = bytes};
  context_.api.vkCmdCopyBuffer(uploads_, block_place_.buffer, to.buffer, 1, &region);
  written_.push_back(range);
  gathered_bytes_ += bytes;
}

VkCommandBuffer Staging::take_uploads() {
  if (!has_uploads()) return VK_NULL_HANDLE;
  barrier_after_copies(context_, uploads_);
  queue_.end(uploads_, "vulkan::write");
  written_.clear();
  gathered_bytes_ = 0;
  const VkCommandBuffer buffer = std::exchange(uploads_, VK_NULL_HANDLE);
  queue_.retire(buffer, queue_.next());
  return buffer;
}

void Staging::flush() {
  if (const VkCommandBuffer uploads = take_uploads()) {
    queue_.submit({&uploads, 1}, {}, "vulkan::write");
  }
}

void Staging::read(const Memory& from, u64 offset, void* to, u64 bytes) {
  constexpr const char* kOp = "vulkan::read";
  Heap::Place place = device_memory_.place(from, offset, bytes, kOp);
  if (bytes == 0) return;
  if (place.host != nullptr) {
    flush();
    queue_.wait(queue_.submitted(), kOp);
    std::memcpy(to, place.host, bytes);
    return;
  }
  // One chunk is copied by the device while the one before it is copied by the host: a ring of four
  // chunks, handed out in order, does not reach a chunk's place again with the next one.
  struct Chunk {
    u64 ring_offset;
    u64 bytes;
    u64 value;
  };
  const u64 chunk = ring_.bytes() / 4;
  u8* target = static_cast<u8*>(to);
  std::optional<Chunk> previous;
  auto fetch = [&](const Chunk& c) {
    queue_.wait(c.value, kOp);
    std::memcpy(target, static_cast<const u8*>(block_.host) + c.ring_offset, c.bytes);
    target += c.bytes;
  };
  flush();
  while (bytes > 0) {
    const u64 n = std::min(bytes, chunk);
    const u64 at = take(n, kOp);
    const VkCommandBuffer buffer = queue_.begin(VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT, kOp);
    barrier_before_copies(context_, buffer);
    const VkBufferCopy region{
        .srcOffset = place.offset, .dstOffset = block_place_.offset + at, .size = n};
    context_.api.vkCmdCopyBuffer(buffer, place.buffer, block_place_.buffer, 1, &region);
    barrier_after_copies(context_, buffer);
    queue_.end(buffer, kOp);
    queue_.retire(buffer, queue_.next());
    const u64 value = queue_.submit({&buffer, 1}, {}, kOp);
    if (previous) fetch(*previous);
    previous = Chunk{at, n, value};
    place.offset += n;
    bytes -= n;
  }
  fetch(*previous);
}

}  // namespace oa::device::vulkan
