// Threads that run a whole schedule of dispatches as one job, with the caller among them.
//
// There is no barrier that every thread must reach. Each range of an interval is claimed chunk by
// chunk, by its own thread first and by any thread that has nothing left; an interval is complete
// when the chunks of all its ranges are, and whoever sees that goes on. So a thread that wakes up
// late, or loses its core to another process, delays nothing but the chunk it holds.
//
// A run takes no lock and allocates nothing. Waiting threads spin, then sleep.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "oa/core/types.h"
#include "oa/device/cpu/fp_mode.h"
#include "oa/device/cpu/host.h"
#include "oa/device/cpu/schedule.h"

namespace oa::device {

class ThreadPool {
 public:
  static constexpr u32 kMaxThreads = 1024;

  // `threads` counts the caller. Throws ResourceExhausted if the system refuses a thread. Intervals
  // are numbered from `first_number` on; tests start close to the end of the numbers.
  explicit ThreadPool(u32 threads, u32 first_number = 1);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  u32 threads() const { return threads_; }

  // Runs a schedule that was built for threads() threads; returns when all of it is done. One run
  // at a time. `seconds`, if given, gets the time of each interval.
  void run(const Schedule& schedule, f64* seconds = nullptr);

  // Calls f(0) .. f(count - 1), each once, on all threads; for work of a millisecond or more per
  // call. f must not throw.
  template <class F>
  void for_each(u32 count, const F& f);

 private:
  // What thread r and those who help it write. `claims` holds the number of the interval, the
  // chunks claimed and the chunks completed of range r.
  struct alignas(128) Slot {
    std::atomic<u64> claims{0};
    std::atomic<u32> inside{0};  // the run this thread works on, or 0
  };

  void worker(u32 me);
  u32 await_run(u32 last) const;
  void run_intervals(const Schedule& schedule, u32 first, u32 last);
  void participate(u32 me, const Schedule& schedule);
  bool drain(u32 r, u32 number, const Schedule& schedule, Schedule::Range range, bool holding,
             bool ahead);
  u32 settle(u32 me, u32 k, const Schedule& schedule);
  bool absent(u32 r) const;
  void choose_cores(const std::vector<Core>& cores);
  void make_room();

  u32 threads_;
  bool crowded_ = false;  // more threads than cores: give up the core early while waiting
  std::unique_ptr<Slot[]> slots_;
  std::vector<std::thread> workers_;
  // Where the threads are pinned, if they are: [t] is the core of thread t, [0] the one kept free
  // for the caller.
  std::vector<u32> cores_;
  std::vector<u32> core_of_;  // of a processor

  // Odd: the run of this number is open to the workers. Even: closed.
  alignas(128) std::atomic<u32> state_{0};
  // Of the open run; written before state_ is.
  const Schedule* schedule_ = nullptr;
  u32 first_ = 0;  // its intervals are first_ .. last_-1
  u32 last_ = 0;
  u32 last_shared_ = 0;  // the last of them for workers, plus 1
  u32 base_ = 0;         // interval k has the number base_ + k

  u32 next_number_;  // of the next run's first interval
  u32 short_runs_ = 0;
  Schedule for_each_schedule_;
};

template <class F>
void ThreadPool::for_each(u32 count, const F& f) {
  static_assert(std::is_invocable_v<const F&, u32>);
  const auto call = [](const u64* params, u32 first, u32 last, u32) {
    const FpMode mode(FpMode::Kind::Default);
    const F& function = *reinterpret_cast<const F*>(params);
    for (u32 i = first; i < last; ++i) function(i);
  };
  const Work work{call, reinterpret_cast<const u64*>(&f), count, 1e6f, false};
  for_each_schedule_.build({&work, 1}, threads_);
  run(for_each_schedule_);
}

}  // namespace oa::device
