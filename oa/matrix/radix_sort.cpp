// Least digit first. In a pass, workers count the digits of consecutive runs of a row, running sums
// over (digit, run) say where each run's pairs of a digit go, and the workers place them in order.
// A worker is a lane; on the CPU, where such work is fastest in scalar code, a workgroup has one.
#include "oa/matrix/radix_sort.h"

#include <algorithm>

#include "oa/matrix/kernel_tools.h"
#include "oa/matrix/scan_launch.h"

namespace oa::matrix {
namespace {

using graph::ArgRef;
using graph::Lower;
using kernel::Buffer;
using kernel::Shared;
using kernel::U32;
using kernel::U64;
using kernel::Value;

class RadixSort {
 public:
  RadixSort(Lower& l, i64 rows, i64 n, u32 bits) : l_(l), rows_(rows), n_(n) {
    const bool cpu = l.target().is_cpu();
    workers_ = cpu ? 1 : l.target().width;
    // Counters of all workers must fit the workgroup's memory.
    u32 widest = cpu ? 8 : 4;
    while (widest > 1 && (workers_ << widest) * 4 > l.target().shared_bytes / 2) --widest;
    passes_ = std::max<u32>(1, static_cast<u32>(ceil_div(bits, widest)));
    digit_bits_ = static_cast<u32>(ceil_div(std::max<u32>(bits, 1), passes_));
    const i64 block = cpu ? 16384 : workers_ * 16;
    blocks_ = ceil_div(n, block);
    per_block_ = blocks_ == 1 ? n : block;
    run_ = ceil_div(per_block_, workers_);
  }

  void run(SortPairs& p) {
    if (blocks_ == 1) {
      one_block(p);
    } else {
      for (u32 pass = 0; pass < passes_; ++pass) many_blocks(p, pass);
    }
  }

 private:
  struct Pairs {
    Buffer keys;
    Buffer positions;
  };
  Pairs pairs_of_row(const Buffer& keys, const Buffer& positions, const U32& row) const {
    const U64 offset = kernel::cast<U64>(row) * U64(kernel::extent(kernel::Scalar::U64, n_));
    return {shifted(keys, offset), shifted(positions, offset)};
  }

  std::pair<U32, U32> row_and_block() const {
    return {kernel::group() / length(blocks_), kernel::group() % length(blocks_)};
  }

  u32 digits() const { return 1u << digit_bits_; }
  // What follows from the length of rows is a parameter: it may be that of a batch.
  static U32 length(i64 x) { return U32(kernel::extent(kernel::Scalar::U32, x)); }

  U32 cell(const Value& digit) const { return U32(digit * word(workers_) + kernel::lane()); }
  U32 digit_of(const Value& key, const U32& shift) const {
    return (U32(key) >> shift) & word(digits() - 1);
  }

  // The worker's run of a block.
  void for_run(const U32& block, const std::function<void(const U32&)>& body) const {
    const U32 first = block * length(per_block_);
    const U32 end(kernel::min(first + length(per_block_), length(n_)));
    const U32 begin(kernel::min(first + kernel::lane() * length(run_), end));
    const U32 stop(kernel::min(begin + length(run_), end));
    kernel::For(begin, stop, word(1), body);
  }

  void count(const Shared& counters, const Buffer& keys, const U32& block, const U32& shift) const {
    kernel::For(word(0), word(digits()), word(1),
                [&](const U32& d) { counters[cell(d)] = word(0); });
    for_run(block, [&](const U32& i) {
      const U32 at = cell(digit_of(keys[i], shift));
      counters[at] = U32(counters[at]) + word(1);
    });
  }

  void place(const Shared& next, const Pairs& from, const Pairs& to, const U32& block,
             const U32& shift) const {
    for_run(block, [&](const U32& i) {
      const U32 key(from.keys[i]), position(from.positions[i]);
      const U32 at = cell(digit_of(key, shift));
      const U32 place(next[at]);
      next[at] = place + word(1);
      to.keys[place] = key;
      to.positions[place] = position;
    });
  }

  // Counters of a digit become the places of each worker's first pair of it, from `first` on.
  // Yields the number of pairs of the digit.
  U32 place_digit(const Shared& counters, const U32& digit, const U32& first) const {
    const U32 own(counters[cell(digit)]);
    if (workers_ == 1) {
      counters[cell(digit)] = first;
      return own;
    }
    const GroupScan scan = group_scan(own);
    counters[cell(digit)] = first + U32(scan.inclusive) - own;
    return U32(scan.total);
  }

