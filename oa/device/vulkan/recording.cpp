// The planner of submissions and the recorder of command buffers.
#include "oa/device/vulkan/recording.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "oa/codegen/spirv/lower.h"
#include "oa/device/vulkan/queue.h"

namespace oa::device::vulkan {
namespace {

const Pipeline& pipeline_of(const Dispatch& dispatch) {
  return static_cast<const Pipeline&>(*dispatch.kernel);
}

class Planner {
 public:
  Planner(std::span<const Dispatch> dispatches, const SplitLimits& limits)
      : dispatches_(dispatches), limits_(limits) {}

  Plan run() {
    barrier_ = true;  // every list waits for the lists before it
    for (u32 i = 0; i < dispatches_.size(); ++i) add(i);
    close();
    return std::move(plan_);
  }

 private:
  void add(u32 index) {
    const Dispatch& d = dispatches_[index];
    barrier_ = barrier_ || d.barrier;
    if (d.groups == 0) return;
    const f64 flops = std::isfinite(d.flops) ? std::max(d.flops, 0.0) : 0.0;
    const f64 cost = flops / limits_.flops_per_second + limits_.dispatch_seconds;
    if (seconds_ + cost > limits_.seconds) close();
    const u64 ranges = std::clamp<u64>(
        static_cast<u64>(std::min(std::ceil(cost / limits_.seconds), 1e9)), 1, d.groups);
    const u32 per_range = static_cast<u32>((d.groups + ranges - 1) / ranges);
    for (u32 base = 0; base < d.groups; base += std::min(per_range, d.groups - base)) {
      if (base > 0) close();
      const u32 count = std::min(per_range, d.groups - base);
      add_range(index, base, count);
      seconds_ += cost * count / d.groups;
    }
  }

  void add_range(u32 index, u32 base, u32 count) {
    while (count > 0) {
      Piece piece{.dispatch = index, .base = base, .barrier = std::exchange(barrier_, false)};
      piece.count = std::min(count, limits_.groups);
      plan_.pieces.push_back(piece);
      base += piece.count;
      count -= piece.count;
    }
  }

  void close() {
    const u32 count = static_cast<u32>(plan_.pieces.size()) - first_;
    if (count > 0) plan_.parts.push_back({first_, count});
    first_ += count;
    seconds_ = 0;
  }

  std::span<const Dispatch> dispatches_;
  const SplitLimits& limits_;
  Plan plan_;
  u32 first_ = 0;
  f64 seconds_ = 0;
  bool barrier_ = false;
};

}  // namespace

Plan plan_submission(std::span<const Dispatch> dispatches, const SplitLimits& limits) {
  return Planner(dispatches, limits).run();
}

void check_list(const Context& context, const CommandList& list, const char* op) {
  for (size_t i = 0; i < list.dispatches.size(); ++i) {
    const Dispatch& d = list.dispatches[i];
    const auto* pipeline = dynamic_cast<const Pipeline*>(d.kernel);
    if (pipeline == nullptr || pipeline->context() != &context) {
      invalid(op, "dispatch {} has {}, expected a kernel compiled by this device", i,
              d.kernel == nullptr ? "no kernel" : "a kernel of another device");
    }
    if (d.arg_count != pipeline->params()) {
      invalid(op,
              "dispatch {} of kernel '{}' has the wrong number of arguments, got {}, expected {}",
              i, pipeline->name(), d.arg_count, pipeline->params());
    }
    if (d.first_arg > list.args.size() || d.arg_count > list.args.size() - d.first_arg) {
      invalid(op, "dispatch {} of kernel '{}' reads arguments {} to {}, expected at most {}", i,
              pipeline->name(), d.first_arg, u64{d.first_arg} + d.arg_count, list.args.size());
    }
  }
}

u64 place_arguments(const CommandList& list, u32 push_bytes, Plan& plan) {
  u64 bytes = 0;
  for (size_t i = 0; i < plan.pieces.size(); ++i) {
    Piece& piece = plan.pieces[i];
    const u32 count = list.dispatches[piece.dispatch].arg_count;
    if (!codegen::spirv::push_constants(count, push_bytes).in_block) continue;
    if (i > 0 && plan.pieces[i - 1].dispatch == piece.dispatch) {
      piece.block = plan.pieces[i - 1].block;
      continue;
    }
    piece.block = bytes;
    bytes += count * sizeof(u64);
  }
  return bytes;
}

void write_arguments(const CommandList& list, const Plan& plan, void* block) {
  for (const Piece& piece : plan.pieces) {
    if (piece.block == Piece::kNoBlock) continue;
    const Dispatch& d = list.dispatches[piece.dispatch];
    std::memcpy(static_cast<u8*>(block) + piece.block, list.args.data() + d.first_arg,
                d.arg_count * sizeof(u64));
  }
}

void record_part(const Recording& recording, const Part& part, VkCommandBuffer buffer) {
  Context& context = recording.context;
  const VolkDeviceTable& api = context.api;
  VkPipeline bound = VK_NULL_HANDLE;
  if (recording.timestamps != nullptr) recording.timestamps->start(buffer);
  for (u32 i = part.first; i < part.first + part.count; ++i) {
    const Piece& piece = recording.plan.pieces[i];
    const Dispatch& d = recording.list.dispatches[piece.dispatch];
    const Pipeline& pipeline = pipeline_of(d);
    if (piece.barrier) barrier_between_kernels(context, buffer);
    if (pipeline.handle() != bound) {
      bound = pipeline.handle();
      api.vkCmdBindPipeline(buffer, VK_PIPELINE_BIND_POINT_COMPUTE, bound);
    }
    std::array<u8, 256> push;
    std::memcpy(push.data(), &d.groups, sizeof(u32));
    std::memcpy(push.data() + 4, &piece.base, sizeof(u32));
    u32 bytes = 8;
    if (piece.block == Piece::kNoBlock) {
      std::memcpy(push.data() + bytes, recording.list.args.data() + d.first_arg,
                  d.arg_count * sizeof(u64));
      bytes += d.arg_count * sizeof(u64);
    } else {
      const u64 address = recording.block_address + piece.block;
      std::memcpy(push.data() + bytes, &address, sizeof address);
      bytes += sizeof address;
    }
    api.vkCmdPushConstants(buffer, context.layout(), VK_SHADER_STAGE_COMPUTE_BIT, 0, bytes,
                           push.data());
    api.vkCmdDispatch(buffer, piece.count, 1, 1);
    if (recording.timestamps != nullptr) recording.timestamps->stop(buffer, piece.dispatch);
  }
}

std::vector<Label> last_kernels(const CommandList& list, const Plan& plan, const Part& part) {
  constexpr size_t kMost = 4;
  std::vector<Label> labels;
  for (u32 i = part.first + part.count; i-- > part.first && labels.size() < kMost;) {
    const Label& label = pipeline_of(list.dispatches[plan.pieces[i].dispatch]).label();
    if (labels.empty() || labels.back() != label) labels.push_back(label);
  }
  std::reverse(labels.begin(), labels.end());
  return labels;
}

}  // namespace oa::device::vulkan
