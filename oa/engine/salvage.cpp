// What is left of a batch that could not be compiled or found no memory: as if its operations had
// run one by one, the one that fails has no result, and nothing in place is replaced after it.
// Values that do not depend on any of this are computed.
#include "oa/engine/engine_core.h"

namespace oa {
namespace {

using graph::Graph;
using graph::kNoNode;
using graph::Node;

constexpr int kMostFailures = 8;  // operations of one batch; beyond that all of it is lost

// A value of the batch that somebody holds.
graph::Tensor* any_holder(const Graph& all) {
  for (const Node& node : all.nodes) {
    for (const graph::Output& out : node.outputs) {
      if (out.holder) return out.holder;
    }
  }
  return nullptr;
}

// The nodes of `all` before `end` that are not lost, as a graph. Their holders are noted in it, but
// know nothing of it.
class Part {
 public:
  Part(const Graph& all, const std::vector<bool>& lost, size_t end)
      : graph_(std::make_unique<Graph>(all.recorder())), ids_(all.nodes.size(), kNoNode) {
    graph_->leaves = all.leaves;
    for (u32 n = 0; n < end; ++n) {
      if (lost[n]) continue;
      Node node = all.nodes[n];
      for (graph::Operand& in : node.inputs) {
        if (!in.is_leaf()) in.node = ids_[in.node];
      }
      const size_t next =
          n + 1 < all.nodes.size() ? all.nodes[n + 1].first_scalar : all.scalars.size();
      node.first_scalar = static_cast<u32>(graph_->scalars.size());
      graph_->scalars.insert(graph_->scalars.end(), all.scalars.begin() + all.nodes[n].first_scalar,
                             all.scalars.begin() + static_cast<std::ptrdiff_t>(next));
      ids_[n] = static_cast<u32>(graph_->nodes.size());
      graph_->nodes.push_back(std::move(node));
    }
  }
  // Compiles the last node for its own sake: one that nobody holds would be dropped, and its
  // failure blamed on what reads it.
  void hold_last(graph::Tensor* holder) {
    if (graph_->nodes.empty()) return;
    for (graph::Output& out : graph_->nodes.back().outputs) {
      if (!out.holder) out.holder = holder;
    }
  }

  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;
  ~Part() { forget(); }

  const Graph& graph() const { return *graph_; }
  // The graph, with its holders in it and no longer in `all`.
  Graph& take(Graph& all) {
    forget();
    for (u32 n = 0; n < all.nodes.size(); ++n) {
      if (ids_[n] == kNoNode) continue;
      for (u32 i = 0; i < all.nodes[n].outputs.size(); ++i) {
        graph::Tensor* holder = all.nodes[n].outputs[i].holder;
        if (holder) holder->bind_node(graph_.get(), ids_[n], i);
      }
    }
    taken_ = true;
    return *graph_;
  }

 private:
  void forget() {
    if (taken_) return;
    for (Node& node : graph_->nodes) {
      for (graph::Output& out : node.outputs) out.holder = nullptr;
    }
  }
  std::unique_ptr<Graph> graph_;
  std::vector<u32> ids_;  // of the nodes of `all`, in this graph
  bool taken_ = false;
};

// Adds what depends on a lost node, and replacements in place from `failed` on.
void lose_dependents(const Graph& all, size_t failed, std::vector<bool>& lost) {
  lost[failed] = true;
  for (size_t n = failed + 1; n < all.nodes.size(); ++n) {
    bool depends = all.nodes[n].target != kNoNode;
    for (const graph::Operand& in : all.nodes[n].inputs) {
      depends = depends || (!in.is_leaf() && lost[in.node]);
    }
    if (depends) lost[n] = true;
  }
}

}  // namespace

void EngineCore::salvage(Graph& failed) noexcept {
  try {
    std::vector<bool> lost(failed.nodes.size(), false);
    graph::Tensor* const holder = any_holder(failed);
    const auto works = [&](size_t end) {
      try {
        Part part(failed, lost, end);
        if (end < failed.nodes.size()) part.hold_last(holder);
        (void)ready_for(part.graph());
        return true;
      } catch (const Error&) {
        return false;
      }
    };
    for (int i = 0; i < kMostFailures; ++i) {
      size_t good = 0, bad = failed.nodes.size();
      while (bad - good > 1) {
        const size_t middle = good + (bad - good) / 2;
        (works(middle) ? good : bad) = middle;
      }
      if (bad == 0) return;
      lose_dependents(failed, bad - 1, lost);
      if (!works(failed.nodes.size())) continue;
      Part rest(failed, lost, failed.nodes.size());
      Graph& graph = rest.take(failed);
      if (!graph.nodes.empty()) run(graph, ready_for(graph), false);
      return;
    }
  } catch (...) {
    // The error that led here is the one to tell.
  }
}

}  // namespace oa
