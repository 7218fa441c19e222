// Stage 4. Partitions the graph into groups that each run as one kernel, and decides which values
// reach memory. Stands before kernel selection; starts over with more values sealed when a kernel
// generator finds that a group cannot be written as one kernel.
//
// Grammar of a group: [elementwise, movement]* -> reductions of one domain over the same axes ->
// [elementwise, movement]*; or one contraction and what follows elementwise. Movement ops cost
// nothing: they belong to no group and are followed as index maps from wherever they are read. On
// the CPU an elementwise op that only a contraction needs is computed while its operand is packed.
#include <algorithm>
#include <map>

#include "oa/graph/compile.h"
#include "oa/graph/lower.h"
#include "oa/graph/reshape.h"

namespace oa::graph {
namespace {

constexpr u32 kNoGroup = ~0u;
constexpr f32 kCheap = 4;  // cost up to which a value is computed again rather than stored
// On a GPU a product of so few results takes less time than a barrier.
constexpr i64 kSmallProduct = i64{1} << 18;

struct Draft {
  Group group;
  bool alive = true;
  bool split = false;  // a reduction cut into slices: nothing per element may follow
  // The domain cut so that every member's coordinates are affine in it, and which axes are kept.
  Shape fine;
  std::vector<bool> kept;
};

class Partition {
 public:
  explicit Partition(Compilation& c) : c_(c), graph_(*c.graph) {
    const size_t n = graph_.nodes.size();
    group_of_.assign(n, kNoGroup);
    follows_reduction_.assign(n, false);
    per_row_.assign(n, false);
    uses_.assign(n, 0);
    for (const Node& node : graph_.nodes) {
      for (Operand in : node.inputs) {
        if (!in.is_leaf()) ++uses_[in.node];
      }
    }
  }

  void run() {
    find_required();
    for (u32 n = 0; n < graph_.nodes.size(); ++n) place(n);
    c_.stored.clear();
    for (const Node& node : graph_.nodes) c_.stored.emplace_back(node.outputs.size(), false);
    decide_stored();
    finish();
  }

 private:
  const Node& node(u32 n) const { return graph_.nodes[n]; }
  OpKind kind(u32 n) const { return node(n).op->info.kind; }
  bool apart(u32 n) const { return node(n).op->info.apart; }
  bool sealed(Operand o) const { return c_.sealed.contains({o.node, o.output}); }

  static bool is_reshape(const Node& n) { return n.op == &op_def<Reshape>(); }

  // Movement that keeps every element where a row-major reader finds it, or repeats it.
  bool transparent(u32 n) const {
    return kind(n) == OpKind::Movement &&
           (is_reshape(node(n)) || node(n).op->info.name == "broadcast_to");
  }

  // A movement op is its own pointwise group only if its result must be in memory.
  bool is_virtual(u32 n) const { return kind(n) == OpKind::Movement && !required_[n]; }

  void find_required() {
    required_.assign(graph_.nodes.size(), false);
    auto require = [&](Operand o) {
      o = c_.resolve(o);
      if (!o.is_leaf()) required_[o.node] = true;
    };
    for (Operand o : c_.results) require(o);
    for (const Write& w : c_.writes) require(w.value);
    for (const auto& [n, output] : c_.sealed) require({n, output});
    for (u32 n = 0; n < graph_.nodes.size(); ++n) {
      const Node& x = node(n);
      for (u32 i = 0; i < x.inputs.size(); ++i) {
        if (kind(n) == OpKind::Kernel || x.op->info.reads_indexed(i)) require(x.inputs[i]);
        if (kind(n) == OpKind::Contraction && !may_pack(x.inputs[i])) {
          require(below_movement(x.inputs[i]));
        }
        if (apart(n)) {
          const Operand from = below_movement(x.inputs[i]);
          if (!from.is_leaf() && !apart(from.node)) require(from);
        }
      }
      if (!c_.options.fuse) {
        for (Operand in : x.inputs) require(in);
      }
    }
  }

