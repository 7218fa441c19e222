// Device memory for values: freed blocks are kept by size and handed out again, so that a loop of
// equal steps allocates nothing after its first.
#pragma once

#include <map>
#include <vector>

#include "oa/device/device.h"

namespace oa {

class MemoryPool {
 public:
  explicit MemoryPool(device::Device& device) : device_(device) {}
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // A block of at least `bytes`. Throws ResourceExhausted when even giving back every kept block
  // does not help.
  device::Memory take(u64 bytes);
  // Memory of exactly `bytes` that the caller releases to the device, with the same promise.
  device::Memory allocate(u64 bytes);
  void give(const device::Memory& memory);
  void trim();  // gives kept blocks back to the device

  u64 kept_bytes() const { return kept_bytes_; }

 private:
  device::Device& device_;
  std::map<u64, std::vector<device::Memory>> kept_;  // by size
  u64 kept_bytes_ = 0;
};

}  // namespace oa
