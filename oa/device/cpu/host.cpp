// Linux only: the scheduler's affinity mask, /proc and control groups (version 2).
#include "oa/device/cpu/host.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <thread>

#include "oa/core/error.h"
#include "oa/device/cpu/thread_pool.h"

namespace oa::device {

namespace {

std::vector<u32> affinity() {
  std::vector<u32> numbers;
  for (size_t limit = 1024; limit <= (size_t{1} << 20); limit *= 4) {
    const size_t bytes = CPU_ALLOC_SIZE(limit);
    std::vector<unsigned long> mask(bytes / sizeof(unsigned long));
    cpu_set_t* set = reinterpret_cast<cpu_set_t*>(mask.data());
    if (::sched_getaffinity(0, bytes, set) != 0) continue;  // the machine has more cores
    for (u32 i = 0; i < limit; ++i)
      if (CPU_ISSET_S(i, bytes, set)) numbers.push_back(i);
    return numbers;
  }
  for (u32 i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) numbers.push_back(i);
  return numbers;
}

}  // namespace

std::vector<Core> usable_cores() {
  std::vector<Core> cores;
  std::map<u32, u32> home_of;  // by the first number of the list of siblings
  for (u32 number : affinity()) {
    std::ifstream in(
        fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", number));
    u32 first = 0;
    if (!(in >> first)) first = number;
    cores.push_back({number, home_of.try_emplace(first, number).first->second});
  }
  return cores;
}

std::vector<u32> homes(const std::vector<Core>& cores) {
  std::vector<u32> found;
  for (const Core& c : cores)
    if (c.home == c.number) found.push_back(c.number);
  return found;
}

namespace {

// The first two words of a control file of the process's group, as a container sees it.
std::pair<std::string, std::string> control(const char* file) {
  std::ifstream in(std::string("/sys/fs/cgroup/") + file);
  std::pair<std::string, std::string> words;
  in >> words.first >> words.second;
  return words;
}

u32 granted_cores() {
  const u32 cores = static_cast<u32>(homes(usable_cores()).size());
  const auto [quota, period] = control("cpu.max");
  const f64 q = std::atof(quota.c_str()), p = std::atof(period.c_str());  // 0 for "max"
  if (q <= 0 || p <= 0) return cores;
  return std::min(cores, static_cast<u32>(std::max(1.0, q / p + 0.5)));
}

}  // namespace

u32 thread_count(u32 requested) {
  if (requested > ThreadPool::kMaxThreads)
    invalid("open_cpu", "too many threads, got {}, expected at most {}", requested,
            ThreadPool::kMaxThreads);
  if (requested != 0) return requested;
  if (const char* text = std::getenv("OA_THREADS"); text && *text) {
    u32 n = 0;
    const char* end = text + std::strlen(text);
    const auto [stop, error] = std::from_chars(text, end, n);
    if (error != std::errc() || stop != end || n == 0 || n > ThreadPool::kMaxThreads)
      invalid("open_cpu", "OA_THREADS is no thread count, got '{}', expected 1 to {}", text,
              ThreadPool::kMaxThreads);
    return n;
  }
  return std::min(granted_cores(), ThreadPool::kMaxThreads);
}

u64 memory_limit() {
  const u64 pages = static_cast<u64>(std::max(0L, ::sysconf(_SC_PHYS_PAGES)));
  const u64 physical = pages * static_cast<u64>(std::max(0L, ::sysconf(_SC_PAGESIZE)));
  const u64 group = std::strtoull(control("memory.max").first.c_str(), nullptr, 10);  // 0 for "max"
  return group == 0 ? physical : std::min(physical, group);
}

std::string cpu_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t at = line.find(": ");
    if (at != std::string::npos) return line.substr(at + 2);
  }
  return "CPU";
}

}  // namespace oa::device
