// Query pools and the arithmetic of their ticks.
#include "oa/device/vulkan/timing.h"

namespace oa::device::vulkan {

Timestamps::Timestamps(Context& context, u32 count, size_t dispatches)
    : context_(context), count_(count), dispatches_(dispatches) {
  const VkQueryPoolCreateInfo info{.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                   .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                   .queryCount = count};
  context_.check(context_.api.vkCreateQueryPool(context_.device(), &info, nullptr, &pool_),
                 "vulkan::submit");
}

Timestamps::~Timestamps() { context_.api.vkDestroyQueryPool(context_.device(), pool_, nullptr); }

void Timestamps::reset(VkCommandBuffer buffer) {
  context_.api.vkCmdResetQueryPool(buffer, pool_, 0, count_);
}

void Timestamps::write(VkCommandBuffer buffer) {
  OA_CHECK(used_ < count_);
  context_.api.vkCmdWriteTimestamp2(buffer, VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT, pool_, used_++);
}

void Timestamps::start(VkCommandBuffer buffer) { write(buffer); }

void Timestamps::stop(VkCommandBuffer buffer, u32 dispatch) {
  intervals_.push_back({used_ - 1, dispatch});
  write(buffer);
}

std::vector<f64> Timestamps::durations() const {
  std::vector<u64> ticks(used_);
  context_.check(context_.api.vkGetQueryPoolResults(
                     context_.device(), pool_, 0, used_, ticks.size() * sizeof(u64), ticks.data(),
                     sizeof(u64), VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT),
                 "vulkan::durations");
  const u32 bits = context_.physical().timestamp_bits;
  const u64 mask = bits >= 64 ? ~u64{0} : (u64{1} << bits) - 1;  // counters may wrap
  std::vector<f64> seconds(dispatches_, 0.0);
  for (const Interval& i : intervals_) {
    const u64 passed = (ticks[i.first_query + 1] - ticks[i.first_query]) & mask;
    seconds[i.dispatch] += static_cast<f64>(passed) * context_.physical().timestamp_seconds;
  }
  return seconds;
}

}  // namespace oa::device::vulkan
