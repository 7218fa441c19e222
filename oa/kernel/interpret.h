// The reference interpreter: runs a kernel exactly as ir.h says, slowly, and reports every access
// that a real machine would let pass or turn into a rare failure.
//
// The lanes of a workgroup run in lockstep under a mask of active lanes, workgroups one after the
// other. Lockstep alone would hide a missing barrier, so each cell of memory remembers who touched
// it since when. Reported, always with kernel, instruction, group and lane:
//   * device memory outside the buffers given, misaligned addresses, a shared index out of range;
//   * reading memory, shared memory or a variable that was never written;
//   * within a workgroup: lanes that touch a cell, one of them writing, without a barrier of that
//     memory in between (several lanes may write one and the same value);
//   * between workgroups: two groups that touch a cell, one of them writing not atomically;
//   * a barrier, or a subgroup operation, that not all lanes of the group (subgroup) reach;
//   * a loop that does not end.
#pragma once

#include <span>
#include <vector>

#include "oa/kernel/ir.h"

namespace oa::kernel {

// A block of device memory. Buffers must not overlap.
struct BufferView {
  u64 address = 0;  // what the kernel sees
  void* data = nullptr;
  u64 bytes = 0;
  // One flag a byte: false marks a byte that must not be read before it is written; stores set it.
  // Without flags all bytes count as written.
  std::vector<bool>* initialised = nullptr;
};

struct InterpretOptions {
  bool check_races = true;        // between lanes of a workgroup
  bool check_group_races = true;  // between workgroups
  u64 max_steps = 2'000'000'000;  // instructions x lanes, after which a kernel is said not to end
};

// Runs `groups` workgroups. `args` are the parameters, 8 bytes each. Throws Error (Internal)
// `kernel::interpret: NAME: INSTRUCTION: what is wrong`; memory then holds what was written so far.
// The kernel must be one that verify() accepts.
void interpret(const Kernel& kernel, std::span<const u64> args, std::span<const BufferView> buffers,
               u32 groups, const InterpretOptions& options = {});

}  // namespace oa::kernel
