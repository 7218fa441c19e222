// How a list of dispatches is spread over the threads of a pool: computed once, run many times.
//
// The list is cut at its barriers into intervals. Within an interval each dispatch is divided
// evenly into contiguous ranges of groups, one range per thread, so that a thread meets the same
// part of the data in dispatch after dispatch. A range is cut into chunks of some
// microseconds, which is what other threads may steal. Intervals too short to share become one
// chunk, and neighbours of that kind become one interval, which costs no synchronisation inside.
#pragma once

#include <span>
#include <vector>

#include "oa/core/types.h"

namespace oa::device {

// A compiled kernel: runs the groups first <= g < last out of `count`.
using KernelFn = void (*)(const u64* params, u32 first, u32 last, u32 count);

struct Work {
  KernelFn fn = nullptr;
  const u64* params = nullptr;
  u32 groups = 0;
  f32 group_ns = 0;      // estimated time of one group; only balance depends on it
  bool barrier = false;  // starts after everything before it is complete
};

class Schedule {
 public:
  struct Range {
    u32 first_chunk = 0;
    u32 chunks = 0;
  };
  struct Interval {
    u32 first_range = 0;
    u32 ranges = 0;  // ranges 0 .. ranges-1 belong to the threads of those numbers
  };

  // `work` is copied; the parameters it points to are not. With `separate`, each dispatch is an
  // interval of its own, in order, empty ones included.
  void build(std::span<const Work> work, u32 threads, bool separate = false);

  u32 intervals() const { return static_cast<u32>(intervals_.size()); }
  // The intervals from this one on have work for thread 0 only.
  u32 shared_intervals() const { return shared_intervals_; }
  const Interval& interval(u32 k) const { return intervals_[k]; }
  const Range& range(const Interval& interval, u32 r) const {
    return ranges_[interval.first_range + r];
  }
  f64 estimated_ns() const { return estimated_ns_; }

  void execute(u32 chunk) const {
    for (u32 i = chunks_[chunk]; i != chunks_[chunk + 1]; ++i) {
      const Span& s = spans_[i];
      const Work& w = work_[s.work];
      w.fn(w.params, s.first, s.last, w.groups);
    }
  }

 private:
  struct Span {
    u32 work;
    u32 first;
    u32 last;
  };

  void add_interval(u32 begin, u32 end, u32 threads, bool separate);
  void add_serial(u32 begin, u32 end, bool separate);
  void add_range(u32 begin, u32 end, u32 r, u32 ranges, f64 chunk_ns);
  void close_chunk();

  std::vector<Work> work_;
  std::vector<Interval> intervals_;
  std::vector<Range> ranges_;
  std::vector<u32> chunks_;  // first span of each chunk, and the end
  std::vector<Span> spans_;
  u32 shared_intervals_ = 0;
  f64 estimated_ns_ = 0;
};

}  // namespace oa::device
