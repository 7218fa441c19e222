#include "oa/graph/evidence.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "oa/graph/reshape.h"

namespace oa::graph {
namespace {

u64 bytes_of(const Spec& spec) {
  return static_cast<u64>(spec.shape.elements()) * size_bytes(spec.dtype);
}

// Keeps the elements of a value where a row-major reader finds them, or repeats them.
bool keeps_order(const Node& node) {
  return node.op == &op_def<Reshape>() || node.op->info.name == "broadcast_to";
}

class Collector {
 public:
  explicit Collector(const Compilation& c) : c_(c), graph_(*c.graph) {}

  Evidence collect() {
    out_.device = c_.device.info().name;
    out_.semantic = semantic_graph(c_.source);
    out_.arena_bytes = c_.arena_bytes;
    out_.transient_bytes = c_.records[static_cast<u32>(Stage::MemoryPlanning)].input_count;
    number_resources();
    describe_groups();
    find_boundaries();
    describe_products();
    for (const auto& [n, output] : c_.sealed) {
      out_.refusals.push_back(
          {op_name(n),
           "its elements have no position that the loops of its group reach, so "
           "it got memory and fusion started over"});
    }
    describe_dispatches();
    find_reuse();
    return std::move(out_);
  }

 private:
  const Node& node(u32 n) const { return graph_.nodes[n]; }
  OpKind kind(u32 n) const { return node(n).op->info.kind; }
  std::string op_name(u32 n) const { return std::string(node(n).op->name()); }
  static std::pair<u32, u32> key(Operand o) { return {o.node, o.output}; }

  // --- Resources: inputs, then stored values in graph order, then the kernels' own memory ---

  void number_resources() {
    for (u32 i = 0; i < graph_.leaves.size(); ++i) {
      const SemanticGraph::Value& v = out_.semantic.values[i];
      const bool parameter = v.role == SemanticGraph::Role::Parameter;
      out_.resources.push_back({.name = v.name.empty() ? fmt::format("input {}", i) : v.name,
                                .kind = Evidence::Resource::Kind::Input,
                                .bytes = bytes_of(v.spec),
                                .parameter = parameter});
    }
    for (const Write& w : c_.writes) out_.resources[w.leaf].assigned = true;
    for (u32 n = 0; n < graph_.nodes.size(); ++n) {
      for (u32 i = 0; i < node(n).outputs.size(); ++i) {
        if (!c_.stored[n][i]) continue;
        const Place& place = c_.places[n][i];
        if (place.kind == Place::Kind::Leaf) {
          resource_[{n, i}] = place.index;
          continue;
        }
        resource_[{n, i}] = static_cast<u32>(out_.resources.size());
        out_.resources.push_back({.name = fmt::format("{}.{}", node(n).op->name(), n),
                                  .kind = place.kind == Place::Kind::Result
                                              ? Evidence::Resource::Kind::Result
                                              : Evidence::Resource::Kind::Transient,
                                  .bytes = bytes_of(node(n).outputs[i].spec),
                                  .offset = place.offset});
      }
    }
    first_temp_ = static_cast<u32>(out_.resources.size());
    for (u32 t = 0; t < c_.launches.temps.size(); ++t) {
      out_.resources.push_back({.name = fmt::format("scratch {}", t),
                                .kind = Evidence::Resource::Kind::Scratch,
                                .bytes = c_.launches.temps[t].bytes,
                                .offset = c_.temp_offsets[t]});
    }
  }

  u32 resource(Operand o) const {
    if (o.is_leaf()) return o.output;
    const auto it = resource_.find(key(o));
    return it == resource_.end() ? Evidence::kNone : it->second;
  }

  // --- Groups ---

  void describe_groups() {
    for (u32 g = 0; g < c_.groups.size(); ++g) {
      const Group& group = c_.groups[g];
      Evidence::GroupInfo info{.kind = group.kind, .domain = group.domain, .axes = group.axes};
      std::set<u32> operations;
      for (u32 n : group.nodes) {
        info.ops.push_back(op_name(n));
        if (n < c_.origins.size()) operations.insert(c_.origins[n].begin(), c_.origins[n].end());
      }
      info.operations.assign(operations.begin(), operations.end());
      for (Operand o : group.outputs) {
        made_by_[key(o)] = g;
        info.outputs.push_back(resource(o));
      }
      out_.groups.push_back(std::move(info));
    }
  }

  // --- What stayed apart, and why ---

