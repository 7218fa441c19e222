// The claiming protocol, and how threads wait. See the header first.
#include "oa/device/cpu/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <system_error>

#include "oa/core/error.h"
#include "oa/device/cpu/host.h"

namespace oa::device {

namespace {

using Clock = std::chrono::steady_clock;

// Slot::claims. The number of the interval never goes down, so a claim that comes too late fails.
constexpr u64 kOneDone = 1;
constexpr u64 kOneClaimed = u64{1} << 16;
constexpr u64 pack(u32 number, u32 claimed) { return u64{number} << 32 | u64{claimed} << 16; }
constexpr u32 number_of(u64 c) { return static_cast<u32>(c >> 32); }
constexpr u32 claimed_of(u64 c) { return static_cast<u32>(c >> 16) & 0xffff; }
constexpr u32 done_of(u64 c) { return static_cast<u32>(c) & 0xffff; }

constexpr u32 kStop = ~0u & ~1u;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Waiting inside a run. What is waited for is mostly less than a microsecond away. Each look takes
// the line from the thread that is to write it, so later looks are rarer.
class Backoff {
 public:
  explicit Backoff(bool crowded) : spins_(crowded ? 20 : 800) {}
  void wait() {
    if (count_ < spins_) {
      for (u32 i = 0; i <= std::min(count_ / 8, 7u); ++i) pause();
    } else if (count_ < spins_ + 500) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    ++count_;
  }

