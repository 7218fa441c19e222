// Runs a kernel in the reference interpreter with every check on; for the tests of kernels.
#pragma once

#include <span>
#include <vector>

#include "oa/kernel/interpret.h"
#include "oa/kernel/ir.h"

namespace oa::kernel {

// Verifies the kernel, runs it over `buffers` (see BufferView), and leaves the results there. Its
// text must parse back to the same kernel, and the simplified kernel must give the same bits (any
// NaN for a NaN). Throws Error (Internal) with the first fault.
void run_checked(const Kernel& kernel, std::span<const u64> args,
                 std::span<const BufferView> buffers, u32 groups,
                 const InterpretOptions& options = {});

// A buffer of host values, at its host address.
template <class T>
BufferView buffer_view(std::vector<T>& values) {
  return {reinterpret_cast<u64>(values.data()), values.data(), values.size() * sizeof(T)};
}

// The same, with bytes that count as unwritten until the kernel stores them.
template <class T>
BufferView output_view(std::vector<T>& values, std::vector<bool>& written) {
  written.assign(values.size() * sizeof(T), false);
  BufferView view = buffer_view(values);
  view.initialised = &written;
  return view;
}

}  // namespace oa::kernel
