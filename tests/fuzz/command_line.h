// The command lines of `oa train lm` and `oa generate` as a fuzz target.
#pragma once

#include <span>

#include "oa/core/types.h"

namespace oa::fuzz {

// Parses the words, each ended by a NUL except the last, and looks at what was understood, without
// running it. A refusal is a CLI::ParseError or an InvalidArgument and nothing else. Returns
// whether the words were accepted.
bool command_line(std::span<const u8> input);

}  // namespace oa::fuzz
