// What every fuzz target does with an input. The same functions run under libFuzzer (target_*.cpp)
// and in a unit test over the committed corpus.
//
// An input may be refused with an Error of the kinds that belong to its format and with nothing
// else. What is accepted is written again and read back to the same.
#pragma once

#include <span>

#include "oa/core/types.h"

namespace oa::fuzz {

void oam(std::span<const u8> input);
void safetensors(std::span<const u8> input);
void numpy(std::span<const u8> input);  // the common reader, with seeds of .npy and .npz
void bpe(std::span<const u8> input);

}  // namespace oa::fuzz
