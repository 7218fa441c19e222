#include "oa/engine/memory_pool.h"

#include <bit>

#include "oa/core/error.h"

namespace oa {
namespace {

// Size classes four to an octave, so at most a fifth is wasted; large blocks are cut to 2 MiB.
u64 class_of(u64 bytes) {
  if (bytes <= 256) return 256;
  if (bytes >= (32ull << 20)) return (bytes + (2ull << 20) - 1) >> 21 << 21;
  const u64 step = std::max<u64>(256, std::bit_floor(bytes - 1) / 4);
  return (bytes + step - 1) / step * step;
}

}  // namespace

MemoryPool::~MemoryPool() { trim(); }

void MemoryPool::trim() {
  for (auto& [size, blocks] : kept_) {
    for (const device::Memory& m : blocks) device_.release(m);
  }
  kept_.clear();
  kept_bytes_ = 0;
}

device::Memory MemoryPool::take(u64 bytes) {
  const u64 size = class_of(bytes);
  if (auto it = kept_.find(size); it != kept_.end() && !it->second.empty()) {
    device::Memory m = it->second.back();
    it->second.pop_back();
    kept_bytes_ -= size;
    return m;
  }
  device::Memory m = allocate(size);
  m.bytes = size;
  return m;
}

device::Memory MemoryPool::allocate(u64 bytes) {
  try {
    return device_.allocate(bytes);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::ResourceExhausted || kept_bytes_ == 0) throw;
  }
  trim();
  return device_.allocate(bytes);
}

void MemoryPool::give(const device::Memory& memory) {
  kept_[memory.bytes].push_back(memory);
  kept_bytes_ += memory.bytes;
}

}  // namespace oa
