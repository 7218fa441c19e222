// Chooses kernels by measuring them on the device.
#pragma once

#include <string>
#include <utility>

#include "oa/device/device.h"
#include "oa/graph/plan.h"

namespace oa::graph {

// Runs candidates on memory of their own, filled with zeros, a few times each.
class DeviceTrials final : public KernelTrials {
 public:
  DeviceTrials(const Graph& graph, device::Device& device) : graph_(graph), device_(device) {}

  u32 fastest(const Hash128& key, std::span<const Temp> temps,
              std::span<const std::function<Launch()>> candidates) override;

  u32 made() const { return made_; }          // questions answered by measuring
  u32 recalled() const { return recalled_; }  // and by what was measured before

  // What the last question was answered by, for people; empty if there was none since this was
  // asked last.
  std::string take_answer() { return std::exchange(answer_, {}); }

 private:
  const Graph& graph_;
  device::Device& device_;
  u32 made_ = 0, recalled_ = 0;
  std::string answer_;
};

}  // namespace oa::graph