  // An elementwise value that nothing but one contraction reads.
  bool may_pack(Operand o) const {
    if (!c_.target.is_cpu() || !c_.options.fuse) return false;
    while (!o.is_leaf() && uses_[o.node] == 1 && !sealed(o)) {
      const Node& x = node(o.node);
      if (kind(o.node) == OpKind::Elementwise) {
        return x.op->info.pure && x.op->info.indexed_inputs == 0 && x.outputs.size() == 1;
      }
      if (kind(o.node) != OpKind::Movement) return false;
      o = x.inputs[0];
    }
    return false;
  }

  Operand below_movement(Operand o) const {
    while (!o.is_leaf() && kind(o.node) == OpKind::Movement && !sealed(o))
      o = node(o.node).inputs[0];
    return o;
  }

  u32 new_group(Group::Kind kind, Shape domain) {
    drafts_.push_back({.group = {.kind = kind, .domain = std::move(domain)}});
    start_refining(drafts_.back());
    return static_cast<u32>(drafts_.size() - 1);
  }

  void start_refining(Draft& d) const {
    d.fine = d.group.domain;
    if (d.fine.empty()) d.fine.push_back(1);
    d.kept.assign(d.fine.size(), true);
    for (u32 a : d.group.axes) d.kept[a] = false;
  }

  // Cuts the loop nest of a draft for a value of `shape`, per element or per row. False if the
  // value has its elements in an order that no loop nest shares with the others.
  static bool refine_for(Draft& d, const Shape& shape, bool per_row) {
    if (shape.elements() == 0) return true;
    if (per_row) return refine(d.fine, d.kept, shape);
    std::vector<bool> all(d.fine.size(), true);
    const Shape before = d.fine;
    if (!refine(d.fine, all, shape)) return false;
    // Parts of an axis are kept or reduced as it was.
    std::vector<bool> kept;
    u32 axis = 0;
    for (u32 coarse = 0; coarse < before.size(); ++coarse) {
      i64 left = before[coarse];
      do {
        kept.push_back(d.kept[coarse]);
        left /= d.fine[axis++];
      } while (left > 1);
    }
    d.kept = std::move(kept);
    return true;
  }

  void join(u32 n, u32 g) {
    group_of_[n] = g;
    drafts_[g].group.nodes.push_back(n);
  }

  // --- Dependencies ---

  // True if node n needs, through any path, a member of group g.
  bool needs_group(u32 n, u32 g) const {
    std::vector<bool> seen(graph_.nodes.size());
    std::vector<u32> stack = {n};
    while (!stack.empty()) {
      const u32 m = stack.back();
      stack.pop_back();
      if (group_of_[m] == g) return true;
      if (seen[m]) continue;
      seen[m] = true;
      for (Operand in : node(m).inputs) {
        if (!in.is_leaf()) stack.push_back(in.node);
      }
      // A group runs as a whole: needing one member is needing what its other members need.
      if (group_of_[m] != kNoGroup) {
        for (u32 other : drafts_[group_of_[m]].group.nodes) {
          if (!seen[other]) stack.push_back(other);
        }
      }
    }
    return false;
  }

  // Would n in group g depend on g through something outside of it?
  bool closes_cycle(u32 n, u32 g) const {
    for (Operand in : node(n).inputs) {
      if (!in.is_leaf() && group_of_[in.node] != g && !is_virtual(in.node) &&
          needs_group(in.node, g)) {
        return true;
      }
      if (!in.is_leaf() && is_virtual(in.node) && closes_cycle(in.node, g)) return true;
    }
    return false;
  }

  bool merge_closes_cycle(u32 a, u32 b) const {
    for (const auto& [x, y] : {std::pair(a, b), std::pair(b, a)}) {
      for (u32 n : drafts_[x].group.nodes) {
        for (Operand in : node(n).inputs) {
          if (in.is_leaf() || group_of_[in.node] == x || group_of_[in.node] == y) continue;
          if (needs_group(in.node, y)) return true;
        }
      }
    }
    return false;
  }

  // --- Depth: how many groups run one after the other ---

  using Depths = std::map<u32, u32>;  // of groups that were asked for

