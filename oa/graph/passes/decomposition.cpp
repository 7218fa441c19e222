// Stage 3. Rewrites the graph into the ops that kernels are made from: composite ops become their
// definitions, assignments become a list of writes, equal pure nodes become one, and what nobody
// needs goes. Stands before Fusion, which only knows pointwise ops, reductions, contractions and
// kernels.
#include <algorithm>
#include <map>
#include <unordered_map>

#include "oa/graph/compile.h"
#include "oa/graph/lower.h"
#include "oa/graph/reshape.h"

namespace oa::graph {
namespace {

// Ops of a definition record into the graph under construction.
class RewriteRecorder final : public Recorder {
 public:
  explicit RewriteRecorder(Recorder& from) : from_(from) {}
  Graph& graph() override { return *graph_; }
  void check_open(std::string_view) override {}
  bool rewriting() const override { return true; }
  Precision precision() const override { return from_.precision(); }
  Precision usable(Precision p) const override { return from_.usable(p); }
  void set(Graph* graph) { graph_ = graph; }

 private:
  Graph* graph_ = nullptr;
  Recorder& from_;
};

struct Rewritten : Graph {
  explicit Rewritten(Ref<RewriteRecorder> r) : Graph(*r), owner(std::move(r)) { owner->set(this); }
  Ref<RewriteRecorder> owner;
};

// The operations of the recorded graph behind each node.
using Origins = std::vector<std::vector<u32>>;

struct Tally {
  u64 expanded = 0, merged = 0;
};

// Copies nodes into a new graph, one at a time, merging equal pure ones.
class Rewriter {
 public:
  explicit Rewriter(const Graph& from)
      : from_(from), to_(std::make_unique<Rewritten>(Ref(new RewriteRecorder(from.recorder())))) {
    to_->leaves = from.leaves;
    map_.resize(from.nodes.size());
  }

  Operand mapped(Operand o) const { return o.is_leaf() ? o : map_[o.node][o.output]; }
  void set(u32 node, std::vector<Operand> outputs) { map_[node] = std::move(outputs); }

  void copy(u32 n, const std::vector<Scalar>& scalars) {
    const Node& node = from_.nodes[n];
    std::vector<Operand> inputs;
    for (Operand in : node.inputs) inputs.push_back(mapped(in));
    Hasher h;
    h.add(reinterpret_cast<u64>(node.op));
    node.attrs->hash(h);
    for (const Scalar& s : scalars) {
      h.add(s.source());
      h.add(s.bits());
    }
    for (Operand in : inputs) h.add(static_cast<u64>(in.node) << 32 | in.output);
    const Hash128 key = h.finish();
    if (node.op->info.pure) {
      if (auto it = seen_.find(key); it != seen_.end()) {
        std::vector<Operand> outputs;
        for (u32 i = 0; i < node.outputs.size(); ++i) outputs.push_back({it->second, i});
        set(n, std::move(outputs));
        merged_into_ = it->second;
        return;
      }
    }
    Node clone{.op = node.op, .attrs = node.attrs, .inputs = std::move(inputs)};
    for (const Output& out : node.outputs) clone.outputs.push_back({out.spec, nullptr});
    clone.first_scalar = static_cast<u32>(to_->scalars.size());
    to_->scalars.insert(to_->scalars.end(), scalars.begin(), scalars.end());
    const auto id = static_cast<u32>(to_->nodes.size());
    to_->nodes.push_back(std::move(clone));
    seen_[key] = id;
    std::vector<Operand> outputs;
    for (u32 i = 0; i < node.outputs.size(); ++i) outputs.push_back({id, i});
    set(n, std::move(outputs));
  }

  // Names what is behind the nodes that came from node n: `of_n`, or n itself.
  void trace(u32 n, const Origins& before, Origins& after) {
    const std::vector<u32> own = before.empty() ? std::vector<u32>{n} : before[n];
    while (after.size() < to_->nodes.size()) after.push_back(own);
    if (merged_into_ == kNoNode) return;
    for (u32 o : own) {
      std::vector<u32>& all = after[merged_into_];
      if (std::find(all.begin(), all.end(), o) == all.end()) all.push_back(o);
    }
    merged_into_ = kNoNode;
    ++merged_;
  }
  u64 merged() const { return merged_; }

