// An explanation as text and as JSON.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "oa/engine/explain.h"
#include "oa/engine/profile_table.h"

namespace oa {
namespace {

using graph::Evidence;
using nlohmann::ordered_json;
using Bound = Explanation::Bound;

struct Totals {
  f64 flops = 0, bytes = 0, predicted = 0, measured = 0;
  u64 barriers = 0;
};

Totals totals_of(const Explanation& e) {
  Totals t;
  for (size_t i = 0; i < e.timings.size(); ++i) {
    const Evidence::DispatchInfo& d = e.evidence->dispatches[i];
    t.flops += d.flops;
    t.bytes += static_cast<f64>(d.bytes_read + d.bytes_written);
    t.predicted += e.timings[i].predicted;
    t.measured += e.timings[i].measured;
    t.barriers += d.barrier;
  }
  return t;
}

std::string name_of(const Evidence& ev, u32 resource) {
  return resource == Evidence::kNone ? std::string("?") : ev.resources[resource].name;
}

std::string percent(f64 part, f64 whole) {
  return whole > 0 ? fmt::format("{:.0f}%", 100 * part / whole) : std::string("-");
}

void head(std::string& out, const Explanation& e, const Totals& t) {
  const Evidence& ev = *e.evidence;
  out += fmt::format("{} ({})\n", e.device, e.target);
  out += fmt::format("{} operations -> {} groups -> {} dispatches, {} barriers; {}FLOP, {} moved\n",
                     ev.semantic.operations.size(), ev.groups.size(), ev.dispatches.size(),
                     t.barriers, text_count(t.flops), text_bytes(t.bytes));
  if (e.runs > 0) {
    out += fmt::format("{} measured, {} predicted from the limits ({}); median of {} runs\n",
                       text_seconds(e.wall_seconds), text_seconds(t.predicted),
                       percent(t.predicted, e.wall_seconds), e.runs);
  }
  if (e.limits.flops > 0) {
    out += fmt::format("limits: {}FLOP/s", text_count(e.limits.flops));
    if (e.limits.f16_flops > 0) {
      out += fmt::format(", {} in f16 matrix units", text_count(e.limits.f16_flops));
    }
    if (e.limits.bf16_flops > 0) {
      out += fmt::format(", {} in bf16", text_count(e.limits.bf16_flops));
    }
    out += fmt::format(", {} a dispatch, copying", text_seconds(e.limits.dispatch_seconds));
    for (const MachineLimits::Bandwidth& b : e.limits.copy) {
      out += fmt::format(" {}/s at {}{}", text_bytes(b.per_second),
                         text_bytes(static_cast<f64>(b.bytes)),
                         &b == &e.limits.copy.back() ? "" : ",");
    }
    out += "\n";
  }
}

void stages(std::string& out, const Explanation& e) {
  out += "\nstages\n";
  for (const graph::StageRecord& r : e.stages) {
    out += fmt::format("  {:<25} {:<10} {:>9} -> {:<9} {:>9}  {}\n", token(r.stage), token(r.state),
                       r.input_count, r.output_count, text_seconds(r.seconds), r.reason);
  }
}

void dispatches(std::string& out, const Explanation& e) {
  const Evidence& ev = *e.evidence;
  constexpr size_t kLabel = 40;
  out += fmt::format("\ndispatches (wait: the dispatch that it stands behind, with all before)\n");
  out +=
      fmt::format("  {:>4}  {:<{}} {:>9} {:>9} {:>5}  {:<10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>5}\n",
                  "#", "ops", kLabel, "measured", "predicted", "of it", "bound", "flop", "flop/s",
                  "bytes", "byte/s", "live", "wait");
  for (size_t i = 0; i < ev.dispatches.size(); ++i) {
    const Evidence::DispatchInfo& d = ev.dispatches[i];
    const Explanation::Timing& t = e.timings[i];
    const f64 bytes = static_cast<f64>(d.bytes_read + d.bytes_written);
    const bool run = t.measured > 0, known = e.limits.flops > 0;
    out += fmt::format(
        "  {:>4}  {:<{}} {:>9} {:>9} {:>5}  {:<10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>5}\n", i,
        shortened(d.label, kLabel), kLabel, run ? text_seconds(t.measured) : "-",
        known ? text_seconds(t.predicted) : "-",
        run && known ? percent(t.predicted, t.measured) : "-", known ? token(t.bound) : "-",
        text_count(d.flops), run ? text_count(d.flops / t.measured) : "-", text_bytes(bytes),
        run ? text_count(bytes / t.measured) : "-", text_bytes(static_cast<f64>(d.live_bytes)),
        d.barrier ? fmt::format("{}", d.waits_for) : "");
  }
}

// Equal choices are told once, with the dispatches that have them.
void kernels(std::string& out, const Explanation& e) {
  const Evidence& ev = *e.evidence;
  out += "\nkernels, and why these\n";
  std::map<std::string, std::vector<u32>> of;
  std::vector<std::string> order;
  for (u32 i = 0; i < ev.dispatches.size(); ++i) {
    const Evidence::DispatchInfo& d = ev.dispatches[i];
    const std::string text = fmt::format("{}: {}", d.kernel, d.choice);
    std::vector<u32>& list = of[text];
    if (list.empty()) order.push_back(text);
    list.push_back(i);
  }
  for (const std::string& text : order) {
    const std::vector<u32>& list = of[text];
    std::string numbers;
    for (size_t i = 0; i < list.size() && i < 8; ++i) {
      numbers += fmt::format("{}{}", i == 0 ? "" : " ", list[i]);
    }
    if (list.size() > 8) numbers += fmt::format(" and {} more", list.size() - 8);
    out += fmt::format("  {}\n      in {}\n", text, numbers);
    for (const u32 i : list) {
      if (!ev.dispatches[i].trial.empty()) {
        out += fmt::format("      {}: {}\n", i, ev.dispatches[i].trial);
      }
    }
  }
}

// How the products are computed, equal ones together.
void products(std::string& out, const Explanation& e) {
  const Evidence& ev = *e.evidence;
  if (ev.products.empty()) return;
  out += "\nproducts\n";
  std::map<std::string, u32> ways;
  for (const Evidence::Product& p : ev.products) ++ways[p.how];
  for (const auto& [way, count] : ways) out += fmt::format("  {:>4}  {}\n", count, way);
}

void groups(std::string& out, const Explanation& e) {
  const Evidence& ev = *e.evidence;
  out += "\ngroups (one loop nest each), and why they do not run as fewer\n";
  std::map<u32, std::vector<const Evidence::Boundary*>> edges;
  for (const Evidence::Boundary& b : ev.boundaries) edges[b.to].push_back(&b);
  for (u32 g = 0; g < ev.groups.size(); ++g) {
    const Evidence::GroupInfo& group = ev.groups[g];
    std::string members;
    for (const std::string& op : group.ops) members += (members.empty() ? "" : " ") + op;
    out += fmt::format("  {:>4}  {:<9} {}: {}\n", g, graph::token(group.kind),
                       to_string(group.domain), members);
    for (const Evidence::Boundary* b : edges[g]) {
      out += fmt::format("          not with {}: {} ({})\n", b->from, b->reason,
                         name_of(ev, b->resource));
    }
  }
  for (const Evidence::Refusal& r : ev.refusals) {
    out += fmt::format("        refused: {}, {}\n", r.op, r.reason);
  }
}

void memory(std::string& out, const Explanation& e) {
  const Evidence& ev = *e.evidence;
  using Kind = Evidence::Resource::Kind;
  f64 inputs = 0, parameters = 0, results = 0;
  u64 in_place = 0, assigned = 0;
  for (const Evidence::Resource& r : ev.resources) {
    const auto bytes = static_cast<f64>(r.bytes);
    if (r.kind == Kind::Input) (r.parameter ? parameters : inputs) += bytes;
    if (r.kind == Kind::Result) results += bytes;
    in_place += r.reuses != Evidence::kNone;
    assigned += r.assigned;
  }
  u64 peak = 0;
  size_t peak_at = 0;
  for (size_t i = 0; i < ev.dispatches.size(); ++i) {
    if (ev.dispatches[i].live_bytes > peak) {
      peak = ev.dispatches[i].live_bytes;
      peak_at = i;
    }
  }
  const u64 saved = ev.transient_bytes > ev.arena_bytes ? ev.transient_bytes - ev.arena_bytes : 0;
  out += "\nmemory\n";
  out += fmt::format("  parameters {}, other operands {}, results {}\n", text_bytes(parameters),
                     text_bytes(inputs), text_bytes(results));
  out += fmt::format(
      "  temporaries {}, in an arena of {}: {} saved by reuse; at most {} live, at dispatch {}\n",
      text_bytes(static_cast<f64>(ev.transient_bytes)),
      text_bytes(static_cast<f64>(ev.arena_bytes)), text_bytes(static_cast<f64>(saved)),
      text_bytes(static_cast<f64>(peak)), peak_at);
  out += fmt::format("  {} values take over their operand's memory, {} assigned in place\n",
                     in_place, assigned);
  std::vector<const Evidence::Resource*> largest;
  for (const Evidence::Resource& r : ev.resources) {
    if (r.kind == Kind::Transient || r.kind == Kind::Scratch) largest.push_back(&r);
  }
  std::stable_sort(largest.begin(), largest.end(),
                   [](const auto* a, const auto* b) { return a->bytes > b->bytes; });
  if (largest.size() > 10) largest.resize(10);
  for (const Evidence::Resource* r : largest) {
    if (r->first == Evidence::kNone) continue;
    out += fmt::format("    {:<28} {:>9}  dispatches {} to {}\n", shortened(r->name, 28),
                       text_bytes(static_cast<f64>(r->bytes)), r->first, r->last);
  }
}

void barriers(std::string& out, const Explanation& e) {
  const Evidence& ev = *e.evidence;
  out += "\nbarriers\n";
  for (u32 i = 0; i < ev.dispatches.size(); ++i) {
    const Evidence::DispatchInfo& d = ev.dispatches[i];
    if (!d.barrier) continue;
    const char* what = d.hazard == graph::Hazard::Kind::ReadAfterWrite ? "reads {}, written by {}"
                       : d.hazard == graph::Hazard::Kind::WriteAfterRead
                           ? "replaces {}, read by {}"
                           : "replaces {}, written by {}";
    out +=
        fmt::format("  before {:>4}: {}\n", i,
                    fmt::format(fmt::runtime(what), name_of(ev, d.hazard_resource), d.waits_for));
  }
}

}  // namespace

std::string to_text(const Explanation& e) {
  std::string out;
  head(out, e, totals_of(e));
  stages(out, e);
  dispatches(out, e);
  kernels(out, e);
  products(out, e);
  groups(out, e);
  memory(out, e);
  barriers(out, e);
  return out;
}

std::string to_json(const Explanation& e) {
  const Evidence& ev = *e.evidence;
  const Totals t = totals_of(e);
  ordered_json copy = ordered_json::array(), stage_list = ordered_json::array(),
               dispatch_list = ordered_json::array(), group_list = ordered_json::array(),
               boundary_list = ordered_json::array();
  for (const MachineLimits::Bandwidth& b : e.limits.copy) {
    copy.push_back({{"bytes", b.bytes}, {"bytes_per_second", b.per_second}});
  }
  for (const graph::StageRecord& r : e.stages) {
    stage_list.push_back({{"stage", token(r.stage)},
                          {"state", token(r.state)},
                          {"input_count", r.input_count},
                          {"output_count", r.output_count},
                          {"seconds", r.seconds},
                          {"reason", r.reason}});
  }
  for (size_t i = 0; i < ev.dispatches.size(); ++i) {
    const Evidence::DispatchInfo& d = ev.dispatches[i];
    ordered_json row = {{"label", d.label},
                        {"kernel", d.kernel},
                        {"choice", d.choice},
                        {"trial", d.trial},
                        {"workgroups", d.workgroups},
                        {"groups", d.groups},
                        {"flops", d.flops},
                        {"units", kernel::name(d.units)},
                        {"unit_products", d.unit_products},
                        {"bytes_read", d.bytes_read},
                        {"bytes_written", d.bytes_written},
                        {"live_bytes", d.live_bytes},
                        {"barrier", d.barrier},
                        {"measured_seconds", nullptr},
                        {"predicted_seconds", nullptr},
                        {"bound", nullptr}};
    if (e.runs > 0) row["measured_seconds"] = e.timings[i].measured;
    if (e.limits.flops > 0) {
      row["predicted_seconds"] = e.timings[i].predicted;
      row["bound"] = token(e.timings[i].bound);
    }
    dispatch_list.push_back(std::move(row));
  }
  for (const Evidence::GroupInfo& g : ev.groups) {
    group_list.push_back({{"kind", graph::token(g.kind)},
                          {"domain", std::vector<i64>(g.domain.begin(), g.domain.end())},
                          {"members", g.ops}});
  }
  for (const Evidence::Boundary& b : ev.boundaries) {
    boundary_list.push_back({{"from", b.from},
                             {"to", b.to},
                             {"value", name_of(ev, b.resource)},
                             {"obstacle", graph::token(b.obstacle)},
                             {"reason", b.reason}});
  }
  const ordered_json all = {
      {"schema", "oa.explain.v1"},
      {"device", e.device},
      {"runs", e.runs},
      {"wall_seconds", e.wall_seconds},
      {"predicted_seconds", t.predicted},
      {"operations", ev.semantic.operations.size()},
      {"flops", t.flops},
      {"bytes", t.bytes},
      {"barriers", t.barriers},
      {"limits",
       {{"flops", e.limits.flops},
        {"f16_flops", e.limits.f16_flops},
        {"bf16_flops", e.limits.bf16_flops},
        {"dispatch_seconds", e.limits.dispatch_seconds},
        {"copy", copy}}},
      {"memory", {{"arena_bytes", ev.arena_bytes}, {"transient_bytes", ev.transient_bytes}}},
      {"stages", stage_list},
      {"dispatches", dispatch_list},
      {"groups", group_list},
      {"boundaries", boundary_list}};
  return all.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace oa
