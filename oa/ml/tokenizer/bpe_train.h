// Finds the merges of a byte-pair vocabulary.
#pragma once

#include <span>
#include <vector>

#include "oa/ml/tokenizer/merge.h"

namespace oa::ml::tokenizer {

// At most `limit` merges. Each round counts all adjacent pairs of tokens ("aaa" holds (a, a)
// twice), takes the most frequent one, of equal ones the smallest (left, right), and replaces it
// from left to right. Ends when no pair occurs twice. `threads` changes nothing but the time; 0: as
// many as engines use.
//
// Needs 7 to 8 bytes of memory per byte of a natural text, at most 13 of any; 2 more above 65279
// merges, twice as much above 4 GiB.
std::vector<BpeMerge> train_merges(std::span<const u8> bytes, u32 limit, u32 threads = 0);

namespace detail {

// The types that hold ids and places; chosen by size unless a test asks for one.
enum class TrainWidths : u8 { Auto, Small, WideIds, WideAll };
std::vector<BpeMerge> train_merges(std::span<const u8> bytes, u32 limit, u32 threads,
                                   TrainWidths widths);

}  // namespace detail

}  // namespace oa::ml::tokenizer