  void find_boundaries() {
    for (u32 g = 0; g < c_.groups.size(); ++g) {
      const Group& group = c_.groups[g];
      std::set<std::pair<u32, u32>> seen;  // values that the group reads
      passed_.clear();
      for (u32 n : group.nodes) {
        for (u32 i = 0; i < node(n).inputs.size(); ++i) {
          const bool indexed = node(n).op->info.reads_indexed(i);
          visit(g, n, node(n).inputs[i], indexed, false, seen);
        }
      }
    }
  }

  void visit(u32 g, u32 reader, Operand in, bool indexed, bool reordered,
             std::set<std::pair<u32, u32>>& seen) {
    if (in.is_leaf()) return;
    const std::vector<u32>& members = c_.groups[g].nodes;
    if (std::binary_search(members.begin(), members.end(), in.node)) return;
    if (!c_.stored[in.node][in.output]) {
      if (!passed_.insert({in.node, reordered}).second) return;
      const bool moves = kind(in.node) == OpKind::Movement && !keeps_order(node(in.node));
      for (Operand below : node(in.node).inputs) {
        visit(g, reader, below, indexed, reordered || moves, seen);
      }
      return;
    }
    if (!seen.insert(key(in)).second) return;
    const auto maker = made_by_.find(key(in));
    if (maker == made_by_.end()) return;
    const Obstacle why = obstacle(reader, in, indexed, reordered);
    out_.boundaries.push_back({.from = maker->second,
                               .to = g,
                               .resource = resource(in),
                               .maker = op_name(in.node),
                               .reader = op_name(reader),
                               .obstacle = why,
                               .reason = reason(why, reader, in)});
  }

  Obstacle obstacle(u32 reader, Operand in, bool indexed, bool reordered) const {
    const u32 maker = in.node;
    if (!c_.options.fuse) return Obstacle::FusionOff;
    if (c_.sealed.contains(key(in))) return Obstacle::Refused;
    if (kind(reader) == OpKind::Kernel || kind(maker) == OpKind::Kernel) return Obstacle::OwnKernel;
    if (kind(reader) == OpKind::Contraction) return Obstacle::ProductOperand;
    if (indexed) return Obstacle::ComputedPositions;
    if (node(reader).op->info.apart != node(maker).op->info.apart) return Obstacle::KeptApart;
    if (const auto it = c_.obstacles.find({reader, maker}); it != c_.obstacles.end()) {
      return it->second;
    }
    return reordered ? Obstacle::OtherOrder : Obstacle::NotOpen;
  }

  std::string reason(Obstacle why, u32 reader, Operand in) const {
    const std::string_view r = node(reader).op->name(), m = node(in.node).op->name();
    const Shape& read = kind(reader) == OpKind::Reduction
                            ? graph_.spec(node(reader).inputs[0]).shape
                            : node(reader).outputs[0].spec.shape;
    const Shape& made = node(in.node).outputs[in.output].spec.shape;
    switch (why) {
      case Obstacle::None: break;
      case Obstacle::FusionOff: return "fusion is switched off";
      case Obstacle::Refused:
        return fmt::format("no kernel could be written with {} and {} in one loop nest", m, r);
      case Obstacle::OwnKernel:
        return fmt::format("{} brings its own kernels, which work on memory",
                           kind(reader) == OpKind::Kernel ? r : m);
      case Obstacle::ProductOperand:
        return fmt::format("{} reads every element of its operands many times", r);
      case Obstacle::ComputedPositions:
        return fmt::format("{} reads {} at computed positions", r, m);
      case Obstacle::KeptApart:
        return fmt::format("{} stays apart, to run side by side with its like",
                           node(reader).op->info.apart ? r : m);
      case Obstacle::OtherSize: return fmt::format("{} runs over {}, {} over {}", r, read, m, made);
      case Obstacle::OtherOrder:
        return fmt::format("{} reads {} in another order than it is made", r, m);
      case Obstacle::OtherReduction:
        return fmt::format("{} needs another reduction than the one around {}", r, m);
      case Obstacle::NeedsWhole:
        return fmt::format("{} needs the finished sums of the product around {}", r, m);
      case Obstacle::Sliced:
        return fmt::format("{} needs the total of {}, which is summed in slices", r, m);
      case Obstacle::Cycle: return fmt::format("{} and {} would each wait for the other", r, m);
      case Obstacle::SeveralResults: return fmt::format("{} has several results", r);
      case Obstacle::NotOpen: return fmt::format("{} joined another group of its operands", r);
    }
    return {};
  }

