// Stage 7. Writes the kernels of every group with the generator of its kind, and runs equal kernels
// that do not depend on each other side by side; a GPU gets them in as few steps as possible.
// Stands after fusion; a generator that refuses a group sends the pipeline back there. Where
// several kernels compute the same bits, graphics cards try them once.
#include "oa/graph/codegen/contract_matrix_split.h"
#include "oa/graph/compile.h"
#include "oa/graph/kernel_trials.h"
#include "oa/graph/order.h"

namespace oa::graph {
namespace {

// Of the launches of a group, the trial was about the one with most of the arithmetic.
void tell_trial(Launches& launches, size_t first, const std::string& answer) {
  if (answer.empty()) return;
  Launch* most = nullptr;
  for (size_t i = first; i < launches.list.size(); ++i) {
    Launch& l = launches.list[i];
    if (most == nullptr || l.flops > most->flops) most = &l;
  }
  if (most != nullptr) most->trial = answer;
}

}  // namespace

void kernel_selection(Compilation& c, StageRecord& record) {
  record.input_count = c.groups.size();
  c.launches = {};
  DeviceTrials trials(*c.graph, c.device);
  SplitPool splits;
  size_t next = 0;
  for (u32 g = 0; g < c.groups.size(); ++g) {
    const Group& group = c.groups[g];
    i64 elements = 0;
    for (Operand o : group.outputs) elements += c.graph->spec(o).shape.elements();
    if (elements == 0) continue;  // nothing to compute
    const LowerInput in{*c.graph, group, c.target, c.stored, c.products, &trials};
    switch (group.kind) {
      case Group::Kind::Pointwise: lower_pointwise(in, c.launches); break;
      case Group::Kind::Reduce: lower_reduce(in, c.launches); break;
      case Group::Kind::Contract: lower_contract(in, splits, c.launches); break;
      case Group::Kind::Kernel: lower_kernel(in, c.launches); break;
    }
    tell_trial(c.launches, next, trials.take_answer());
    for (; next < c.launches.list.size(); ++next) {
      c.launches.list[next].parts = {g};
      c.launches.list[next].pass_extents();
    }
  }
  if (c.options.fuse) merge_launches(c.launches);
  order_launches(c);
  record.output_count = c.launches.list.size();
  record.state = c.groups.empty() ? StageState::Inherited : StageState::Applied;
  record.reason = fmt::format("{} kernels written for {} groups, {} launches", next,
                              c.groups.size(), c.launches.list.size());
  if (trials.made() + trials.recalled() > 0) {
    record.reason += fmt::format("; {} kernels chosen by trial now, {} by earlier ones",
                                 trials.made(), trials.recalled());
  }
}

}  // namespace oa::graph
