// From a command list to command buffers: splitting by time and by grid limits, push constants,
// barriers.
#pragma once

#include <span>
#include <vector>

#include "oa/device/vulkan/pipeline.h"
#include "oa/device/vulkan/timing.h"

namespace oa::device::vulkan {

// Workgroups [base, base + count) of a dispatch.
struct Piece {
  u32 dispatch = 0;  // index into the list
  u32 base = 0;
  u32 count = 0;
  bool barrier = false;
  u64 block = kNoBlock;  // offset of the arguments in memory; kNoBlock: in push constants

  static constexpr u64 kNoBlock = ~u64{0};
};

// Pieces that go into one submission.
struct Part {
  u32 first = 0;  // index into Plan::pieces
  u32 count = 0;
};

struct Plan {
  std::vector<Piece> pieces;
  std::vector<Part> parts;
};

struct SplitLimits {
  u32 groups = 0;  // workgroups of a grid
  f64 flops_per_second = 0;
  f64 dispatch_seconds = 0;  // of a dispatch that does nothing
  f64 seconds = 0;           // of one submission, at most
};

// Cuts a list into parts that each take no longer than the limit by the dispatches' estimates; a
// dispatch that takes longer by itself is cut into ranges of workgroups. Grids are exact: no
// workgroup runs twice or in vain. Empty dispatches leave only their barrier, to the next one.
Plan plan_submission(std::span<const Dispatch> dispatches, const SplitLimits& limits);

// Checks every dispatch against the list and the device. Throws InvalidArgument.
void check_list(const Context& context, const CommandList& list, const char* op);

// Gives pieces whose parameters exceed the push constants a place in a block of arguments; returns
// the bytes of that block. write_arguments() fills it.
u64 place_arguments(const CommandList& list, u32 push_bytes, Plan& plan);
void write_arguments(const CommandList& list, const Plan& plan, void* block);

struct Recording {
  Context& context;
  const CommandList& list;
  const Plan& plan;
  u64 block_address = 0;             // of the block of arguments
  Timestamps* timestamps = nullptr;  // null: untimed
};

void record_part(const Recording& recording, const Part& part, VkCommandBuffer buffer);

// The last few kernels of a part, for the report of a loss.
std::vector<Label> last_kernels(const CommandList& list, const Plan& plan, const Part& part);

}  // namespace oa::device::vulkan
