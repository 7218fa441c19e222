#include "oa/engine/limits.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "oa/engine/engine_core.h"
#include "oa/kernel/lang.h"
#include "oa/kernel/simplify.h"

namespace oa {
namespace {

using device::CommandList;
using device::Device;

constexpr int kRounds = 4;
constexpr u32 kMostDispatches = 64;  // of one list: on a busy machine each may wait for a thread
constexpr f64 kLeastSeconds = 2e-3;  // of one timed list

f64 now() {
  return std::chrono::duration<f64>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Block {
 public:
  Block(Device& d, u64 bytes) : device_(d), memory_(d.allocate(bytes)) {
    const std::vector<u8> zeros(std::min<u64>(bytes, 1 << 20));
    for (u64 at = 0; at < bytes; at += zeros.size()) {
      device_.write(memory_, at, zeros.data(), std::min<u64>(zeros.size(), bytes - at));
    }
  }
  ~Block() { device_.release(memory_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  u64 address() const { return memory_.address; }

 private:
  Device& device_;
  device::Memory memory_;
};

class Meter {
 public:
  explicit Meter(Device& d) : device_(d), target_(d.target()) {}

  // Best seconds of one of `count` equal dispatches that wait for each other.
  f64 best_of(const std::shared_ptr<device::Executable>& kernel, u32 groups,
              const std::vector<u64>& args, u32 count) {
    CommandList list;
    list.args = args;
    for (u32 i = 0; i < count; ++i) {
      list.dispatches.push_back({.kernel = kernel.get(),
                                 .groups = groups,
                                 .arg_count = static_cast<u32>(args.size()),
                                 .barrier = i > 0});
    }
    const std::unique_ptr<device::Recorded> recorded = device_.record(list);
    device_.wait(device_.submit(*recorded));
    f64 best = 1e300;
    for (int round = 0; round < kRounds; ++round) {
      const f64 start = now();
      device_.wait(device_.submit(*recorded));
      best = std::min(best, now() - start);
    }
    return best / count;
  }

  // The same with as many dispatches as make a list long enough for the clock and for what a
  // submission costs.
  f64 seconds(const std::shared_ptr<device::Executable>& kernel, u32 groups,
              const std::vector<u64>& args) {
    const f64 one = best_of(kernel, groups, args, 1);
    const f64 wanted = std::clamp<f64>(kLeastSeconds / std::max(one, 1e-7), 1, kMostDispatches);
    return std::min(one, best_of(kernel, groups, args, static_cast<u32>(wanted)));
  }

  std::shared_ptr<device::Executable> compile(const kernel::Kernel& traced) {
    const kernel::Kernel k = kernel::simplify(traced);
    const kernel::Kernel* list[] = {&k};
    return device_.compile(list)[0];
  }

  f64 flops() {
    // Enough independent sums to hide the latency of a multiply-add, and few enough for registers.
    const u32 width = target_.width;
    u32 chains = 8;
    if (target_.is_cpu()) {
      const u32 vectors = std::max(1u, width * 4 / target_.vector_bytes);
      chains = std::clamp((target_.vector_registers - 4) / vectors, 2u, 12u);
    }
    const auto kernel = compile(kernel::trace("measure_fma", target_, width, [&] {
      const kernel::Buffer out = kernel::param_buffer(kernel::Scalar::F32);
      const kernel::U32 turns = kernel::param_u32();
      const kernel::F32 factor = kernel::param_f32(), term = kernel::param_f32();
      std::vector<kernel::VarValue> sums;
      for (u32 i = 0; i < chains; ++i) {
        sums.emplace_back(kernel::literal(kernel::Scalar::F32, i) +
                          kernel::cast(kernel::lane(), kernel::Scalar::F32));
      }
      kernel::For(kernel::U32(0), turns, kernel::U32(1), [&](const kernel::U32&) {
        for (kernel::VarValue& s : sums) s.set(kernel::fma(s.get(), factor, term));
      });
      kernel::Value total = sums[0].get();
      for (u32 i = 1; i < chains; ++i) total = total + sums[i].get();
      out.store(kernel::group() * kernel::U32(width) + kernel::lane(), total);
    }));
    const u32 groups = target_.is_cpu() ? 4 * target_.threads : 16 * target_.threads;
    const u64 turns = target_.is_cpu() ? 100'000 : 4'000;
    const Block out(device_, u64{groups} * width * 4);
    const std::vector<u64> args = {out.address(), turns, bits(0.999F), bits(1e-3F)};
    const f64 work = 2.0 * chains * width * static_cast<f64>(turns) * groups;
    return work / seconds(kernel, groups, args);
  }

  // A subgroup sums products of fragments that stay in its registers.
  f64 matrix_flops(kernel::Scalar narrow) {
    constexpr u32 kSide = 16, kChains = 8;
    const u32 width = target_.width;
    const auto kernel = compile(kernel::trace("measure_fragments", target_, width, [&] {
      const kernel::Buffer out = kernel::param_buffer(kernel::Scalar::F32);
      const kernel::U32 turns = kernel::param_u32();
      const auto type = [](kernel::FragUse use, kernel::Scalar s) {
        return kernel::fragment_type(use, s, kSide, kSide);
      };
      const auto filled = [&](kernel::FragUse use) {
        return kernel::frag_fill(type(use, narrow), kernel::constant(kernel::Scalar::F32, 0x1p-8));
      };
      const kernel::Value a = filled(kernel::FragUse::A), b = filled(kernel::FragUse::B);
      std::vector<kernel::VarValue> sums;
      for (u32 i = 0; i < kChains; ++i) {
        sums.emplace_back(kernel::frag_fill(type(kernel::FragUse::C, kernel::Scalar::F32),
                                            kernel::constant(kernel::Scalar::F32, i)));
      }
      kernel::For(kernel::U32(0), turns, kernel::U32(1), [&](const kernel::U32&) {
        for (kernel::VarValue& s : sums) s.set(kernel::frag_mul_add(a, b, s.get()));
      });
      kernel::Value total = sums[0].get();
      for (u32 i = 1; i < kChains; ++i) total = kernel::frag_add(total, sums[i].get());
      const kernel::U32 subgroup = kernel::group() * kernel::U32(width / kernel::subgroup_width()) +
                                   kernel::lane() / kernel::U32(kernel::subgroup_width());
      kernel::frag_store(out, subgroup * kernel::U32(kSide * kSide), kernel::U32(kSide),
                         kernel::Layout::RowMajor, total);
    }));
    const u32 subgroups = std::max(1u, width / target_.subgroup), groups = 4 * target_.threads;
    constexpr u64 kTurns = 512;
    const Block out(device_, u64{groups} * subgroups * kSide * kSide * 4);
    const f64 work = 2.0 * kSide * kSide * kSide * kChains * kTurns * subgroups * groups;
    return work / seconds(kernel, groups, {out.address(), kTurns});
  }

  std::vector<MachineLimits::Bandwidth> copies() {
    constexpr u32 kPack = 4;
    const auto kernel = compile(kernel::trace("measure_copy", target_, target_.width, [&] {
      const kernel::Buffer from = kernel::param_buffer(kernel::Scalar::F32);
      const kernel::Buffer to = kernel::param_buffer(kernel::Scalar::F32);
      const kernel::U32 per_group = kernel::param_u32();  // packs
      const kernel::U32 begin = kernel::group() * per_group;
      kernel::For(begin + kernel::lane(), begin + per_group, kernel::U32(kernel::width()),
                  [&](const kernel::U32& i) {
                    to.store(i * kernel::U32(kPack), from.load(i * kernel::U32(kPack), kPack));
                  });
    }));
    std::vector<MachineLimits::Bandwidth> list;
    const u64 largest = target_.is_cpu() ? u64{128} << 20 : u64{1} << 30;
    for (u64 bytes = u64{64} << 10; bytes <= largest; bytes *= 4) {
      if (device_.info().memory_bytes != 0 && bytes > device_.info().memory_bytes / 4) break;
      const u64 packs = bytes / 2 / (kPack * 4);
      // A few kilobytes a workgroup, and all threads busy.
      const u64 per_group = std::min<u64>(512, std::max<u64>(64, packs / target_.threads));
      const auto groups = static_cast<u32>(packs / per_group);
      const Block from(device_, bytes / 2), to(device_, bytes / 2);
      const f64 t = seconds(kernel, groups, {from.address(), to.address(), per_group});
      list.push_back({bytes, static_cast<f64>(bytes) / t});
    }
    return list;
  }

  f64 dispatch() {
    const auto kernel = compile(kernel::trace("measure_nothing", target_, target_.width, [] {
      const kernel::Buffer out = kernel::param_buffer(kernel::Scalar::F32);
      out.store(kernel::lane(), kernel::literal(kernel::Scalar::F32, 1));
    }));
    const Block out(device_, u64{target_.width} * 4);
    return best_of(kernel, 1, {out.address()}, kMostDispatches);
  }

 private:
  static u64 bits(f32 x) { return std::bit_cast<u32>(x); }
  Device& device_;
  const kernel::Target& target_;
};

}  // namespace

f64 MachineLimits::bandwidth(u64 bytes) const {
  if (copy.empty()) return 0;
  if (bytes <= copy.front().bytes) return copy.front().per_second;
  for (size_t i = 1; i < copy.size(); ++i) {
    if (bytes > copy[i].bytes) continue;
    const auto at = [](u64 b) { return std::log2(static_cast<f64>(b)); };
    const f64 share =
        (at(bytes) - at(copy[i - 1].bytes)) / (at(copy[i].bytes) - at(copy[i - 1].bytes));
    return copy[i - 1].per_second + share * (copy[i].per_second - copy[i - 1].per_second);
  }
  return copy.back().per_second;
}

MachineLimits measure_limits(Engine& engine) {
  engine.wait();
  Meter meter(engine.core().device());
  const kernel::Target& target = engine.target();
  MachineLimits limits{
      .flops = meter.flops(), .copy = meter.copies(), .dispatch_seconds = meter.dispatch()};
  if (target.fragments) limits.f16_flops = meter.matrix_flops(kernel::Scalar::F16);
  if (target.fragments && target.fragments_bf16) {
    limits.bf16_flops = meter.matrix_flops(kernel::Scalar::BF16);
  }
  return limits;
}

}  // namespace oa