  Rewritten& to() { return *to_; }
  std::unique_ptr<Rewritten> take() { return std::move(to_); }

 private:
  const Graph& from_;
  std::unique_ptr<Rewritten> to_;
  std::vector<std::vector<Operand>> map_;
  std::unordered_map<Hash128, u32> seen_;
  u32 merged_into_ = kNoNode;  // by the last copy()
  u64 merged_ = 0;
};

std::vector<Scalar> scalars_of(const Graph& graph, u32 n, bool name_sources) {
  std::vector<Scalar> own;
  graph.nodes[n].attrs->scalars(own);
  for (u32 k = 0; k < own.size(); ++k) {
    own[k] = graph.scalars[graph.nodes[n].first_scalar + k];
    if (name_sources) own[k].set_source(graph.nodes[n].first_scalar + k);
  }
  return own;
}

std::vector<bool> live_nodes(const Graph& graph, const std::vector<Operand>& roots) {
  std::vector<bool> live(graph.nodes.size());
  for (Operand o : roots) {
    if (!o.is_leaf()) live[o.node] = true;
  }
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    if (!live[n]) continue;
    for (Operand in : graph.nodes[n].inputs) {
      if (!in.is_leaf()) live[in.node] = true;
    }
  }
  return live;
}

// Expands the composite nodes of a graph, and drops what no root needs.
std::unique_ptr<Rewritten> expand(const Graph& from, bool first, std::vector<Operand>& roots,
                                  Origins& origins, Tally& tally) {
  Rewriter rewriter(from);
  Origins traced;
  const std::vector<bool> live = live_nodes(from, roots);
  for (u32 n = 0; n < from.nodes.size(); ++n) {
    if (!live[n]) continue;
    const Node& node = from.nodes[n];
    if (node.op->info.kind == OpKind::Effect) {
      rewriter.set(n, {rewriter.mapped(node.inputs[0])});
      continue;
    }
    const std::vector<Scalar> scalars = scalars_of(from, n, first);
    if (node.op->info.kind != OpKind::Composite) {
      rewriter.copy(n, scalars);
      rewriter.trace(n, origins, traced);
      continue;
    }
    ++tally.expanded;
    Graph& to = rewriter.to();
    std::vector<TensorRef> inputs;
    for (Operand in : node.inputs) inputs.push_back(to.stand_in(rewriter.mapped(in)));
    // Scalars of the definition keep the names of the program's runtime values.
    AttrsPtr attrs = node.attrs;
    if (first && !scalars.empty()) attrs = attrs->symbolic(node.first_scalar);
    const std::vector<TensorRef> results = node.op->define(inputs, attrs->get());
    OA_CHECK(results.size() == node.outputs.size());
    std::vector<Operand> outputs;
    for (size_t i = 0; i < results.size(); ++i) {
      OA_CHECK(results[i]->spec() == node.outputs[i].spec);
      outputs.push_back(to.operand_of(results[i]));
    }
    rewriter.set(n, std::move(outputs));
    rewriter.trace(n, origins, traced);
  }
  for (Operand& o : roots) o = rewriter.mapped(o);
  origins = std::move(traced);
  tally.merged += rewriter.merged();
  return rewriter.take();
}

bool has_composite(const Graph& graph) {
  for (const Node& n : graph.nodes) {
    if (n.op->info.kind == OpKind::Composite) return true;
  }
  return false;
}

Operand append(Graph& graph, const OpDef& op, AttrsPtr attrs, Operand in, Spec spec) {
  Node node{.op = &op, .attrs = std::move(attrs), .inputs = {in}};
  node.outputs.push_back({std::move(spec), nullptr});
  node.first_scalar = static_cast<u32>(graph.scalars.size());
  graph.nodes.push_back(std::move(node));
  return {static_cast<u32>(graph.nodes.size() - 1), 0};
}

// Values that users hold get memory of their own, even where they turned out to be one value or an
// operand: assigning one must leave the others. Only reshapes of a value share its memory.
void separate(const Graph& source, const std::vector<Operand>& held, Graph& graph,
              std::vector<Operand>& results) {
  const auto key = [](Operand o) { return std::pair(o.node, o.output); };
  std::map<std::pair<u32, u32>, Operand> owner;  // value -> what the user holds in its memory
  std::map<std::pair<u32, u32>, Operand> copies;
  for (size_t i = 0; i < results.size(); ++i) {
    const Operand own = resolve_reshapes(source, held[i]);
    const Operand value = resolve_reshapes(graph, results[i]);
    if (!value.is_leaf() && owner.try_emplace(key(value), own).first->second == own) continue;
    auto it = copies.find(key(own));
    if (it == copies.end()) {
      const Operand copy =
          append(graph, op_def<Copy>(), make_attrs<Copy>({}), value, graph.spec(value));
      it = copies.emplace(key(own), copy).first;
    }
    const Spec spec = graph.spec(results[i]);
    results[i] = it->second;
    if (graph.spec(it->second) == spec) continue;
    results[i] =
        append(graph, op_def<Reshape>(), make_attrs<Reshape>({spec.shape}), it->second, spec);
  }
}

}  // namespace

