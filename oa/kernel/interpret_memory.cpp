#include "oa/kernel/interpret_memory.h"

#include <algorithm>
#include <cstring>

#include "oa/core/error.h"
#include "oa/kernel/evaluate.h"
#include "oa/kernel/print.h"

namespace oa::kernel {
namespace {

constexpr const char* kPast[] = {"read", "written", "changed atomically"};

bool conflict(Access a, Access b) {
  return a != b || a == Access::Write;  // reads agree, and so do atomics
}

u64 load_bytes(const void* p, u32 size) {
  u64 bits = 0;
  std::memcpy(&bits, p, size);
  return bits;
}

}  // namespace

std::string Cell::touch(Access access, u32 lane, u32 epoch, bool same_value) {
  for (Access other : {Access::Write, Access::Atomic, Access::Read}) {
    const Stamp& s = last_[static_cast<int>(other)];
    if (s.epoch != epoch || !conflict(access, other)) continue;
    if (s.lane == lane && lane != kManyLanes) continue;
    if (access == Access::Write && other == Access::Write && same_value) continue;
    const std::string who = s.lane == kManyLanes ? "several lanes" : fmt::format("lane {}", s.lane);
    return fmt::format("missing barrier, the cell was {} by {} since the last one",
                       kPast[static_cast<int>(other)], who);
  }
  Stamp& own = last_[static_cast<int>(access)];
  own = {epoch, own.epoch == epoch && own.lane != lane ? kManyLanes : lane};
  return {};
}

std::string Cell::touch_group(Access access, u32 group, u32 oldest, u32 first) {
  for (Access other : {Access::Write, Access::Atomic, Access::Read}) {
    const int o = static_cast<int>(other);
    if (group_[o] == ~0u || !conflict(access, other)) continue;
    if (group_[o] < oldest || (group_[o] == group && !many_[o])) continue;
    if (group_[o] < first) {
      return fmt::format(
          "race between dispatches, the cell was {} by an earlier one without a "
          "barrier in between",
          kPast[o]);
    }
    return fmt::format("race between groups, the cell was {} by group {}", kPast[o],
                       group_[o] - first);
  }
  const int own = static_cast<int>(access);
  if (group_[own] == ~0u || group_[own] < oldest) {
    group_[own] = group;
    many_[own] = false;
  } else if (group_[own] != group) {
    many_[own] = true;
  }
  return {};
}

void report(const Place& place, const std::string& what) {
  fail(ErrorKind::Internal, "kernel::interpret", "{}: {}: {} (group {}, lane {})",
       place.kernel->name, print(*place.kernel, place.instr), what, place.group, place.lane);
}

DeviceMemory::DeviceMemory(std::span<const BufferView> buffers, u32 granule,
                           const InterpretOptions& options)
    : granule_(granule), options_(options) {
  for (const BufferView& view : buffers) {
    if (view.bytes == 0) continue;
    if (view.initialised && view.initialised->size() != view.bytes) {
      invalid("kernel::interpret", "flags of the buffer at {:#x}, got {}, expected {}",
              view.address, view.initialised->size(), view.bytes);
    }
    blocks_.push_back({view, {}});
  }
  std::ranges::sort(blocks_, {}, [](const Block& b) { return b.view.address; });
  for (size_t b = 1; b < blocks_.size(); ++b) {
    const BufferView& before = blocks_[b - 1].view;
    if (before.address + before.bytes > blocks_[b].view.address) {
      invalid("kernel::interpret", "buffers overlap, got {:#x} with {} bytes and {:#x}",
              before.address, before.bytes, blocks_[b].view.address);
    }
  }
}

u32 DeviceMemory::granule_of(const Kernel& kernel) {
  u32 granule = 4;
  for (const Instr& i : kernel.instrs) {
    const bool device = (i.op >= Op::Load && i.op <= Op::AtomicCas) || i.op == Op::FragLoad ||
                        i.op == Op::FragStore;
    if (device) granule = std::min(granule, size_bytes(i.elem));
  }
  return granule;
}

void DeviceMemory::begin_dispatch(u32 groups, bool barrier) {
  first_ = next_;
  next_ += groups;
  if (barrier) oldest_ = first_;
}

DeviceMemory::Block* DeviceMemory::block_of(u64 address) {
  const auto holds = [&](const Block& b) { return address - b.view.address < b.view.bytes; };
  if (recent_ < blocks_.size() && holds(blocks_[recent_])) return &blocks_[recent_];
  auto it =
      std::ranges::upper_bound(blocks_, address, {}, [](const Block& b) { return b.view.address; });
  if (it == blocks_.begin() || !holds(*--it)) return nullptr;
  recent_ = static_cast<size_t>(it - blocks_.begin());
  return &*it;
}

DeviceMemory::Spot DeviceMemory::locate(const Place& place, u64 address, i64 index, u32 size) {
  const u64 at = address + static_cast<u64>(index) * size;
  // The base tells which buffer is meant; an access that strays into another one is wrong too.
  Block* block = block_of(address);
  if (!block) block = block_of(at);
  if (!block) {
    report(place, fmt::format("out of bounds, got index {} from address {:#x}, which is in no "
                              "buffer",
                              index, address));
  }
  const BufferView& view = block->view;
  const u64 offset = at - view.address;
  if (offset >= view.bytes || view.bytes - offset < size) {
    const i64 first = -static_cast<i64>((address - view.address) / size);
    const i64 last = static_cast<i64>((view.address + view.bytes - address) / size) - 1;
    report(place, fmt::format("out of bounds, got index {}, expected {} .. {} of the {} bytes at "
                              "{:#x}",
                              index, first, last, view.bytes, view.address));
  }
  if (at % size) {
    report(place,
           fmt::format("misaligned, got address {:#x}, expected a multiple of {}", at, size));
  }
  return {block, offset};
}

void DeviceMemory::touch(const Place& place, Spot spot, u32 size, Access access, u32 lane,
                         bool same_value) {
  if (!options_.check_races && !options_.check_group_races) return;
  // A block may start inside a cell.
  const u64 lead = spot.block->view.address % granule_;
  if (spot.block->cells.empty()) {
    spot.block->cells.resize((lead + spot.block->view.bytes + granule_ - 1) / granule_);
  }
  const u64 first = (lead + spot.offset) / granule_;
  for (u64 c = first; c < first + size / granule_; ++c) {
    Cell& cell = spot.block->cells[c];
    std::string wrong;
    if (options_.check_races) wrong = cell.touch(access, lane, epoch_, same_value);
    if (wrong.empty() && options_.check_group_races) {
      wrong = cell.touch_group(access, first_ + place.group, oldest_, first_);
    }
    if (!wrong.empty()) {
      report(place, fmt::format("{}, at byte {} of the {} bytes at {:#x}", wrong, spot.offset,
                                spot.block->view.bytes, spot.block->view.address));
    }
  }
}

u64 DeviceMemory::read(const Place& place, u64 address, i64 index, Scalar elem, u32 lane,
                       Access access) {
  const u32 size = size_bytes(elem);
  const Spot spot = locate(place, address, index, size);
  const BufferView& view = spot.block->view;
  if (view.initialised) {
    for (u64 b = spot.offset; b < spot.offset + size; ++b) {
      if (!(*view.initialised)[b]) {
        report(place, fmt::format("reads memory that was never written, at byte {} of the {} "
                                  "bytes at {:#x}",
                                  b, view.bytes, view.address));
      }
    }
  }
  touch(place, spot, size, access, lane, true);
  return element_to_value(elem,
                          load_bytes(static_cast<const std::byte*>(view.data) + spot.offset, size));
}

void DeviceMemory::write(const Place& place, u64 address, i64 index, Scalar elem, u64 value,
                         u32 lane, Access access) {
  const u32 size = size_bytes(elem);
  const Spot spot = locate(place, address, index, size);
  const BufferView& view = spot.block->view;
  std::byte* p = static_cast<std::byte*>(view.data) + spot.offset;
  const u64 bits = value_to_element(elem, value);
  touch(place, spot, size, access, lane, load_bytes(p, size) == bits);
  std::memcpy(p, &bits, size);
  if (view.initialised) {
    for (u64 b = spot.offset; b < spot.offset + size; ++b) (*view.initialised)[b] = true;
  }
}

void SharedMemory::clear() {
  values_.assign(slot_.count, 0);
  written_.assign(slot_.count, false);
  cells_.assign(slot_.count, {});
  epoch_ = 1;
}

void SharedMemory::check(const Place& place, u32 slot, i64 index) const {
  if (index < 0 || index >= slot_.count) {
    report(place, fmt::format("out of bounds, got index {}, expected 0 .. {} of s{}", index,
                              slot_.count - 1, slot));
  }
}

void SharedMemory::touch(const Place& place, i64 index, Access access, u32 lane, bool same_value) {
  if (!options_.check_races) return;
  const std::string wrong =
      cells_[static_cast<size_t>(index)].touch(access, lane, epoch_, same_value);
  if (!wrong.empty()) report(place, fmt::format("{}, at index {}", wrong, index));
}

u64 SharedMemory::read(const Place& place, u32 slot, i64 index, u32 lane, Access access) {
  check(place, slot, index);
  const auto at = static_cast<size_t>(index);
  if (!written_[at]) {
    report(place, fmt::format("reads shared memory that was never written, at index {}", index));
  }
  touch(place, index, access, lane, true);
  return element_to_value(slot_.elem, values_[at]);
}

void SharedMemory::write(const Place& place, u32 slot, i64 index, u64 value, u32 lane,
                         Access access) {
  check(place, slot, index);
  const auto at = static_cast<size_t>(index);
  const u64 bits = value_to_element(slot_.elem, value);
  touch(place, index, access, lane, written_[at] && values_[at] == bits);
  values_[at] = bits;
  written_[at] = true;
}

}  // namespace oa::kernel