  // Groups in a row up to the value.
  u32 depth(Operand o, Depths& known) const {
    if (o.is_leaf()) return 0;
    if (!is_virtual(o.node)) return start(group_of_[o.node], known) + 1;
    u32 most = 0;
    for (Operand in : node(o.node).inputs) most = std::max(most, depth(in, known));
    return most;
  }
  u32 start(u32 g, Depths& known) const {
    if (const auto it = known.find(g); it != known.end()) return it->second;
    known[g] = 0;  // for members that read each other
    u32 most = 0;
    for (u32 m : drafts_[g].group.nodes) {
      for (Operand in : node(m).inputs) {
        if (in.is_leaf() || group_of_[in.node] == g) continue;
        most = std::max(most, depth(in, known));
      }
    }
    return known[g] = most;
  }

  // Would group g have to wait for other operands of n than for its own?
  bool delays(u32 n, u32 g) const {
    if (c_.target.is_cpu() || drafts_[g].group.domain.elements() > kSmallProduct) return false;
    Depths known;
    const u32 own = start(g, known);
    return std::any_of(node(n).inputs.begin(), node(n).inputs.end(),
                       [&](Operand in) { return !reads_only(in, g) && depth(in, known) > own; });
  }
  bool reads_only(Operand o, u32 g) const {
    return !o.is_leaf() && (is_virtual(o.node) ? reaches(o.node, g) : group_of_[o.node] == g);
  }

  // --- Where a node goes ---

  void place(u32 n) {
    if (is_virtual(n)) {
      for (Operand in : node(n).inputs) {
        if (!in.is_leaf()) {
          follows_reduction_[n] = follows_reduction_[n] || follows_reduction_[in.node];
        }
      }
      return;
    }
    const Shape& shape = node(n).outputs[0].spec.shape;
    switch (kind(n)) {
      case OpKind::Elementwise:
      case OpKind::Movement: place_pointwise(n); return;
      case OpKind::Reduction: place_reduction(n); return;
      case OpKind::Contraction: join(n, new_group(Group::Kind::Contract, shape)); return;
      case OpKind::Kernel: join(n, new_group(Group::Kind::Kernel, shape)); return;
      case OpKind::Composite:
      case OpKind::Effect: OA_CHECK(false);
    }
  }

  // Groups that n reads from directly or through movement that keeps the order of elements.
  // Of ops that stay apart for a reader that does, of the others for the others.
  void candidates(u32 n, bool apart_reader, std::vector<u32>& groups) const {
    for (Operand in : node(n).inputs) {
      if (in.is_leaf() || sealed(in)) continue;
      if (is_virtual(in.node)) {
        if (transparent(in.node)) candidates(in.node, apart_reader, groups);
        continue;
      }
      if (apart(in.node) != apart_reader) continue;
      const u32 g = group_of_[in.node];
      if (std::find(groups.begin(), groups.end(), g) == groups.end()) groups.push_back(g);
    }
  }

  // True if n reads a sealed value, or reads through reordering movement, from group g.
  bool reads_out_of_order(u32 n, u32 g) const {
    for (Operand in : node(n).inputs) {
      if (in.is_leaf()) continue;
      if (!is_virtual(in.node)) {
        if (group_of_[in.node] == g && (sealed(in) || kind(n) == OpKind::Movement)) return true;
        continue;
      }
      if (!transparent(in.node) || sealed(in) ? reaches(in.node, g)
                                              : reads_out_of_order_below(in.node, g)) {
        return true;
      }
    }
    return false;
  }
  bool reads_out_of_order_below(u32 n, u32 g) const {
    const Operand in = node(n).inputs[0];
    if (in.is_leaf()) return false;
    if (!is_virtual(in.node)) return group_of_[in.node] == g && sealed(in);
    return !transparent(in.node) ? reaches(in.node, g) : reads_out_of_order_below(in.node, g);
  }
  // A chain of virtual nodes that ends in group g.
  bool reaches(u32 n, u32 g) const {
    if (!is_virtual(n)) return group_of_[n] == g;
    const Operand in = node(n).inputs[0];
    return !in.is_leaf() && reaches(in.node, g);
  }

  static i64 rows_of(const Group& g) { return kept_elements(g.domain, g.axes); }