 private:
  u32 spins_;
  u32 count_ = 0;
};

// How long an idle worker spins before it sleeps: waking takes 50 us and more, and the next run of
// a training loop is mostly less than a millisecond away.
constexpr auto kIdleSpin = std::chrono::microseconds(2000);
constexpr auto kIdleSpinCrowded = std::chrono::microseconds(20);

constexpr f64 kWorthWaking = 20e3;  // ns of a run

// Looks before a thread helps with a range that its own thread is about to begin, or to finish:
// taking it over moves its data between the cores, now and again in the next step. Where cores have
// no cache in common that costs several microseconds, as long as these looks take.
constexpr u32 kPatience = 160;
constexpr u32 kPatienceOnceBegun = 80;
constexpr u32 kPatienceCrowded = 10;

void pin(pthread_t thread, u32 core) {
  // Only a hint: a refusal (cores taken away meanwhile) leaves the thread where it was.
  std::vector<u8> bytes(CPU_ALLOC_SIZE(core + 1));
  cpu_set_t* set = reinterpret_cast<cpu_set_t*>(bytes.data());
  CPU_SET_S(core, bytes.size(), set);
  ::pthread_setaffinity_np(thread, bytes.size(), set);
}

}  // namespace

ThreadPool::ThreadPool(u32 threads, u32 first_number)
    : threads_(threads), slots_(new Slot[threads]), next_number_(first_number) {
  OA_CHECK(threads >= 1 && threads <= kMaxThreads);
  const std::vector<Core> cores = usable_cores();
  crowded_ = threads > cores.size();
  try {
    for (u32 i = 1; i < threads; ++i) workers_.emplace_back([this, i] { worker(i); });
  } catch (const std::system_error& e) {
    const size_t started = workers_.size();
    state_.store(kStop);
    state_.notify_all();
    for (std::thread& w : workers_) w.join();
    fail(ErrorKind::ResourceExhausted, "ThreadPool",
         "cannot start a thread: {}, got {} threads, expected {}", e.what(), started + 1, threads);
  }
  if (threads > 1) choose_cores(cores);
  for (u32 i = 1; i < cores_.size(); ++i) pin(workers_[i - 1].native_handle(), cores_[i]);
}

// Threads are pinned only if they fill the machine: one on each physical core or on each processor.
// With fewer, other processes may pin theirs to the same cores while the rest are idle.
void ThreadPool::choose_cores(const std::vector<Core>& cores) {
  const std::vector<u32> physical = homes(cores);
  const bool all = threads_ == cores.size();
  if (!all && threads_ != physical.size()) return;
  core_of_.resize(cores.back().number + 1);
  for (const Core& c : cores) {
    core_of_[c.number] = all ? c.number : c.home;
    if (all) cores_.push_back(c.number);
  }
  if (!all) cores_ = physical;
}

// The workers must not share the caller's core, but the caller belongs to the application and is
// never pinned. So the worker of the core that the caller runs on moves to the core it left.
void ThreadPool::make_room() {
  const int processor = ::sched_getcpu();
  if (processor < 0 || static_cast<size_t>(processor) >= core_of_.size()) return;
  const u32 core = core_of_[static_cast<size_t>(processor)];
  if (core == cores_[0]) return;
  const auto at = std::find(cores_.begin(), cores_.end(), core);
  if (at == cores_.end()) return;
  std::swap(cores_[0], *at);
  pin(workers_[static_cast<size_t>(at - cores_.begin()) - 1].native_handle(), *at);
}

ThreadPool::~ThreadPool() {
  state_.store(kStop);
  state_.notify_all();
  for (std::thread& w : workers_) w.join();
}

void ThreadPool::run(const Schedule& schedule, f64* seconds) {
  const FpMode mode(FpMode::Kind::Kernel);
  if (!cores_.empty()) make_room();
  if (!seconds) {
    run_intervals(schedule, 0, schedule.intervals());
    return;
  }
  auto begin = Clock::now();
  for (u32 k = 0; k < schedule.intervals(); ++k) {
    run_intervals(schedule, k, k + 1);
    const auto end = Clock::now();
    seconds[k] = std::chrono::duration<f64>(end - begin).count();
    begin = end;
  }
}

void ThreadPool::run_intervals(const Schedule& schedule, u32 first, u32 last) {
  const u32 shared = std::min(last, schedule.shared_intervals());
  const bool alone = last == first + 1 && schedule.interval(first).ranges == 1;
  if (threads_ == 1 || shared <= first || alone) {
    for (u32 k = first; k < last; ++k)
      schedule.execute(schedule.range(schedule.interval(k), 0).first_chunk);
    return;
  }
  // Nobody else is inside, so the slots may be reset before the numbers run out.
  if (next_number_ > std::numeric_limits<u32>::max() - (last - first)) {
    for (u32 t = 0; t < threads_; ++t) slots_[t].claims.store(0, std::memory_order_relaxed);
    next_number_ = 1;
  }
  schedule_ = &schedule;
  first_ = first;
  last_ = last;
  last_shared_ = shared;
  base_ = next_number_ - first;
  next_number_ += last - first;
  u32 open = state_.load(std::memory_order_relaxed) + 1;
  if (open + 1 == kStop) open = 1;
  state_.store(open);
  // Waking sleepers costs more than they would save in a short run, unless more runs follow.
  if (schedule.estimated_ns() > kWorthWaking || ++short_runs_ % 8 == 0) state_.notify_all();

  participate(0, schedule);

  // A worker announces itself before it looks at state_ again, so either it sees that the run is
  // closed or we see the announcement (all of these are sequentially consistent).
  state_.store(open + 1);
  for (u32 t = 1; t < threads_; ++t)
    for (Backoff backoff(crowded_); slots_[t].inside.load() == open;) backoff.wait();
}

void ThreadPool::worker(u32 me) {
  const FpMode mode(FpMode::Kind::Kernel);
  for (u32 last = 0;;) {
    last = await_run(last);
    if (last == kStop) return;
    slots_[me].inside.store(last);
    if (state_.load() == last) participate(me, *schedule_);
    slots_[me].inside.store(0, std::memory_order_release);
  }
}

// Returns the number of an open run other than `last`, or kStop.
u32 ThreadPool::await_run(u32 last) const {
  const auto wanted = [last](u32 s) { return (s & 1 && s != last) || s == kStop; };
  for (;;) {
    const auto deadline = Clock::now() + (crowded_ ? kIdleSpinCrowded : kIdleSpin);
    do {
      for (int i = 0; i < 64; ++i) {
        const u32 s = state_.load();
        if (wanted(s)) return s;
        pause();
      }
    } while (Clock::now() < deadline);
    const u32 s = state_.load();
    if (!wanted(s)) state_.wait(s);
  }
}

bool ThreadPool::absent(u32 r) const {
  return r != 0 && slots_[r].inside.load(std::memory_order_relaxed) == 0;
}

// Walks through the intervals. The caller (thread 0) returns when everything is complete, a worker
// when there is nothing left that it could claim.
void ThreadPool::participate(u32 me, const Schedule& schedule) {
  const u32 end = me == 0 ? last_ : last_shared_;
  u32 k = first_;
  if (me != 0) {
    // Where one range has got to, all intervals but the one before it are complete.
    for (u32 t = 0; t < threads_; ++t) {
      const u32 number = number_of(slots_[t].claims.load(std::memory_order_acquire));
      if (number > base_ + first_) k = std::max(k, number - base_ - 1);
    }
  }
  bool holding = false;
  while (k < end) {
    const Schedule::Interval& interval = schedule.interval(k);
    const bool more = !crowded_ && k + 1 < end && me < schedule.interval(k + 1).ranges &&
                      schedule.range(schedule.interval(k + 1), me).chunks != 0;
    if (me < interval.ranges)
      holding = drain(me, base_ + k, schedule, schedule.range(interval, me), holding, more);
    k = settle(me, k, schedule);
  }
}

// Claims and runs chunks of range r until none is left; `holding`: the first one is claimed
// already. With `ahead`, completing the range also claims the first chunk that it has in the next
// interval, which saves its thread an access to a cache line that others are looking at. Returns
// whether that happened; the chunk must wait until this interval is complete.
bool ThreadPool::drain(u32 r, u32 number, const Schedule& schedule, Schedule::Range range,
                       bool holding, bool ahead) {
  if (range.chunks == 0) return false;
  std::atomic<u64>& claims = slots_[r].claims;
  u32 chunk = 0;
  if (!holding) {
    u64 c = claims.load(std::memory_order_acquire);
    u64 wanted;
    do {
      if (number_of(c) < number) {
        wanted = pack(number, 1);
      } else if (number_of(c) == number && claimed_of(c) < range.chunks) {
        wanted = c + kOneClaimed;
      } else {
        return false;
      }
    } while (!claims.compare_exchange_weak(c, wanted, std::memory_order_acq_rel,
                                           std::memory_order_acquire));
    chunk = claimed_of(wanted) - 1;
  }
  for (;;) {
    schedule.execute(range.first_chunk + chunk);
    // Reports this chunk and claims the next in one step. The range cannot be completed meanwhile.
    u64 c = claims.load(std::memory_order_relaxed);
    u64 wanted;
    do {
      if (claimed_of(c) < range.chunks) {
        wanted = c + kOneDone + kOneClaimed;
      } else if (ahead && done_of(c) + 1 == range.chunks) {
        wanted = pack(number + 1, 1);
      } else {
        wanted = c + kOneDone;
      }
    } while (!claims.compare_exchange_weak(c, wanted, std::memory_order_acq_rel,
                                           std::memory_order_relaxed));
    if (number_of(wanted) != number) return true;
    chunk = claimed_of(c);
    if (chunk == range.chunks) return false;
  }
}

// Helps with interval k until it is complete (a worker in its last one: until all of it is
// claimed). Returns the interval to go on with, which is a later one where others have gone ahead.
u32 ThreadPool::settle(u32 me, u32 k, const Schedule& schedule) {
  const Schedule::Interval& interval = schedule.interval(k);
  const u32 number = base_ + k;
  const bool may_leave = me != 0 && k + 1 == last_shared_;
  u32 waited = 0;
  Backoff backoff(crowded_);
  const auto patience = [&](bool begun) {
    return crowded_ ? kPatienceCrowded : begun ? kPatienceOnceBegun : kPatience;
  };
  u32 r = me < interval.ranges ? me : 0;
  for (u32 settled = 0; settled < interval.ranges;) {
    const Schedule::Range range = schedule.range(interval, r);
    const u64 c = slots_[r].claims.load(std::memory_order_acquire);
    // A range is two intervals ahead only if the one between is complete.
    if (number_of(c) > number + 1) return k + (number_of(c) - number) - 1;
    const bool begun = number_of(c) == number;
    const bool left = number_of(c) < number || (begun && claimed_of(c) < range.chunks);
    const bool complete = number_of(c) > number || (begun && done_of(c) == range.chunks);
    if (range.chunks == 0 || complete || (!left && may_leave)) {
      ++settled;
      r = r + 1 < interval.ranges ? r + 1 : 0;
    } else if (left && (waited >= patience(begun) || absent(r))) {
      drain(r, number, schedule, range, false, false);
    } else {
      ++waited;
      backoff.wait();
    }
  }
  return k + 1;
}

}  // namespace oa::device
