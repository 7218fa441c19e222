#include "oa/graph/kernel_trials.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "oa/core/error.h"

namespace oa::graph {
namespace {

constexpr u32 kRuns = 4;  // the first warms up
constexpr u64 kMostBytes = u64{4} << 30;

// Memory for the arguments of one launch, given back at the end.
class Arguments {
 public:
  Arguments(const Graph& graph, device::Device& device, const Launch& launch,
            std::span<const Temp> temps)
      : device_(device) {
    for (const ArgRef& a : launch.args) {
      switch (a.kind) {
        case ArgRef::Kind::Value: {
          const Spec& spec = graph.spec(a.operand);
          add(static_cast<u64>(spec.shape.elements()) * size_bytes(spec.dtype));
          break;
        }
        case ArgRef::Kind::Temp: add(temps[a.temp].bytes); break;
        case ArgRef::Kind::Status: add(256); break;
        case ArgRef::Kind::Scalar:
        case ArgRef::Kind::CheckBase: values_.push_back(0); break;
        case ArgRef::Kind::Immediate: values_.push_back(a.immediate); break;
      }
    }
  }
  ~Arguments() {
    for (const device::Memory& m : memory_) device_.release(m);
  }
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  const std::vector<u64>& values() const { return values_; }

 private:
  void add(u64 bytes) {
    bytes = std::max<u64>(bytes, 4);
    total_ += bytes;
    if (total_ > kMostBytes) fail(ErrorKind::ResourceExhausted, "trial", "too much memory");
    memory_.push_back(device_.allocate(bytes));
    const std::vector<u8> zeros(bytes);
    device_.write(memory_.back(), 0, zeros.data(), bytes);
    values_.push_back(memory_.back().address);
  }

  device::Device& device_;
  std::vector<device::Memory> memory_;
  std::vector<u64> values_;
  u64 total_ = 0;
};

f64 seconds_of(const Graph& graph, device::Device& device, const Launch& launch,
               std::span<const Temp> temps) {
  const kernel::Kernel* one[] = {&launch.kernel};
  const auto executable = device.compile(one)[0];
  const Arguments arguments(graph, device, launch, temps);
  device::CommandList list;
  list.args = arguments.values();
  for (u32 i = 0; i < kRuns; ++i) {
    list.dispatches.push_back({.kernel = executable.get(),
                               .groups = launch.groups,
                               .arg_count = static_cast<u32>(list.args.size()),
                               .barrier = true,
                               .flops = launch.flops});
  }
  const std::vector<f64> seconds = device.durations(device.submit(list, true));
  if (seconds.size() != kRuns) return std::numeric_limits<f64>::infinity();
  return *std::min_element(seconds.begin() + 1, seconds.end());
}

// What is remembered of a question: which candidate won, and the time of each.
struct Answer {
  u32 best = 0;
  std::vector<f32> seconds;  // infinity where a candidate could not run

  std::vector<u8> bytes() const {
    std::vector<u8> b(1 + 4 * seconds.size());
    b[0] = static_cast<u8>(best);
    std::memcpy(b.data() + 1, seconds.data(), 4 * seconds.size());
    return b;
  }
  // Of a fact without times only the winner is known.
  static std::optional<Answer> read(std::span<const u8> b, size_t candidates) {
    if (b.empty() || b[0] >= candidates) return std::nullopt;
    Answer a{.best = b[0]};
    if (b.size() == 1) return a;
    if (b.size() != 1 + 4 * candidates) return std::nullopt;
    a.seconds.resize(candidates);
    std::memcpy(a.seconds.data(), b.data() + 1, 4 * candidates);
    return a;
  }
  std::string tell() const {
    if (seconds.empty()) return {};
    std::string others;
    for (u32 i = 0; i < seconds.size(); ++i) {
      if (i == best) continue;
      others += std::isinf(seconds[i]) ? " failed" : fmt::format(" {:.1f}", 1e6 * seconds[i]);
    }
    return fmt::format("the fastest of {} tried: {:.1f} us, the others{}", seconds.size(),
                       1e6 * seconds[best], others);
  }
};

}  // namespace

u32 DeviceTrials::fastest(const Hash128& key, std::span<const Temp> temps,
                          std::span<const std::function<Launch()>> candidates) {
  if (const auto fact = device_.recall(key)) {
    if (const auto known = Answer::read(*fact, candidates.size())) {
      ++recalled_;
      answer_ = known->tell();
      return known->best;
    }
  }
  Answer answer;
  u32& best = answer.best;
  f64 shortest = std::numeric_limits<f64>::infinity();
  for (u32 i = 0; i < candidates.size(); ++i) {
    answer.seconds.push_back(std::numeric_limits<f32>::infinity());
    try {
      Launch candidate = candidates[i]();
      candidate.pass_extents();
      const f64 seconds = seconds_of(graph_, device_, candidate, temps);
      answer.seconds.back() = static_cast<f32>(seconds);
      if (seconds < shortest) {
        shortest = seconds;
        best = i;
      }
    } catch (const Error&) {
      // Without memory, or refused by the driver: the others are left. A lost device fails again.
    }
  }
  if (shortest < std::numeric_limits<f64>::infinity()) {
    ++made_;
    device_.remember(key, answer.bytes());
    answer_ = answer.tell();
  }
  return best;
}

}  // namespace oa::graph
