#include "oa/graph/report.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

namespace oa::graph {
namespace {

using nlohmann::ordered_json;
using Resource = Evidence::Resource;

std::string text(const ordered_json& json) {
  // Names of parameters and devices come from outside and need not be UTF-8.
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}

ordered_json numbers(const Shape& shape) { return std::vector<i64>(shape.begin(), shape.end()); }

ordered_json index_or_null(u32 i) {
  return i == Evidence::kNone ? ordered_json(nullptr) : ordered_json(i);
}

ordered_json json_of(const AttrValue& value) {
  return std::visit(
      [](const auto& v) -> ordered_json {
        if constexpr (std::same_as<std::decay_t<decltype(v)>, Dims>) {
          return std::vector<i64>(v.begin(), v.end());
        } else {
          return v;
        }
      },
      value);
}

std::string_view token(Resource::Kind kind) {
  constexpr std::string_view names[] = {"input", "result", "transient", "scratch"};
  return names[static_cast<size_t>(kind)];
}

bool in_arena(const Resource& r) {
  return r.kind == Resource::Kind::Transient || r.kind == Resource::Kind::Scratch;
}

ordered_json stages_json(const StageRecords& stages) {
  ordered_json list = ordered_json::array();
  for (const StageRecord& r : stages) {
    list.push_back({{"stage", token(r.stage)},
                    {"state", token(r.state)},
                    {"input_count", r.input_count},
                    {"output_count", r.output_count},
                    {"reason", r.reason}});
  }
  return list;
}

// --- Partitions ---

ordered_json plan_json(const Evidence& e) {
  u64 applied = 0, inherited = 0, captured = 0;
  for (const Evidence::GroupInfo& g : e.groups) {
    applied += g.ops.size() > 1;
    inherited += g.ops.size() == 1;
  }
  for (const auto& dispatches : e.operation_dispatches) captured += !dispatches.empty();
  ordered_json reasons = ordered_json::array();
  for (const Evidence::Refusal& r : e.refusals) {
    reasons.push_back({{"operation", r.op}, {"reason", r.reason}});
  }
  ordered_json boundaries = ordered_json::array();
  for (const Evidence::Boundary& b : e.boundaries) {
    boundaries.push_back({{"from", b.from},
                          {"to", b.to},
                          {"resource", index_or_null(b.resource)},
                          {"maker", b.maker},
                          {"reader", b.reader},
                          {"obstacle", token(b.obstacle)},
                          {"reason", b.reason}});
  }
  ordered_json partitions = ordered_json::array();
  for (const Evidence::GroupInfo& g : e.groups) {
    partitions.push_back({{"kind", token(g.kind)},
                          {"domain", numbers(g.domain)},
                          {"reduced_axes", g.axes},
                          {"members", g.ops},
                          {"operations", g.operations},
                          {"outputs", g.outputs}});
  }
  return {{"graph_hash", to_string(e.semantic.structure)},
          {"source_operation_count", e.semantic.operations.size()},
          {"captured_operation_count", captured},
          {"partition_count", e.groups.size()},
          {"recognized_partition_count", e.groups.size()},
          {"applied_partition_count", applied},
          {"inherited_partition_count", inherited},
          {"fallback_partition_count", e.refusals.size()},
          {"unexpected_fallback_count", 0},
          {"fallback_reasons", reasons},
          {"partitions", partitions},
          {"boundaries", boundaries}};
}

// --- How operations became dispatches ---

ordered_json lowering_json(const Evidence& e) {
  u64 owned = 0, fused_nodes = 0, direct = 0, decomposed = 0, fused = 0;
  size_t most_nodes = 0, most_operations = 0;
  for (const Evidence::DispatchInfo& d : e.dispatches) {
    owned += !d.operations.empty();
    fused_nodes += d.operations.size() > 1;
    most_operations = std::max(most_operations, d.operations.size());
  }
  ordered_json operations = ordered_json::array();
  for (u32 o = 0; o < e.operation_dispatches.size(); ++o) {
    const std::vector<u32>& of = e.operation_dispatches[o];
    const bool shared = std::any_of(of.begin(), of.end(),
                                    [&](u32 d) { return e.dispatches[d].operations.size() > 1; });
    direct += of.size() == 1 && !shared;
    decomposed += of.size() > 1;
    fused += shared;
    most_nodes = std::max(most_nodes, of.size());
    operations.push_back({{"operation", e.semantic.operations[o].op},
                          {"executable_node_count", of.size()},
                          {"executable_nodes", of}});
  }
  return {{"operation_count", e.semantic.operations.size()},
          {"schema_owned_node_count", owned},
          {"compatibility_node_count", e.dispatches.size() - owned},
          {"direct_operation_count", direct},
          {"decomposed_operation_count", decomposed},
          {"fused_operation_count", fused},
          {"fused_node_count", fused_nodes},
          {"maximum_nodes_per_operation", most_nodes},
          {"maximum_operations_per_node", most_operations},
          {"operations", operations}};
}

// --- Memory ---

ordered_json memory_json(const Evidence& e) {
  std::map<u64, u64> sharers;  // resources that begin at one place of the arena
  u64 candidates = 0;
  for (const Resource& r : e.resources) {
    if (!in_arena(r) || r.first == Evidence::kNone) continue;
    ++candidates;
    ++sharers[r.offset];
  }
  u64 peak = 0;
  for (const Evidence::DispatchInfo& d : e.dispatches) peak = std::max(peak, d.live_bytes);
  const u64 saved = e.transient_bytes > e.arena_bytes ? e.transient_bytes - e.arena_bytes : 0;
  u64 eligible = 0;
  ordered_json resources = ordered_json::array();
  for (const Resource& r : e.resources) {
    const bool used = r.first != Evidence::kNone;
    const bool shared = in_arena(r) && used && sharers[r.offset] > 1;
    eligible += shared;
    resources.push_back({{"resource", r.name},
                         {"bytes", r.bytes},
                         {"placement", token(r.kind)},
                         {"has_lifetime", used},
                         {"first_access", index_or_null(r.first)},
                         {"last_access", index_or_null(r.last)},
                         {"semantic_external", r.kind == Resource::Kind::Input},
                         {"stable_replay_input", r.kind == Resource::Kind::Input},
                         {"stable_transient", in_arena(r)},
                         {"observed_output", r.kind == Resource::Kind::Result || r.assigned},
                         {"alias_candidate", in_arena(r) && used},
                         {"alias_materialized", shared},
                         {"in_place_of", index_or_null(r.reuses)}});
  }
  return {{"resource_count", e.resources.size()},
          {"candidate_count", candidates},
          {"materialization_eligible_count", eligible},
          {"alias_group_count", std::count_if(sharers.begin(), sharers.end(),
                                              [](const auto& s) { return s.second > 1; })},
          {"arena_bytes", e.arena_bytes},
          {"transient_bytes", e.transient_bytes},
          {"peak_live_bytes", peak},
          {"potential_savings_bytes", e.transient_bytes > peak ? e.transient_bytes - peak : 0},
          {"materialized_savings_bytes", saved},
          {"materialized", saved > 0},
          {"fallback_reason", saved > 0 ? "" : "no two values of different lifetimes"},
          {"resources", resources}};
}

// --- Precision ---

ordered_json precision_json(const Evidence& e) {
  ordered_json products = ordered_json::array();
  for (const Evidence::Product& p : e.products) {
    products.push_back({{"operation", p.op},
                        {"operations", p.operations},
                        {"partition", index_or_null(p.group)},
                        {"operands", token(p.operands)},
                        {"asked", token(p.asked)},
                        {"computed", token(p.computed)},
                        {"how", p.how}});
  }
  return {{"product_count", e.products.size()}, {"products", products}};
}

}  // namespace

const Evidence& evidence_of(const Program& program) {
  if (!program.evidence()) {
    fail(ErrorKind::FailedPrecondition, "report",
         "the evidence of this program was dropped for that of later ones, expected a captured or "
         "recent program");
  }
  return *program.evidence();
}

std::string semantic_report_json(const Program& program, std::string_view name) {
  const SemanticGraph& graph = evidence_of(program).semantic;
  ordered_json values = ordered_json::array();
  for (const SemanticGraph::Value& v : graph.values) {
    values.push_back({{"id", values.size()},
                      {"dtype", token(v.spec.dtype)},
                      {"shape", numbers(v.spec.shape)},
                      {"role", token(v.role)},
                      {"name", v.name},
                      {"producer", index_or_null(v.producer)}});
  }
  ordered_json operations = ordered_json::array();
  for (const SemanticGraph::Operation& o : graph.operations) {
    ordered_json attributes = ordered_json::array();
    for (const AttrValue& a : o.attributes) attributes.push_back(json_of(a));
    operations.push_back({{"id", operations.size()},
                          {"operation", o.op},
                          {"kind", token(o.kind)},
                          {"attributes", attributes},
                          {"inputs", o.inputs},
                          {"outputs", o.outputs},
                          {"assigns", index_or_null(o.target)}});
  }
  return text({{"schema", "oa.semantic_graph.v2"},
               {"name", name},
               {"graph_hash", to_string(graph.structure)},
               {"operation_count", graph.operations.size()},
               {"value_count", graph.values.size()},
               {"operations", operations},
               {"values", values}});
}

std::string execution_report_json(const Program& program, std::string_view name) {
  const Evidence& e = evidence_of(program);
  ordered_json nodes = ordered_json::array();
  u64 barriers = 0;
  for (const Evidence::DispatchInfo& d : e.dispatches) {
    ordered_json wait = nullptr;
    if (d.barrier) {
      ++barriers;
      wait = {{"hazard", token(d.hazard)},
              {"after", index_or_null(d.waits_for)},
              {"resource", index_or_null(d.hazard_resource)}};
    }
    nodes.push_back({{"id", nodes.size()},
                     {"label", d.label},
                     {"kernel", d.kernel},
                     {"choice", d.choice},
                     {"workgroups", d.workgroups},
                     {"width", d.width},
                     {"instructions", d.instructions},
                     {"partitions", d.groups},
                     {"operations", d.operations},
                     {"reads", d.reads},
                     {"writes", d.writes},
                     {"flops", d.flops},
                     {"bytes_read", d.bytes_read},
                     {"bytes_written", d.bytes_written},
                     {"live_bytes", d.live_bytes},
                     {"barrier", wait}});
  }
  ordered_json resources = ordered_json::array();
  for (const Resource& r : e.resources) {
    resources.push_back({{"id", resources.size()},
                         {"name", r.name},
                         {"kind", token(r.kind)},
                         {"bytes", r.bytes},
                         {"offset", in_arena(r) ? ordered_json(r.offset) : ordered_json(nullptr)}});
  }
  return text({{"schema", "oa.execution_graph.v3"},
               {"name", name},
               {"device", e.device},
               {"captured", program.captured()},
               {"node_count", e.dispatches.size()},
               {"barrier_count", barriers},
               {"arena_bytes", e.arena_bytes},
               {"nodes", nodes},
               {"resources", resources}});
}

std::string compilation_report_json(const Program& program, std::string_view name) {
  const Evidence& e = evidence_of(program);
  return text({{"schema", "oa.training_compilation.v2"},
               {"name", name},
               {"captured", program.captured()},
               {"stages", stages_json(program.stages())},
               {"dnn_plan", plan_json(e)},
               {"precision_plan", precision_json(e)},
               {"lowering_analysis", lowering_json(e)},
               {"memory_analysis", memory_json(e)}});
}

}  // namespace oa::graph
