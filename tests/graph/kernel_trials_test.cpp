// Kernels chosen by measuring: which one wins, what is remembered, and what must not go wrong.
#include "oa/graph/kernel_trials.h"

#include <gtest/gtest.h>

#include <map>

#include "oa/kernel/lang.h"
#include "tests/support/interpreter_device.h"

namespace oa::graph {
namespace {

struct NoValues final : Recorder {
  Graph& graph() override { return *held; }
  void check_open(std::string_view) override {}
  Graph* held = nullptr;
};

// Says that a dispatch takes as many seconds as it has workgroups, and keeps facts in memory.
class TimedDevice : public test::InterpreterDevice {
 public:
  TimedDevice() : InterpreterDevice(test::gpu_target()) {}
  device::Ticket submit(const device::CommandList& list, bool timed) override {
    EXPECT_TRUE(timed);
    seconds_.clear();
    for (const device::Dispatch& d : list.dispatches) seconds_.push_back(d.groups);
    ++submissions;
    return InterpreterDevice::submit(list, timed);
  }
  std::vector<f64> durations(device::Ticket) override { return seconds_; }
  std::optional<std::vector<u8>> recall(const Hash128& key) override {
    const auto it = facts.find(key);
    return it == facts.end() ? std::nullopt : std::optional(it->second);
  }
  void remember(const Hash128& key, std::span<const u8> fact) override {
    facts[key] = {fact.begin(), fact.end()};
  }

  std::map<Hash128, std::vector<u8>> facts;
  u32 submissions = 0;

 private:
  std::vector<f64> seconds_;
};

class KernelTrialsTest : public testing::Test {
 protected:
  KernelTrialsTest() { recorder_->held = &graph_; }

  // Adds 1 to the first word of a temporary; takes as long as it has workgroups.
  Launch launch(u32 groups) const {
    Launch l;
    l.groups = groups;
    l.args = {ArgRef::temporary(0, true), ArgRef::number(1)};
    l.kernel = kernel::trace("candidate", device_.target(), 32, [] {
      const kernel::Buffer x = kernel::param_buffer(kernel::Scalar::U32);
      const kernel::U32 one = kernel::param_u32();
      kernel::If(kernel::group() + kernel::lane() == kernel::U32(0),
                 [&] { x[0] = kernel::U32(x[0].load()) + one; });
    });
    return l;
  }
  std::vector<std::function<Launch()>> candidates(std::initializer_list<u32> seconds) {
    std::vector<std::function<Launch()>> list;
    for (u32 s : seconds) {
      list.emplace_back([this, s] {
        if (s == 0) fail(ErrorKind::BackendFailure, "test", "refused");
        return launch(s);
      });
    }
    return list;
  }

  const Ref<NoValues> recorder_{new NoValues};
  Graph graph_{*recorder_};
  TimedDevice device_;
  const Hash128 key_ = hash_bytes("key", 3);
  const std::vector<Temp> temps_ = {{64}};
};

TEST_F(KernelTrialsTest, TheFastestWinsAndIsRemembered) {
  DeviceTrials trials(graph_, device_);
  EXPECT_EQ(trials.fastest(key_, temps_, candidates({5, 2, 7})), 1u);
  EXPECT_EQ(trials.made(), 1u);
  EXPECT_EQ(device_.memory_report().allocated_bytes, 0u);
  const u32 before = device_.submissions;
  DeviceTrials later(graph_, device_);
  EXPECT_EQ(later.fastest(key_, temps_, candidates({1, 2, 7})), 1u);
  EXPECT_EQ(device_.submissions, before);
  EXPECT_EQ(later.made(), 0u);
  EXPECT_EQ(later.recalled(), 1u);
  EXPECT_EQ(later.fastest(hash_bytes("other", 5), temps_, candidates({1, 2, 7})), 0u);
}

TEST_F(KernelTrialsTest, ARefusedCandidateIsPassedOver) {
  DeviceTrials trials(graph_, device_);
  EXPECT_EQ(trials.fastest(key_, temps_, candidates({0, 9, 4})), 2u);
  EXPECT_EQ(device_.memory_report().allocated_bytes, 0u);
}

TEST_F(KernelTrialsTest, NothingIsRememberedWhereNoneRan) {
  DeviceTrials trials(graph_, device_);
  EXPECT_EQ(trials.fastest(key_, temps_, candidates({0, 0})), 0u);
  EXPECT_TRUE(device_.facts.empty());
  EXPECT_EQ(trials.made(), 0u);
}

TEST_F(KernelTrialsTest, AForeignFactIsNotBelieved) {
  for (const std::vector<u8>& fact : {std::vector<u8>{3}, {}, {0, 0}}) {
    device_.facts[key_] = fact;
    DeviceTrials trials(graph_, device_);
    EXPECT_EQ(trials.fastest(key_, temps_, candidates({5, 2, 7})), 1u);
    EXPECT_EQ(trials.made(), 1u);
  }
}

}  // namespace
}  // namespace oa::graph
