// Horizontal merging: launches of one kernel on different memory become one dispatch, whose
// workgroups find their instance by their number.
#include <algorithm>
#include <unordered_map>

#include "oa/graph/plan.h"
#include "oa/kernel/hash.h"

namespace oa::graph {
namespace {

using kernel::Instr;
using kernel::Op;
using kernel::ValueId;

constexpr size_t kMaxInstances = 64;  // each costs a few uniform selects per workgroup

// Appends instructions to a kernel that is put together by hand.
class Assembler {
 public:
  explicit Assembler(kernel::Kernel& k) : k_(k) {}
  ValueId add(Instr instr) {
    k_.instrs.push_back(std::move(instr));
    k_.body.push_back(static_cast<ValueId>(k_.instrs.size() - 1));
    return k_.body.back();
  }

 private:
  kernel::Kernel& k_;
};

// The kernel of `count` instances: the parameters of all of them one behind the other, then the
// first workgroup of instances 1 .. count-1.
kernel::Kernel instances(const kernel::Kernel& one, u32 count) {
  kernel::Kernel k;
  k.name = one.name + "_merged";
  k.width = one.width;
  k.subgroup = one.subgroup;
  k.vars = one.vars;
  k.params = one.params * count + count - 1;
  Assembler code(k);
  const kernel::Type u32_type{kernel::Scalar::U32}, bool_type{kernel::Scalar::Bool};
  const ValueId group = code.add({.op = Op::GroupId, .type = u32_type});
  std::vector<ValueId> reached(count);  // the workgroup belongs to this instance or a later one
  ValueId start = code.add({.op = Op::Const, .type = u32_type, .imm = 0});
  for (u32 i = 1; i < count; ++i) {
    const ValueId first =
        code.add({.op = Op::Param, .type = u32_type, .imm = one.params * count + i - 1});
    reached[i] = code.add({.op = Op::Ge, .type = bool_type, .args = {group, first}});
    start = code.add({.op = Op::Select, .type = u32_type, .args = {reached[i], first, start}});
  }
  const ValueId local = code.add({.op = Op::Sub, .type = u32_type, .args = {group, start}});
  // Each parameter of the one kernel is chosen among the instances'.
  std::vector<ValueId> replaced(one.instrs.size(), kernel::kNoValue);
  for (const ValueId id : one.body) {
    const Instr& instr = one.instrs[id];
    if (instr.op == Op::GroupId) replaced[id] = local;
    if (instr.op != Op::Param) continue;
    ValueId value = code.add({.op = Op::Param, .type = instr.type, .imm = instr.imm});
    for (u32 i = 1; i < count; ++i) {
      const ValueId other = code.add({.op = Op::Param,
                                      .type = instr.type,
                                      .imm = static_cast<u64>(one.params) * i + instr.imm});
      value = code.add({.op = Op::Select, .type = instr.type, .args = {reached[i], other, value}});
    }
    replaced[id] = value;
  }
  const auto shift = static_cast<ValueId>(k.instrs.size());
  const auto moved = [&](ValueId id) {
    return replaced[id] != kernel::kNoValue ? replaced[id] : id + shift;
  };
  for (const Instr& instr : one.instrs) {
    Instr copy = instr;
    for (ValueId& a : copy.args) a = moved(a);
    for (kernel::Region& region : copy.regions) {
      for (ValueId& id : region) id += shift;
    }
    k.instrs.push_back(std::move(copy));
  }
  for (const ValueId id : one.body) {
    if (replaced[id] == kernel::kNoValue) k.body.push_back(id + shift);
  }
  return k;
}

// Parameters and the workgroup's number stand in the outermost region of a mergeable kernel.
bool can_merge(const Launch& l) {
  if (!l.mergeable || !l.kernel.shared.empty() || l.groups == 0) return false;
  size_t outside = 0;
  for (const Instr& i : l.kernel.instrs) {
    if (i.op == Op::GroupCount) return false;
    outside += i.op == Op::Param || i.op == Op::GroupId;
  }
  const size_t inside = static_cast<size_t>(
      std::count_if(l.kernel.body.begin(), l.kernel.body.end(), [&](ValueId id) {
        return l.kernel.instrs[id].op == Op::Param || l.kernel.instrs[id].op == Op::GroupId;
      }));
  return inside == outside;
}

bool same_memory(const ArgRef& a, const ArgRef& b) {
  if (a.kind != b.kind) return false;
  if (a.kind == ArgRef::Kind::Value) return a.operand == b.operand;
  return a.kind == ArgRef::Kind::Temp && a.temp == b.temp;
}

// `later` must stay behind `earlier`.
bool depends(const Launch& later, const Launch& earlier) {
  for (const ArgRef& x : later.args) {
    for (const ArgRef& y : earlier.args) {
      if ((x.write || y.write) && !(x.part && y.part) && same_memory(x, y)) return true;
    }
  }
  return false;
}

Launch merge(const std::vector<Launch*>& parts) {
  Launch all;
  const auto count = static_cast<u32>(parts.size());
  all.kernel = instances(parts[0]->kernel, count);
  all.label = fmt::format("{} x {}", parts[0]->label, count);
  std::vector<ArgRef> starts;
  for (const Launch* part : parts) {
    if (part != parts[0]) starts.push_back(ArgRef::number(all.groups));
    all.groups += part->groups;
    all.flops += part->flops;
    all.args.insert(all.args.end(), part->args.begin(), part->args.end());
    all.in_place.insert(all.in_place.end(), part->in_place.begin(), part->in_place.end());
  }
  all.args.insert(all.args.end(), starts.begin(), starts.end());
  return all;
}

}  // namespace

void merge_launches(Launches& launches, std::vector<u32>& launch_group) {
  std::vector<Launch>& list = launches.list;
  const size_t n = list.size();
  std::vector<Hash128> key(n);
  std::unordered_map<Hash128, u32> uses;
  for (size_t i = 0; i < n; ++i) {
    // Checks have codes of their own, so launches that make some stay apart.
    if (!can_merge(list[i]) || !list[i].checks.empty()) continue;
    key[i] = kernel::hash(list[i].kernel);
    ++uses[key[i]];
  }
  std::vector<bool> taken(n);
  std::vector<Launch> merged;
  std::vector<u32> groups;
  for (size_t i = 0; i < n; ++i) {
    if (taken[i]) continue;
    std::vector<Launch*> parts = {&list[i]};
    u64 total_groups = list[i].groups;
    if (key[i] != Hash128{} && uses[key[i]] > 1) {
      // A later launch moves up here if nothing that stays between stands in its way.
      std::vector<const Launch*> between = {&list[i]};
      for (size_t j = i + 1; j < n && parts.size() < kMaxInstances; ++j) {
        if (taken[j]) continue;
        const bool free = std::none_of(between.begin(), between.end(),
                                       [&](const Launch* b) { return depends(list[j], *b); });
        if (free && key[j] == key[i] && total_groups + list[j].groups < 0xffffffffull) {
          parts.push_back(&list[j]);
          total_groups += list[j].groups;
          taken[j] = true;
        }
        between.push_back(&list[j]);
      }
    }
    groups.push_back(launch_group[i]);
    merged.push_back(parts.size() == 1 ? std::move(list[i]) : merge(parts));
  }
  list = std::move(merged);
  launch_group = std::move(groups);
}

}  // namespace oa::graph
