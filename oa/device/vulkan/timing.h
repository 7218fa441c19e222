// Durations of dispatches from timestamp queries.
#pragma once

#include <deque>
#include <map>
#include <vector>

#include "oa/device/vulkan/context.h"

namespace oa::device::vulkan {

// Timestamps of one timed submission, taken before and after every dispatched piece.
class Timestamps {
 public:
  // Room for `count` timestamps that belong to `dispatches` dispatches.
  Timestamps(Context& context, u32 count, size_t dispatches);
  ~Timestamps();
  Timestamps(const Timestamps&) = delete;
  Timestamps& operator=(const Timestamps&) = delete;

  void reset(VkCommandBuffer buffer);
  void start(VkCommandBuffer buffer);               // at the begin of a command buffer
  void stop(VkCommandBuffer buffer, u32 dispatch);  // after each piece of a dispatch
  // Seconds per dispatch, once the submission is complete.
  std::vector<f64> durations() const;

 private:
  struct Interval {
    u32 first_query;
    u32 dispatch;
  };
  void write(VkCommandBuffer buffer);

  Context& context_;
  VkQueryPool pool_ = VK_NULL_HANDLE;
  u32 count_;
  u32 used_ = 0;
  size_t dispatches_;
  std::vector<Interval> intervals_;
};

}  // namespace oa::device::vulkan
