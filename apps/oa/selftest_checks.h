// What `oa selftest` checks on a device: small computations against the same in f64 on the host.
#pragma once

#include <span>
#include <string>

#include "oa/engine/engine.h"

namespace oa::command {

struct Check {
  const char* name;
  // What is wrong; empty if all is well. May throw oa::Error.
  std::string (*run)(Engine& engine);
};

std::span<const Check> selftest_checks();

}  // namespace oa::command