  void describe_products() {
    std::vector<u32> group_of(graph_.nodes.size(), Evidence::kNone);
    for (u32 g = 0; g < c_.groups.size(); ++g) {
      for (u32 n : c_.groups[g].nodes) group_of[n] = g;
    }
    for (const ProductPrecision& p : c_.products) {
      Evidence::Product product{.op = op_name(p.node),
                                .group = group_of[p.node],
                                .operands = p.operands,
                                .asked = p.asked,
                                .computed = p.computed,
                                .how = p.how};
      if (p.node < c_.origins.size()) {
        const std::set<u32> of(c_.origins[p.node].begin(), c_.origins[p.node].end());
        product.operations.assign(of.begin(), of.end());
      }
      out_.products.push_back(std::move(product));
    }
  }

  // --- Dispatches ---

  void describe_dispatches() {
    out_.operation_dispatches.resize(c_.source.nodes.size());
    for (u32 l = 0; l < c_.launches.list.size(); ++l) {
      const Launch& launch = c_.launches.list[l];
      Evidence::DispatchInfo d{.label = launch.label,
                               .kernel = launch.kernel.name,
                               .choice = launch.choice,
                               .trial = launch.trial,
                               .workgroups = launch.groups,
                               .width = launch.kernel.width,
                               .instructions = static_cast<u32>(launch.kernel.instrs.size()),
                               .groups = launch.parts,
                               .flops = launch.flops,
                               .barrier = c_.barriers[l]};
      std::set<u32> operations;
      for (u32 g : launch.parts) {
        operations.insert(out_.groups[g].operations.begin(), out_.groups[g].operations.end());
      }
      d.operations.assign(operations.begin(), operations.end());
      for (u32 o : d.operations) out_.operation_dispatches[o].push_back(l);
      add_memory(d, launch, l);
      add_units(d, launch);
      if (d.barrier) {
        d.hazard = c_.hazards[l].kind;
        d.waits_for = c_.hazards[l].earlier;
        d.hazard_resource = resource_of(c_.hazards[l].memory);
      }
      out_.dispatches.push_back(std::move(d));
    }
    for (u32 l = 0; l < out_.dispatches.size(); ++l) out_.dispatches[l].live_bytes = live_at(l);
  }

  u32 resource_of(const ArgRef& a) const {
    return a.kind == ArgRef::Kind::Temp ? first_temp_ + a.temp : resource(a.operand);
  }

  void add_memory(Evidence::DispatchInfo& d, const Launch& launch, u32 l) {
    const auto add = [](std::vector<u32>& list, u32 r) {
      if (std::find(list.begin(), list.end(), r) == list.end()) list.push_back(r);
    };
    for (const ArgRef& a : launch.args) {
      if (a.kind != ArgRef::Kind::Value && a.kind != ArgRef::Kind::Temp) continue;
      const u32 r = resource_of(a);
      if (r == Evidence::kNone) continue;
      Evidence::Resource& resource = out_.resources[r];
      resource.first = std::min(resource.first, l);
      resource.last = resource.last == Evidence::kNone ? l : std::max(resource.last, l);
      add(a.write ? d.writes : d.reads, r);
    }
    const Traffic bytes = traffic(c_, launch);
    d.bytes_read = bytes.read;
    d.bytes_written = bytes.written;
  }

  // Whether the kernel multiplies in matrix units. A product in parts makes several for one.
  void add_units(Evidence::DispatchInfo& d, const Launch& launch) const {
    for (const kernel::Instr& i : launch.kernel.instrs) {
      if (i.op == kernel::Op::FragMulAdd) d.units = launch.kernel[i.args[0]].type.scalar;
    }
    if (d.units == kernel::Scalar::F32) return;
    for (const ProductPrecision& p : c_.products) {
      const bool mine = std::any_of(launch.parts.begin(), launch.parts.end(), [&](u32 g) {
        return std::binary_search(c_.groups[g].nodes.begin(), c_.groups[g].nodes.end(), p.node);
      });
      if (mine && p.computed == Precision::F32x3) d.unit_products = 3;
      if (mine && p.computed == Precision::F32x6) d.unit_products = 6;
    }
  }

  static bool in_arena(const Evidence::Resource& r) {
    return r.kind == Evidence::Resource::Kind::Transient ||
           r.kind == Evidence::Resource::Kind::Scratch;
  }

  u64 live_at(u32 l) const {
    std::map<u64, u64> live;  // by offset: in place, two values are one piece of memory
    for (const Evidence::Resource& r : out_.resources) {
      if (!in_arena(r) || r.first == Evidence::kNone || l < r.first || l > r.last) continue;
      u64& bytes = live[r.offset];
      bytes = std::max(bytes, r.bytes);
    }
    u64 total = 0;
    for (const auto& [offset, bytes] : live) total += bytes;
    return total;
  }

