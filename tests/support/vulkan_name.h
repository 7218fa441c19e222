// The Vulkan device that tests run on: the software driver, or the one that OA_TEST_VULKAN names.
#pragma once

#include <cstdlib>
#include <string>

namespace oa::test {

// Tests are named "cpu" and "lavapipe"; the second stands for the Vulkan device under test.
inline std::string device_under_test(const std::string& name) {
  if (name != "lavapipe") return name;
  const char* env = std::getenv("OA_TEST_VULKAN");
  return env ? env : name;
}

}  // namespace oa::test
