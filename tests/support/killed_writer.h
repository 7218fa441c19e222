// A child process that saves in a loop and is killed at a random moment.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace oa {

// Runs `save(0)`, `save(1)`, ... in a child until it is killed, `delay` microseconds after the end
// of its first save. The child runs nothing else and leaves only by the signal.
inline void run_and_kill(const std::function<void(unsigned)>& save, unsigned delay) {
  int started[2];
  ASSERT_EQ(::pipe(started), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (unsigned i = 0;; ++i) {
      try {
        save(i);
      } catch (...) {
        ::_exit(1);
      }
      if (i == 0 && ::write(started[1], "", 1) != 1) ::_exit(2);
    }
  }
  ::close(started[1]);
  char byte;
  const bool alive = ::read(started[0], &byte, 1) == 1;
  ::close(started[0]);
  ::usleep(delay);
  ::kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(alive && WIFSIGNALED(status)) << "the writer failed by itself";
}

}  // namespace oa
