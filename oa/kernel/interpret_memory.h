// Memory of the interpreter, whose cells remember who touched them; see interpret.h.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "oa/kernel/interpret.h"

namespace oa::kernel {

enum class Access : u8 { Read, Write, Atomic };

// Stands for a whole subgroup (fragments), or for several lanes: nobody is equal to it.
inline constexpr u32 kManyLanes = ~0u;

// Who touched a cell last, by kind of access. An epoch is one stretch between barriers of one
// workgroup, numbered through the whole run, so equal epochs mean the same workgroup.
class Cell {
 public:
  // Notes an access; returns what is wrong with it, empty if nothing.
  std::string touch(Access access, u32 lane, u32 epoch, bool same_value);
  // Groups are numbered through all dispatches; those below `oldest` are done, those below `first`
  // belong to earlier dispatches.
  std::string touch_group(Access access, u32 group, u32 oldest, u32 first);

 private:
  struct Stamp {
    u32 epoch = 0;
    u32 lane = 0;
  };
  Stamp last_[3];
  u32 group_[3] = {~0u, ~0u, ~0u};  // the first group, or the only one, by kind of access
  bool many_[3] = {};               // more groups did
};

// The position of the program, for messages.
struct Place {
  const Kernel* kernel = nullptr;
  ValueId instr = 0;
  u32 group = 0;
  u32 lane = 0;
};

// Throws the error of interpret.h.
[[noreturn]] void report(const Place& place, const std::string& what);

class DeviceMemory {
 public:
  // Accesses are told apart in cells of `granule` bytes: no more than granule_of() any kernel.
  DeviceMemory(std::span<const BufferView> buffers, u32 granule, const InterpretOptions& options);

  // Bytes of the smallest element of device memory that a kernel touches, 4 at most.
  static u32 granule_of(const Kernel& kernel);

  // The next dispatch over this memory. Without a barrier it may run beside those before.
  void begin_dispatch(u32 groups, bool barrier);
  void next_epoch() { ++epoch_; }

  // One element of `elem` at address + index * size; values in their bits.
  u64 read(const Place& place, u64 address, i64 index, Scalar elem, u32 lane, Access access);
  void write(const Place& place, u64 address, i64 index, Scalar elem, u64 value, u32 lane,
             Access access);

 private:
  struct Block {
    BufferView view;
    std::vector<Cell> cells;  // made at the first touch
  };
  struct Spot {
    Block* block;
    u64 offset;
  };

  Spot locate(const Place& place, u64 address, i64 index, u32 size);
  Block* block_of(u64 address);
  void touch(const Place& place, Spot spot, u32 size, Access access, u32 lane, bool same_value);

  std::vector<Block> blocks_;  // by address
  size_t recent_ = 0;
  u32 granule_;
  u32 epoch_ = 0;
  u32 oldest_ = 0, first_ = 0, next_ = 0;  // numbers of groups, see Cell
  const InterpretOptions& options_;
};

// As interpret() over buffers, within a sequence of dispatches over one memory.
void interpret(const Kernel& kernel, std::span<const u64> args, DeviceMemory& memory, u32 groups,
               const InterpretOptions& options);

// One shared slot.
class SharedMemory {
 public:
  SharedMemory(const SharedSlot& slot, const InterpretOptions& options)
      : slot_(slot), options_(options) {}

  void clear();  // a new workgroup
  void next_epoch() { ++epoch_; }

  u64 read(const Place& place, u32 slot, i64 index, u32 lane, Access access);
  void write(const Place& place, u32 slot, i64 index, u64 value, u32 lane, Access access);

 private:
  void check(const Place& place, u32 slot, i64 index) const;
  void touch(const Place& place, i64 index, Access access, u32 lane, bool same_value);

  SharedSlot slot_;
  const InterpretOptions& options_;
  std::vector<u64> values_;
  std::vector<bool> written_;
  std::vector<Cell> cells_;
  u32 epoch_ = 0;
};

}  // namespace oa::kernel
