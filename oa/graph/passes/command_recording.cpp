// Stage 11. Compiles the kernels and writes the flat program: dispatches, and where each
// parameter's value comes from at a run.
#include <unordered_map>

#include "oa/graph/program.h"

namespace oa::graph {
namespace {

Program::Arg address_of(const Compilation& c, Operand o) {
  using Kind = Program::Arg::Kind;
  if (o.is_leaf()) return {.kind = Kind::Leaf, .index = o.output};
  const Place& p = c.places[o.node][o.output];
  switch (p.kind) {
    case Place::Kind::Leaf: return {.kind = Kind::Leaf, .index = p.index};
    case Place::Kind::Result: return {.kind = Kind::Result, .index = p.index};
    case Place::Kind::Arena: break;
  }
  return {.kind = Kind::Arena, .value = p.offset};
}

}  // namespace

void command_recording(Compilation& c, StageRecord& record) {
  auto program = std::make_shared<Program>();
  std::vector<const kernel::Kernel*> kernels;
  for (const Launch& l : c.launches.list) kernels.push_back(&l.kernel);
  const auto executables = c.device.compile(kernels);
  for (u32 l = 0; l < c.launches.list.size(); ++l) {
    const Launch& launch = c.launches.list[l];
    program->steps_.push_back({.kernel = executables[l],
                               .groups = launch.groups,
                               .first_arg = static_cast<u32>(program->args_.size()),
                               .arg_count = static_cast<u32>(launch.args.size()),
                               .barrier = c.barriers[l],
                               .flops = launch.flops,
                               .bytes = traffic(c, launch).total(),
                               .label = launch.label});
    const u64 first_check = program->checks_.size() + 1;  // code 0 means no failure
    for (u32 node : launch.checks) {
      const Node& n = c.graph->nodes[node];
      std::vector<const Spec*> specs;
      for (Operand in : n.inputs) specs.push_back(&c.graph->spec(in));
      const Infer infer(n.op->name(), specs);
      program->checks_.push_back({std::string(n.op->name()), n.op->index_limit(infer, n.attr())});
    }
    for (const ArgRef& a : launch.args) {
      Program::Arg arg;
      switch (a.kind) {
        case ArgRef::Kind::Value: arg = address_of(c, a.operand); break;
        case ArgRef::Kind::Temp:
          arg = {.kind = Program::Arg::Kind::Arena, .value = c.temp_offsets[a.temp]};
          break;
        case ArgRef::Kind::Scalar:
          arg = {.kind = Program::Arg::Kind::Scalar, .index = a.scalar, .value = a.immediate};
          break;
        case ArgRef::Kind::Status: arg = {.kind = Program::Arg::Kind::Status}; break;
        case ArgRef::Kind::CheckBase:
          arg = {.kind = Program::Arg::Kind::CheckBase, .value = first_check};
          break;
        case ArgRef::Kind::Immediate:
          arg = {.kind = Program::Arg::Kind::Immediate, .value = a.immediate};
          break;
      }
      program->args_.push_back(arg);
    }
  }
  for (u32 i = 0; i < c.graph->scalars.size(); ++i) {
    program->scalars_.emplace_back(c.scalar_sources[i], c.graph->scalars[i].bits());
  }
  for (Operand r : c.results) {
    const Operand value = c.resolve(r);
    Program::Result result{.spec = c.graph->spec(r)};
    const Program::Arg at = address_of(c, value);
    result.shares_leaf = at.kind == Program::Arg::Kind::Leaf;
    result.storage = at.index;
    if (!result.shares_leaf && at.index == program->storage_bytes_.size()) {
      program->storage_bytes_.push_back(static_cast<u64>(result.spec.shape.elements()) *
                                        size_bytes(result.spec.dtype));
    }
    program->results_.push_back(std::move(result));
  }
  program->arena_bytes_ = c.arena_bytes;
  c.program = std::move(program);
  record.input_count = c.launches.list.size();
  record.output_count = c.program->steps().size();
  record.state = c.launches.list.empty() ? StageState::Inherited : StageState::Applied;
  record.reason = fmt::format("{} dispatches with {} parameters recorded",
                              c.program->steps().size(), c.program->args_.size());
}

}  // namespace oa::graph
