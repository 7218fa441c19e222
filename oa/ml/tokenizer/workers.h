// Loops over the parts of a text on several threads, whose bodies may throw.
#pragma once

#include <functional>
#include <memory>

#include "oa/core/types.h"

namespace oa::device {
class ThreadPool;
}

namespace oa::ml::tokenizer {

class Workers {
 public:
  // 0: as many as engines use, see OA_THREADS. A loop runs inside the call where that is 1.
  explicit Workers(u32 threads);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  u32 threads() const { return threads_; }

  // f(0) .. f(count - 1), each once, in any order. Rethrows one of the exceptions of f.
  void for_each(u32 count, const std::function<void(u32)>& f);

 private:
  u32 threads_;
  std::unique_ptr<device::ThreadPool> pool_;  // made at the first loop of several parts
};

}  // namespace oa::ml::tokenizer