  // What keeps node n out of group g.
  Obstacle obstacle(u32 n, u32 g) {
    if (!c_.options.fuse) return Obstacle::FusionOff;
    const Draft& d = drafts_[g];
    const i64 elements = node(n).outputs[0].spec.shape.elements();
    if (node(n).outputs.size() != 1) return Obstacle::SeveralResults;
    if (kind(n) == OpKind::Movement && !transparent(n)) return Obstacle::OtherOrder;
    if (node(n).op->info.indexed_inputs != 0 && reads_indexed(n, g))
      return Obstacle::ComputedPositions;
    if (reads_out_of_order(n, g)) return Obstacle::OtherOrder;
    if (closes_cycle(n, g)) return Obstacle::Cycle;
    const Shape& shape = node(n).outputs[0].spec.shape;
    const auto refined = [&](bool per_row) {
      return refine_for(drafts_[g], shape, per_row) ? Obstacle::None : Obstacle::OtherOrder;
    };
    if (d.group.kind == Group::Kind::Kernel) return Obstacle::OwnKernel;
    if (d.group.kind != Group::Kind::Reduce) {
      if (elements != d.group.domain.elements()) return Obstacle::OtherSize;
      if (d.group.kind == Group::Kind::Contract && delays(n, g)) return Obstacle::KeptApart;
      return refined(false);
    }
    // Per row: everything it reads in the group is per row. Per element: any, but not after slices.
    bool all_per_row = true, after = false;
    inspect(n, g, all_per_row, after);
    if (all_per_row && after && elements == rows_of(d.group)) return refined(true);
    if (elements != d.group.domain.elements()) return Obstacle::OtherSize;
    return after && d.split ? Obstacle::Sliced : refined(false);
  }

  // Notes why n stays out of group g, for those who ask.
  void refuse(u32 n, u32 g, Obstacle why) { refuse_reads(n, n, g, why); }
  void refuse_reads(u32 reader, u32 n, u32 g, Obstacle why) {
    if (why == Obstacle::None) return;
    for (Operand in : node(n).inputs) {
      if (in.is_leaf()) continue;
      if (is_virtual(in.node)) {
        refuse_reads(reader, in.node, g, why);
      } else if (group_of_[in.node] == g) {
        c_.obstacles.try_emplace({reader, in.node}, why);
      }
    }
  }

  bool reads_indexed(u32 n, u32 g) const {
    const Node& x = node(n);
    for (u32 i = 0; i < x.inputs.size(); ++i) {
      if (!x.op->info.reads_indexed(i) || x.inputs[i].is_leaf()) continue;
      if (reaches(x.inputs[i].node, g)) return true;
    }
    return false;
  }

  void inspect(u32 n, u32 g, bool& all_per_row, bool& after) const {
    for (Operand in : node(n).inputs) {
      if (in.is_leaf()) continue;
      if (is_virtual(in.node)) {
        inspect(in.node, g, all_per_row, after);
      } else if (group_of_[in.node] == g) {
        all_per_row = all_per_row && per_row_[in.node];
        after = after || follows_reduction_[in.node];
      }
    }
  }

  void place_pointwise(u32 n) {
    std::vector<u32> groups;
    candidates(n, apart(n), groups);
    // Prefer the group with the most to share: products, then reductions, then the latest.
    std::sort(groups.begin(), groups.end(), [&](u32 a, u32 b) {
      const auto rank = [&](u32 g) {
        const Group::Kind k = drafts_[g].group.kind;
        return k == Group::Kind::Contract ? 2 : k == Group::Kind::Reduce ? 1 : 0;
      };
      return rank(a) != rank(b) ? rank(a) > rank(b) : a > b;
    });
    u32 home = kNoGroup;
    for (u32 g : groups) {
      const Obstacle why = obstacle(n, g);
      refuse(n, g, why);
      if (why == Obstacle::None) {
        home = g;
        break;
      }
    }
    if (home == kNoGroup) home = new_group(Group::Kind::Pointwise, node(n).outputs[0].spec.shape);
    bool all_per_row = true, after = false;
    inspect(n, home, all_per_row, after);
    join(n, home);
    const Draft& d = drafts_[home];
    follows_reduction_[n] = after;
    per_row_[n] = d.group.kind == Group::Kind::Reduce && all_per_row && after &&
                  node(n).outputs[0].spec.shape.elements() == rows_of(d.group);
    if (!c_.options.fuse) return;
    for (u32 g : groups) {
      if (g != home && drafts_[g].alive) refuse(n, g, merge(home, g, n));
    }
  }