void decomposition(Compilation& c, StageRecord& record) {
  record.input_count = c.source.nodes.size();
  std::vector<Operand> roots;
  std::vector<u32> last_writer(c.source.leaves.size(), kNoNode);
  for (u32 n = 0; n < c.source.nodes.size(); ++n) {
    const Node& node = c.source.nodes[n];
    const bool in_storage = node.op->info.kind == OpKind::Effect && node.target != kNoNode;
    for (u32 i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i].holder && !in_storage) roots.push_back({n, i});
    }
    // Only the last assignment to a storage reaches it; reads in between use the values.
    if (in_storage) last_writer[c.source.leaves[node.target].first] = n;
  }
  const size_t result_count = roots.size();
  std::vector<u32> written;
  for (u32 leaf = 0; leaf < last_writer.size(); ++leaf) {
    if (last_writer[leaf] == kNoNode) continue;
    written.push_back(c.source.nodes[last_writer[leaf]].target);
    roots.push_back({last_writer[leaf], 0});
  }
  const std::vector<Operand> held(roots.begin(),
                                  roots.begin() + static_cast<std::ptrdiff_t>(result_count));
  Origins origins;
  Tally tally;
  std::unique_ptr<Graph> graph = expand(c.source, true, roots, origins, tally);
  while (has_composite(*graph)) graph = expand(*graph, false, roots, origins, tally);
  // Merges and drops what the definitions left.
  graph = expand(*graph, false, roots, origins, tally);
  c.results.assign(roots.begin(), roots.begin() + static_cast<std::ptrdiff_t>(result_count));
  separate(c.source, held, *graph, c.results);
  for (size_t i = 0; i < written.size(); ++i) {
    c.writes.push_back({.value = roots[result_count + i], .leaf = written[i]});
  }
  for (const Scalar& s : graph->scalars) c.scalar_sources.push_back(s.source());
  c.rewritten = std::move(graph);
  c.graph = c.rewritten.get();
  record.output_count = c.graph->nodes.size();
  std::vector<bool> kept(c.source.nodes.size());
  u64 assignments = 0, dropped = 0;
  for (const std::vector<u32>& of : origins) {
    for (u32 o : of) kept[o] = true;
  }
  for (u32 n = 0; n < c.source.nodes.size(); ++n) {
    const bool effect = c.source.nodes[n].op->info.kind == OpKind::Effect;
    assignments += effect;
    dropped += !effect && !kept[n];
  }
  const u64 copies = c.graph->nodes.size() - origins.size();
  c.origins = std::move(origins);
  const bool changed = tally.expanded + tally.merged + assignments + dropped + copies > 0;
  record.state = changed ? StageState::Applied : StageState::Inherited;
  record.reason = fmt::format(
      "{} composite ops expanded, {} equal nodes merged, {} operations dropped, {} assignments, {} "
      "copies added",
      tally.expanded, tally.merged, dropped, assignments, copies);
}

}  // namespace oa::graph
