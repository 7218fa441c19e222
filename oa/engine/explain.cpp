#include "oa/engine/explain.h"

#include <algorithm>
#include <chrono>

namespace oa {
namespace {

using graph::Evidence;

f64 now() {
  return std::chrono::duration<f64>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

f64 median(std::vector<f64>& v) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  return v.size() % 2 == 1 ? v[v.size() / 2] : (v[v.size() / 2 - 1] + v[v.size() / 2]) / 2;
}

// The larger of what the arithmetic and what the memory takes at least, on top of the dispatch.
// Fewer workgroups than the machine runs at once leave the rest of it idle.
Explanation::Timing predict(const Evidence::DispatchInfo& d, const MachineLimits& limits,
                            const kernel::Target& target) {
  Explanation::Timing t;
  const u64 bytes = d.bytes_read + d.bytes_written;
  const f64 at_once = target.is_cpu() ? target.threads : std::max(1u, target.threads / 8);
  const f64 share = std::min(1.0, d.workgroups / at_once);
  const f64 peak = limits.flops_of(d.units) * share;
  const f64 arithmetic = peak > 0 ? d.flops * d.unit_products / peak : 0;
  const f64 rate = limits.bandwidth(bytes) * (target.is_cpu() ? std::max(share, 0.5) : share);
  const f64 memory = rate > 0 ? static_cast<f64>(bytes) / rate : 0;
  const f64 work = std::max(arithmetic, memory);
  t.predicted = limits.dispatch_seconds + work;
  t.bound = work < limits.dispatch_seconds ? Explanation::Bound::Dispatch
            : arithmetic > memory          ? Explanation::Bound::Arithmetic
                                           : Explanation::Bound::Memory;
  return t;
}

}  // namespace

std::string_view token(Explanation::Bound bound) {
  switch (bound) {
    case Explanation::Bound::Arithmetic: return "arithmetic";
    case Explanation::Bound::Memory: return "memory";
    case Explanation::Bound::Dispatch: break;
  }
  return "dispatch";
}

Explanation explain(Engine& engine, const ExecutionPlan& plan, const ExplainOptions& options) {
  const kernel::Target& target = engine.target();
  Explanation e;
  e.device = engine.device_info().name;
  e.target = target.is_cpu() ? fmt::format("{} threads", target.threads)
                             : fmt::format("{} workgroups fill it", target.threads);
  e.evidence = std::make_shared<const Evidence>(plan.evidence());
  e.stages = plan.stages();
  e.runs = options.runs;
  if (options.limits) {
    e.limits = *options.limits;
  } else if (options.runs > 0) {
    e.limits = measure_limits(engine);
  }
  for (const Evidence::DispatchInfo& d : e.evidence->dispatches) {
    e.timings.push_back(e.limits.flops > 0 ? predict(d, e.limits, target) : Explanation::Timing{});
  }
  if (options.runs == 0) return e;
  std::vector<std::vector<f64>> samples(e.timings.size());
  std::vector<f64> walls;
  engine.submit(plan).wait();
  for (u32 run = 0; run < options.runs; ++run) {
    const std::vector<f64> seconds = engine.submit_timed(plan).dispatch_seconds();
    for (size_t i = 0; i < seconds.size() && i < samples.size(); ++i) {
      samples[i].push_back(seconds[i]);
    }
    const f64 start = now();
    engine.submit(plan).wait();
    walls.push_back(now() - start);
  }
  for (size_t i = 0; i < samples.size(); ++i) e.timings[i].measured = median(samples[i]);
  e.wall_seconds = median(walls);
  return e;
}

}  // namespace oa