  // Joins group b into a where both run over the same elements; else says what is in the way.
  Obstacle merge(u32 a, u32 b, u32 through) {
    Draft& x = drafts_[a];
    Draft& y = drafts_[b];
    const bool pointwise_b = y.group.kind == Group::Kind::Pointwise &&
                             y.group.domain.elements() == x.group.domain.elements();
    const bool same_reduction =
        y.group.kind == Group::Kind::Reduce && x.group.kind == Group::Kind::Reduce &&
        y.group.domain == x.group.domain && y.group.axes == x.group.axes && !x.split && !y.split;
    const bool reduce_b =
        x.group.kind == Group::Kind::Pointwise && y.group.kind == Group::Kind::Reduce;
    if (y.group.kind == Group::Kind::Kernel) return Obstacle::OwnKernel;
    if (y.group.kind == Group::Kind::Contract) return Obstacle::NeedsWhole;
    if (reduce_b || !(pointwise_b || same_reduction)) {
      return y.group.kind == Group::Kind::Reduce ? Obstacle::OtherReduction : Obstacle::OtherSize;
    }
    if (reads_out_of_order(through, b)) return Obstacle::OtherOrder;
    if (x.group.kind == Group::Kind::Contract && !y.group.nodes.empty() && any_indexed(y.group))
      return Obstacle::ComputedPositions;
    if (merge_closes_cycle(a, b)) return Obstacle::Cycle;
    Draft both = x;
    for (u32 n : y.group.nodes) {
      if (!refine_for(both, node(n).outputs[0].spec.shape, per_row_[n]))
        return Obstacle::OtherOrder;
    }
    x.fine = both.fine;
    x.kept = both.kept;
    for (u32 n : y.group.nodes) {
      group_of_[n] = a;
      x.group.nodes.push_back(n);
    }
    std::sort(x.group.nodes.begin(), x.group.nodes.end());
    y.alive = false;
    y.group.nodes.clear();
    return Obstacle::None;
  }

  bool refine_for_members(Draft& d) const {
    for (u32 n : d.group.nodes) {
      if (!refine_for(d, node(n).outputs[0].spec.shape, per_row_[n])) return false;
    }
    return true;
  }

  bool any_indexed(const Group& g) const {
    return std::any_of(g.nodes.begin(), g.nodes.end(),
                       [&](u32 n) { return node(n).op->info.indexed_inputs != 0; });
  }

  void place_reduction(u32 n) {
    const Operand in = node(n).inputs[0];
    const Spec* spec = &graph_.spec(in);
    const Infer infer(node(n).op->name(), std::span(&spec, 1));
    const ReduceSpec reduce = node(n).op->reduce(infer, node(n).attr());
    u32 home = kNoGroup;
    if (c_.options.fuse && !in.is_leaf() && !is_virtual(in.node) && !sealed(in) &&
        !apart(in.node) && node(n).inputs.size() == 1) {
      const u32 g = group_of_[in.node];
      Draft& d = drafts_[g];
      if (d.group.kind == Group::Kind::Pointwise &&
          d.group.domain.elements() == spec->shape.elements()) {
        const Group before = d.group;
        d.group.kind = Group::Kind::Reduce;
        d.group.domain = spec->shape;
        d.group.axes = reduce.axes;
        d.split = is_split_reduction(c_.target, spec->shape, reduce.axes);
        start_refining(d);
        if (!refine_for_members(d)) {
          d.group = before;
          d.split = false;
          start_refining(d);
          OA_CHECK(refine_for_members(d));
          refuse(n, g, Obstacle::OtherOrder);
        } else {
          home = g;
        }
      } else if (d.group.kind == Group::Kind::Reduce && d.group.domain == spec->shape &&
                 d.group.axes == reduce.axes && !(d.split && follows_reduction_[in.node])) {
        home = g;
      } else {
        refuse(n, g, reduction_obstacle(d.group, spec->shape, reduce.axes));
      }
    } else if (c_.options.fuse) {
      home = sibling(n, in, spec->shape, reduce.axes);
    }
    if (home == kNoGroup) {
      home = new_group(Group::Kind::Reduce, spec->shape);
      drafts_[home].group.axes = reduce.axes;
      start_refining(drafts_[home]);
      drafts_[home].split = is_split_reduction(c_.target, spec->shape, reduce.axes);
    }
    join(n, home);
    follows_reduction_[n] = true;
    per_row_[n] = true;
  }