  // A value that begins where another ends, in the same dispatch and memory, takes it over.
  void find_reuse() {
    std::map<u64, std::vector<u32>> at;  // transients by offset
    for (u32 r = 0; r < out_.resources.size(); ++r) {
      const Evidence::Resource& x = out_.resources[r];
      if (x.kind == Evidence::Resource::Kind::Transient && x.first != Evidence::kNone) {
        at[x.offset].push_back(r);
      }
    }
    for (const auto& [offset, sharers] : at) {
      for (u32 r : sharers) {
        for (u32 e : sharers) {
          const Evidence::Resource &earlier = out_.resources[e], &later = out_.resources[r];
          if (e == r || earlier.last != later.first || earlier.first >= later.first) continue;
          out_.resources[r].reuses = e;
        }
      }
    }
  }

  const Compilation& c_;
  const Graph& graph_;
  Evidence out_;
  std::map<std::pair<u32, u32>, u32> resource_;  // of stored values
  std::map<std::pair<u32, u32>, u32> made_by_;   // group
  std::set<std::pair<u32, bool>> passed_;        // nodes on the way from a group to what it reads
  u32 first_temp_ = 0;
};

// A table that is only read at computed positions: as many bytes as come out of it.
u64 most_read(const Compilation& c, const Launch& launch, Operand operand) {
  u64 bytes = 0;
  for (u32 g : launch.parts) {
    for (u32 n : c.groups[g].nodes) {
      const Node& node = c.graph->nodes[n];
      for (u32 i = 0; i < node.inputs.size(); ++i) {
        if (c.resolve(node.inputs[i]) != operand) continue;
        if (!node.op->info.reads_indexed(i)) return ~u64{0};
        bytes += bytes_of(node.outputs[0].spec);
      }
    }
  }
  return bytes > 0 ? bytes : ~u64{0};
}

}  // namespace

Traffic traffic(const Compilation& c, const Launch& launch) {
  Traffic t;
  const bool indexed = std::any_of(launch.parts.begin(), launch.parts.end(), [&](u32 g) {
    return std::any_of(c.groups[g].nodes.begin(), c.groups[g].nodes.end(),
                       [&](u32 n) { return c.graph->nodes[n].op->info.indexed_inputs != 0; });
  });
  std::vector<bool> used(launch.args.size());  // some kernels declare more than they touch
  for (const kernel::Instr& i : launch.kernel.instrs) {
    if (i.op == kernel::Op::Param) used[i.imm] = true;
  }
  std::set<std::tuple<bool, bool, u32, u32>> seen;
  for (size_t i = 0; i < launch.args.size(); ++i) {
    const ArgRef& a = launch.args[i];
    if (!used[i]) continue;
    const bool temp = a.kind == ArgRef::Kind::Temp;
    if (a.kind != ArgRef::Kind::Value && !temp) continue;
    const auto [node, output] =
        temp ? std::pair(a.temp, 0u) : std::pair(a.operand.node, a.operand.output);
    if (!seen.insert({a.write, temp, node, output}).second) continue;
    const u64 bytes = temp ? c.launches.temps[a.temp].bytes : bytes_of(c.graph->spec(a.operand));
    if (a.write) {
      t.written += bytes;
    } else {
      t.read += temp || !indexed ? bytes : std::min(bytes, most_read(c, launch, a.operand));
    }
  }
  return t;
}

std::string_view token(Obstacle obstacle) {
  constexpr std::string_view names[] = {"none",
                                        "fusion_off",
                                        "refused",
                                        "own_kernel",
                                        "product_operand",
                                        "computed_positions",
                                        "kept_apart",
                                        "other_size",
                                        "other_order",
                                        "other_reduction",
                                        "needs_whole",
                                        "sliced",
                                        "cycle",
                                        "several_results",
                                        "not_open"};
  return names[static_cast<size_t>(obstacle)];
}

std::string_view token(Group::Kind kind) {
  constexpr std::string_view names[] = {"pointwise", "reduce", "contract", "kernel"};
  return names[static_cast<size_t>(kind)];
}

std::string_view token(Hazard::Kind kind) {
  constexpr std::string_view names[] = {"read_after_write", "write_after_read",
                                        "write_after_write"};
  return names[static_cast<size_t>(kind)];
}

Evidence collect_evidence(const Compilation& c) { return Collector(c).collect(); }

}  // namespace oa::graph