  // Every pass of a row in one workgroup.
  void one_block(SortPairs& p) {
    const u32 start = p.current;
    kernel::Kernel k = kernel::trace("radix_sort", l_.target(), workers_, [&] {
      const Buffer ka = kernel::param_buffer(kernel::Scalar::U32),
                   pa = kernel::param_buffer(kernel::Scalar::U32),
                   kb = kernel::param_buffer(kernel::Scalar::U32),
                   pb = kernel::param_buffer(kernel::Scalar::U32);
      const Shared counters(kernel::Scalar::U32, digits() * workers_);
      const Pairs a = pairs_of_row(ka, pa, kernel::group());
      const Pairs b = pairs_of_row(kb, pb, kernel::group());
      kernel::For(word(0), word(passes_), word(1), [&](const U32& pass) {
        // From a to b and back, by one copy of the code.
        const kernel::Bool back = (pass & word(1)) == word(1);
        const auto either = [&](const Buffer& x, const Buffer& y) {
          return Buffer(x.elem(), kernel::select(back, y.address(), x.address()));
        };
        const Pairs from{either(a.keys, b.keys), either(a.positions, b.positions)};
        const Pairs to{either(b.keys, a.keys), either(b.positions, a.positions)};
        const U32 shift = pass * word(digit_bits_);
        count(counters, from.keys, word(0), shift);
        const kernel::Var<U32> first(0u);
        kernel::For(word(0), word(digits()), word(1),
                    [&](const U32& d) { first += place_digit(counters, d, *first); });
        place(counters, from, to, word(0), shift);
        kernel::barrier(kernel::kSharedMemory | kernel::kDeviceMemory);
      });
    });
    l_.launch(std::move(k), rows_,
              {p.keys[start], p.positions[start], p.keys[1 - start], p.positions[1 - start]});
    p.current = passes_ % 2 == 0 ? start : 1 - start;
  }

  void many_blocks(SortPairs& p, u32 pass) {
    const u32 from = p.current, to = 1 - p.current;
    const i64 cells = blocks_ * digits();  // per row, digit by digit
    const ArgRef counts = l_.temp(static_cast<u64>(rows_ * cells) * 4);
    const ArgRef places = l_.temp(static_cast<u64>(rows_ * cells) * 4);
    const ArgRef low_bit =
        ArgRef::number(pass * digit_bits_);  // so that passes share their kernels
    kernel::Kernel counting = kernel::trace("radix_count", l_.target(), workers_, [&] {
      const Buffer keys = kernel::param_buffer(kernel::Scalar::U32),
                   out = kernel::param_buffer(kernel::Scalar::U32);
      const U32 shift = kernel::param_u32();
      const Shared counters(kernel::Scalar::U32, digits() * workers_);
      const auto [row, block] = row_and_block();
      const Buffer row_keys =
          shifted(keys, kernel::cast<U64>(row) * U64(kernel::extent(kernel::Scalar::U64, n_)));
      count(counters, row_keys, block, shift);
      kernel::barrier();
      const Buffer row_counts =
          shifted(out, kernel::cast<U64>(row) * U64(kernel::extent(kernel::Scalar::U64, cells)));
      for_lanes(word(0), word(digits()), digits(), [&](const Value& d) {
        const kernel::Var<U32> sum(0u);
        kernel::For(word(0), word(workers_), word(1),
                    [&](const U32& w) { sum += U32(counters[d * word(workers_) + w]); });
        row_counts[d * length(blocks_) + block] = *sum;
      });
    });
    l_.launch(std::move(counting), rows_ * blocks_, {p.keys[from], counts, low_bit});
    launch_scan(l_, {rows_, cells, 1}, {kernel::Scalar::U32, kernel::Scalar::U32, true, false},
                counts, places);
    kernel::Kernel placing = kernel::trace("radix_place", l_.target(), workers_, [&] {
      const Buffer keys = kernel::param_buffer(kernel::Scalar::U32),
                   positions = kernel::param_buffer(kernel::Scalar::U32),
                   keys_out = kernel::param_buffer(kernel::Scalar::U32),
                   positions_out = kernel::param_buffer(kernel::Scalar::U32),
                   first = kernel::param_buffer(kernel::Scalar::U32);
      const U32 shift = kernel::param_u32();
      const Shared counters(kernel::Scalar::U32, digits() * workers_);
      const auto [row, block] = row_and_block();
      const Pairs a = pairs_of_row(keys, positions, row);
      const Pairs b = pairs_of_row(keys_out, positions_out, row);
      const Buffer row_first =
          shifted(first, kernel::cast<U64>(row) * U64(kernel::extent(kernel::Scalar::U64, cells)));
      if (workers_ > 1) count(counters, a.keys, block, shift);
      kernel::For(word(0), word(digits()), word(1), [&](const U32& d) {
        const U32 start(row_first[d * length(blocks_) + block]);
        if (workers_ == 1) {
          counters[cell(d)] = start;
        } else {
          place_digit(counters, d, start);
        }
      });
      place(counters, a, b, block, shift);
    });
    l_.launch(std::move(placing), rows_ * blocks_,
              {p.keys[from], p.positions[from], p.keys[to], p.positions[to], places, low_bit});
    p.current = to;
  }

  Lower& l_;
  i64 rows_, n_;
  u32 workers_ = 0, passes_ = 0, digit_bits_ = 0;
  i64 blocks_ = 0, per_block_ = 0, run_ = 0;
};

}  // namespace

SortPairs make_pairs(Lower& l, i64 rows, i64 n) {
  SortPairs p;
  for (u32 i = 0; i < 2; ++i) {
    p.keys[i] = l.temp(static_cast<u64>(rows * n) * 4);
    p.positions[i] = l.temp(static_cast<u64>(rows * n) * 4);
  }
  return p;
}

void radix_sort(Lower& l, i64 rows, i64 n, u32 bits, SortPairs& pairs) {
  if (rows * n == 0 || bits == 0) return;
  RadixSort(l, rows, n, bits).run(pairs);
}

}  // namespace oa::matrix