  // What keeps a reduction out of the group that makes its input.
  static Obstacle reduction_obstacle(const Group& g, const Shape& domain,
                                     const std::vector<u32>& axes) {
    switch (g.kind) {
      case Group::Kind::Kernel: return Obstacle::OwnKernel;
      case Group::Kind::Contract: return Obstacle::NeedsWhole;
      case Group::Kind::Pointwise: return Obstacle::OtherSize;
      case Group::Kind::Reduce: break;
    }
    return g.domain == domain && g.axes == axes ? Obstacle::Sliced : Obstacle::OtherReduction;
  }

  // A group that reduces the same value in memory over the same axes.
  u32 sibling(u32 n, Operand in, const Shape& domain, const std::vector<u32>& axes) const {
    for (u32 g = 0; g < drafts_.size(); ++g) {
      const Draft& d = drafts_[g];
      if (!d.alive || d.group.kind != Group::Kind::Reduce || d.group.domain != domain ||
          d.group.axes != axes) {
        continue;
      }
      for (u32 m : d.group.nodes) {
        if (kind(m) == OpKind::Reduction && node(m).inputs[0] == in && !closes_cycle(n, g))
          return g;
      }
    }
    return kNoGroup;
  }

  // --- What reaches memory ---

  f32 cone_cost(u32 n) const {
    f32 cost = node(n).op->info.cost;
    for (Operand in : node(n).inputs) {
      if (!in.is_leaf() && !c_.stored[in.node][in.output] && cost <= kCheap) {
        cost += kind(in.node) == OpKind::Reduction || kind(in.node) == OpKind::Contraction
                    ? kCheap + 1
                    : cone_cost(in.node);
      }
    }
    return cost;
  }

  // Whether p is computed again by a consumer that needs it at so many positions.
  bool may_recompute(u32 p, i64 positions) const {
    if (!c_.options.fuse || !is_pointwise(kind(p)) || !node(p).op->info.pure) return false;
    const u32 g = group_of_[p];
    if (drafts_[g].group.kind != Group::Kind::Pointwise) return false;
    const f32 cost = cone_cost(p);
    const bool grows = positions > node(p).outputs[0].spec.shape.elements();
    return cost <= kCheap || (uses_[p] == 1 && !grows);
  }

  void decide_stored() {
    for (u32 n = 0; n < graph_.nodes.size(); ++n) {
      if (!required_[n]) continue;
      for (size_t i = 0; i < node(n).outputs.size(); ++i) c_.stored[n][i] = true;
    }
    for (u32 n = 0; n < graph_.nodes.size(); ++n) {
      if (kind(n) == OpKind::Kernel) c_.stored[n].assign(c_.stored[n].size(), true);
    }
    // In graph order, so that a producer's fate is known before its consumers' costs are asked.
    for (u32 n = 0; n < graph_.nodes.size(); ++n) {
      if (is_virtual(n)) continue;
      const i64 positions = drafts_[group_of_[n]].group.domain.elements();
      for (Operand in : node(n).inputs) {
        // A contraction packs its operands once.
        read(in, n, kind(n) == OpKind::Contraction ? graph_.spec(in).shape.elements() : positions);
      }
    }
  }

