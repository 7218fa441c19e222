// Reads the text of print.h back into a kernel.
#pragma once

#include <string_view>

#include "oa/kernel/ir.h"

namespace oa::kernel {

// Throws InvalidArgument `kernel::parse: line N: ...`. Only the form is checked; verify() checks
// types and structure. Values are renumbered in the order of the text.
Kernel parse(std::string_view text);

}  // namespace oa::kernel
