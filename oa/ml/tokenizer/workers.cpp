// The pool of threads that the CPU device uses, with exceptions carried over.
#include "oa/ml/tokenizer/workers.h"

#include <atomic>
#include <exception>

#include "oa/device/cpu/host.h"
#include "oa/device/cpu/thread_pool.h"

namespace oa::ml::tokenizer {

Workers::Workers(u32 threads) : threads_(device::thread_count(threads)) {}
Workers::~Workers() = default;

void Workers::for_each(u32 count, const std::function<void(u32)>& f) {
  if (threads_ == 1 || count < 2) {
    for (u32 i = 0; i < count; ++i) f(i);
    return;
  }
  if (!pool_) pool_ = std::make_unique<device::ThreadPool>(threads_);
  std::atomic_flag failed;
  std::exception_ptr error;
  pool_->for_each(count, [&](u32 i) {
    try {
      f(i);
    } catch (...) {
      if (!failed.test_and_set()) error = std::current_exception();
    }
  });
  if (error) std::rethrow_exception(error);
}

}  // namespace oa::ml::tokenizer