  // Decides for what `consumer` reads at so many positions, directly or through other values.
  void read(Operand in, u32 consumer, i64 positions) {
    if (in.is_leaf() || c_.stored[in.node][in.output]) return;
    const bool follow = is_virtual(in.node);
    if (!follow && group_of_[in.node] == group_of_[consumer]) return;
    if (!follow && !may_recompute(in.node, positions)) {
      c_.stored[in.node][in.output] = true;
      return;
    }
    for (Operand below : node(in.node).inputs) read(below, consumer, positions);
  }

  // --- Output ---

  void finish() {
    c_.groups.clear();
    std::vector<u32> kept;
    for (u32 g = 0; g < drafts_.size(); ++g) {
      Draft& d = drafts_[g];
      if (!d.alive) continue;
      std::sort(d.group.nodes.begin(), d.group.nodes.end());
      d.group.outputs.clear();
      for (u32 n : d.group.nodes) {
        for (u32 i = 0; i < node(n).outputs.size(); ++i) {
          if (c_.stored[n][i]) d.group.outputs.push_back({n, i});
        }
      }
      if (d.group.outputs.empty()) continue;
      prune(d.group);
      kept.push_back(g);
    }
    order(kept);
  }

  // Drops members that no output needs.
  void prune(Group& g) const {
    std::vector<bool> needed(graph_.nodes.size());
    for (Operand o : g.outputs) needed[o.node] = true;
    for (size_t i = graph_.nodes.size(); i-- > 0;) {
      if (!needed[i]) continue;
      for (Operand in : node(static_cast<u32>(i)).inputs) {
        if (!in.is_leaf()) needed[in.node] = needed[in.node] || !c_.stored[in.node][in.output];
      }
    }
    std::erase_if(g.nodes, [&](u32 n) { return !needed[n]; });
    if (g.kind == Group::Kind::Reduce && std::none_of(g.nodes.begin(), g.nodes.end(), [&](u32 n) {
          return kind(n) == OpKind::Reduction;
        })) {
      g.kind = Group::Kind::Pointwise;
      g.axes.clear();
    }
  }

  // Topological order of the groups, by the first node that each could not run before.
  void order(const std::vector<u32>& kept) {
    std::vector<u8> state(drafts_.size(), 0);
    for (u32 g : kept) visit(g, state);
  }
  void visit(u32 g, std::vector<u8>& state) {
    if (state[g] == 2) return;
    OA_CHECK(state[g] == 0);  // a cycle among groups
    state[g] = 1;
    std::vector<bool> seen(graph_.nodes.size());
    for (u32 n : drafts_[g].group.nodes) visit_inputs(n, g, state, seen);
    state[g] = 2;
    c_.groups.push_back(drafts_[g].group);
  }
  void visit_inputs(u32 n, u32 g, std::vector<u8>& state, std::vector<bool>& seen) {
    if (seen[n]) return;
    seen[n] = true;
    for (Operand in : node(n).inputs) {
      if (in.is_leaf()) continue;
      if (c_.stored[in.node][in.output]) {
        if (group_of_[in.node] != g && group_of_[in.node] != kNoGroup)
          visit(group_of_[in.node], state);
        continue;
      }
      visit_inputs(in.node, g, state, seen);
    }
  }

  Compilation& c_;
  const Graph& graph_;
  std::vector<u32> group_of_;
  std::vector<bool> follows_reduction_, per_row_, required_;
  std::vector<u32> uses_;
  std::vector<Draft> drafts_;
};

}  // namespace

Operand Compilation::resolve(Operand o) const { return resolve_reshapes(*graph, o); }

void fusion(Compilation& c, StageRecord& record) {
  record.input_count = c.graph->nodes.size();
  c.obstacles.clear();
  Partition(c).run();
  record.output_count = c.groups.size();
  record.state = c.graph->nodes.empty()                    ? StageState::Inherited
                 : c.groups.size() < c.graph->nodes.size() ? StageState::Applied
                                                           : StageState::Analyzed;
  u64 stored = 0;
  for (const auto& outputs : c.stored)
    stored += static_cast<u64>(std::count(outputs.begin(), outputs.end(), true));
  record.reason = fmt::format("{} kernels, {} of {} values in memory, {} kept apart",
                              c.groups.size(), stored, c.graph->nodes.size(), c.sealed.size());
}

}  // namespace oa::graph
