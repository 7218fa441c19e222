// Cuts a list into intervals, ranges and chunks by the estimated cost of its groups.
#include "oa/device/cpu/schedule.h"

#include <algorithm>
#include <cmath>

namespace oa::device {

namespace {

constexpr f64 kUnknownGroupNs = 50;  // for dispatches without an estimate
constexpr f64 kMinRangeNs = 400;     // a thread is not worth disturbing for less
constexpr f64 kMinChunkNs = 2500;    // claiming costs 10 ns, 100 while others look at it
constexpr f64 kMaxChunksPerRange = 16;

f64 group_ns(const Work& w) {
  return w.group_ns > 0 ? std::min<f64>(w.group_ns, 1e9) : kUnknownGroupNs;
}
f64 cost(const Work& w) { return group_ns(w) * w.groups; }

}  // namespace

void Schedule::build(std::span<const Work> work, u32 threads, bool separate) {
  work_.assign(work.begin(), work.end());
  intervals_.clear();
  ranges_.clear();
  chunks_.assign(1, 0);
  spans_.clear();
  shared_intervals_ = 0;
  estimated_ns_ = 0;

  const u32 count = static_cast<u32>(work_.size());
  for (u32 begin = 0; begin < count;) {
    u32 end = begin + 1;
    while (end < count && !separate && !work_[end].barrier) ++end;
    add_interval(begin, end, threads, separate);
    begin = end;
  }
}

void Schedule::add_interval(u32 begin, u32 end, u32 threads, bool separate) {
  f64 total = 0;
  u64 groups = 0;
  for (u32 i = begin; i < end; ++i) {
    total += cost(work_[i]);
    groups += work_[i].groups;
  }
  estimated_ns_ += total;
  if (groups == 0 && !separate) return;

  const f64 wanted = std::min<f64>(total / kMinRangeNs, threads);
  const u32 ranges = static_cast<u32>(
      std::min<u64>(std::max<u64>(1, static_cast<u64>(wanted)), std::max<u64>(1, groups)));
  if (ranges == 1) {
    add_serial(begin, end, separate);
    return;
  }
  intervals_.push_back({static_cast<u32>(ranges_.size()), ranges});
  const f64 chunk_ns = std::max(kMinChunkNs, total / ranges / kMaxChunksPerRange);
  for (u32 r = 0; r < ranges; ++r) add_range(begin, end, r, ranges, chunk_ns);
  shared_intervals_ = static_cast<u32>(intervals_.size());
}

// Dispatches in order, as one chunk for thread 0.
void Schedule::add_serial(u32 begin, u32 end, bool separate) {
  const bool continues = !separate && !intervals_.empty() && intervals_.size() > shared_intervals_;
  if (continues) chunks_.pop_back();  // opens the last chunk again
  for (u32 i = begin; i < end; ++i)
    if (work_[i].groups != 0) spans_.push_back({i, 0, work_[i].groups});
  if (!continues) {
    intervals_.push_back({static_cast<u32>(ranges_.size()), 1});
    ranges_.push_back({static_cast<u32>(chunks_.size() - 1), 1});
  }
  chunks_.push_back(static_cast<u32>(spans_.size()));
}

void Schedule::close_chunk() {
  if (chunks_.back() != spans_.size()) chunks_.push_back(static_cast<u32>(spans_.size()));
}

void Schedule::add_range(u32 begin, u32 end, u32 r, u32 ranges, f64 chunk_ns) {
  const u32 first_chunk = static_cast<u32>(chunks_.size() - 1);
  f64 filled = 0;
  u64 turn = 0;  // deals the remainders of the divisions to the ranges in turn
  for (u32 i = begin; i < end; ++i) {
    const Work& w = work_[i];
    const u64 groups = w.groups;
    u64 first = (groups * r + turn) / ranges;
    const u64 last = (groups * (r + 1) + turn) / ranges;
    turn = (turn + groups) % ranges;
    while (first < last) {
      const f64 room = std::max(1.0, std::floor((chunk_ns - filled) / group_ns(w) + 0.5));
      const u64 take = std::min(last - first, static_cast<u64>(std::min(room, 4e9)));
      spans_.push_back({i, static_cast<u32>(first), static_cast<u32>(first + take)});
      first += take;
      filled += static_cast<f64>(take) * group_ns(w);
      if (filled >= chunk_ns * 0.75) {
        close_chunk();
        filled = 0;
      }
    }
  }
  close_chunk();
  ranges_.push_back({first_chunk, static_cast<u32>(chunks_.size() - 1) - first_chunk});
}

}  // namespace oa::device
