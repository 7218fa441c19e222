// Registers the CPU's part of LLVM, once in the process.
#pragma once

namespace oa::codegen {

void initialise_llvm();

}  // namespace oa::codegen
