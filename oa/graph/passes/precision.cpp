// Stage 6. Decides the type that each value is computed in, and how each product is summed: 16-bit
// floats are computed as F32 and rounded when stored, F64 only where the device has it, products by
// their precision's name as far as the device has the units. Stands before kernels are chosen,
// because products choose by these decisions.
#include <algorithm>
#include <map>

#include "oa/graph/compile.h"

namespace oa::graph {
namespace {

// F32 where the device lacks the units for what is asked.
Precision computable(Precision asked, const kernel::Target& target) {
  switch (asked) {
    case Precision::F32x3:  // the low parts of halves are subnormal more often than not
      return target.fragments && target.fragments_subnormal ? asked : Precision::F32;
    case Precision::F32x6:
      return target.fragments && target.fragments_bf16 ? asked : Precision::F32;
    default: return asked;
  }
}

std::string how(const ProductPrecision& p, const kernel::Target& target) {
  const bool units = target.fragments && (p.operands != DType::BF16 || target.fragments_bf16);
  if (p.operands == DType::F16 || p.operands == DType::BF16) {
    return fmt::format("{} operands, summed in f32 {}", token(p.operands),
                       units ? "by matrix units, where their tiles fit" : "after widening");
  }
  if (p.operands != DType::F32) return fmt::format("{} operands, plain", token(p.operands));
  if (p.computed == p.asked && p.computed == Precision::F32) return "f32, plain multiply-adds";
  if (p.computed == p.asked) {
    return fmt::format("{}, in f32 where tiles or the numbers at hand do not fit", token(p.asked));
  }
  return fmt::format("f32 instead of {}, for want of matrix units", token(p.asked));
}

}  // namespace

void precision(Compilation& c, StageRecord& record) {
  record.input_count = record.output_count = c.graph->nodes.size();
  u64 narrow = 0;
  c.products.clear();
  for (u32 n = 0; n < c.graph->nodes.size(); ++n) {
    const Node& node = c.graph->nodes[n];
    const auto check = [&](const Spec& spec) {
      if (spec.dtype != DType::F64 || c.target.f64) return;
      fail(ErrorKind::MissingCapability, node.op->name(),
           "{} has no 64-bit floats, expected f32 or the CPU", c.device.info().name);
    };
    for (Operand in : node.inputs) check(c.graph->spec(in));
    for (const Output& out : node.outputs) {
      narrow += out.spec.dtype == DType::F16 || out.spec.dtype == DType::BF16;
      check(out.spec);
    }
    if (node.op->info.kind != OpKind::Contraction) continue;
    const Spec* specs[2] = {&c.graph->spec(node.inputs[0]), &c.graph->spec(node.inputs[1])};
    const ContractSpec spec = node.op->contract(Infer(node.op->name(), specs), node.attr());
    ProductPrecision p{.node = n,
                       .operands = specs[0]->dtype,
                       .asked = spec.precision,
                       .computed = computable(spec.precision, c.target)};
    p.how = how(p, c.target);
    c.products.push_back(std::move(p));
  }
  const bool changed = std::any_of(c.products.begin(), c.products.end(),
                                   [](const auto& p) { return p.computed != p.asked; });
  record.state = c.graph->nodes.empty() ? StageState::Inherited
                 : changed              ? StageState::Applied
                                        : StageState::Analyzed;
  record.reason = fmt::format("{} values are stored in 16 bits and computed in 32", narrow);
  std::map<std::string, u32> ways;
  for (const ProductPrecision& p : c.products) ++ways[p.how];
  for (const auto& [way, count] : ways) {
    record.reason += fmt::format("; {} product{} {}", count, count == 1 ? "" : "s", way);
  }
}

}  // namespace oa::graph
