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

constexpr size_t kMaxInstances = 128;  // each makes the kernel a little longer

// The kernel of `count` instances: the parameters of all of them one behind the other, then the
// first workgroup of instances 1 .. count-1. A workgroup halves the instances by uniform branches
// until one is left, and puts that one's parameters into variables.
class Instances {
 public:
  Instances(const kernel::Kernel& one, u32 count) : one_(one), count_(count) {
    k_.name = one.name + "_merged";
    k_.width = one.width;
    k_.subgroup = one.subgroup;
    k_.vars = one.vars;
    k_.params = one.params * count + count - 1;
  }

  kernel::Kernel build() {
    kernel::Region body;
    group_ = add(body, {.op = Op::GroupId, .type = kU32});
    start_ = add_var(kU32);
    for (const ValueId id : one_.body) {
      const Instr& instr = one_.instrs[id];
      if (instr.op == Op::Param) params_.push_back({id, add_var(instr.type)});
    }
    choose(body, 0, count_);
    const ValueId start = add(body, {.op = Op::VarLoad, .type = kU32, .slot = start_});
    const ValueId local = add(body, {.op = Op::Sub, .type = kU32, .args = {group_, start}});
    std::vector<ValueId> replaced(one_.instrs.size(), kernel::kNoValue);
    for (const auto& [id, slot] : params_) {
      replaced[id] = add(body, {.op = Op::VarLoad, .type = one_.instrs[id].type, .slot = slot});
    }
    for (const ValueId id : one_.body) {
      if (one_.instrs[id].op == Op::GroupId) replaced[id] = local;
    }
    append_one(body, replaced);
    k_.body = std::move(body);
    return std::move(k_);
  }

 private:
  static constexpr kernel::Type kU32{kernel::Scalar::U32}, kBool{kernel::Scalar::Bool};

  ValueId add(kernel::Region& region, Instr instr) {
    k_.instrs.push_back(std::move(instr));
    region.push_back(static_cast<ValueId>(k_.instrs.size() - 1));
    return region.back();
  }
  u32 add_var(kernel::Type type) {
    k_.vars.push_back({type});
    return static_cast<u32>(k_.vars.size() - 1);
  }

  // The first workgroup of an instance.
  ValueId first_of(kernel::Region& region, u32 instance) {
    if (instance == 0) return add(region, {.op = Op::Const, .type = kU32, .imm = 0});
    return add(region, {.op = Op::Param, .type = kU32, .imm = one_.params * count_ + instance - 1});
  }

  // The workgroup belongs to one of the instances begin .. end-1.
  void choose(kernel::Region& region, u32 begin, u32 end) {
    if (end - begin > 1) {
      const u32 middle = begin + (end - begin) / 2;
      const ValueId first = first_of(region, middle);
      const ValueId later = add(region, {.op = Op::Ge, .type = kBool, .args = {group_, first}});
      kernel::Region upper, lower;
      choose(upper, middle, end);
      choose(lower, begin, middle);
      Instr branch{.op = Op::If, .args = {later}};
      branch.regions = {std::move(upper), std::move(lower)};
      add(region, std::move(branch));
      return;
    }
    add(region, {.op = Op::VarStore, .slot = start_, .args = {first_of(region, begin)}});
    for (const auto& [id, slot] : params_) {
      const Instr& p = one_.instrs[id];
      const ValueId value = add(
          region,
          {.op = Op::Param, .type = p.type, .imm = static_cast<u64>(one_.params) * begin + p.imm});
      add(region, {.op = Op::VarStore, .slot = slot, .args = {value}});
    }
  }

  void append_one(kernel::Region& body, const std::vector<ValueId>& replaced) {
    const auto shift = static_cast<ValueId>(k_.instrs.size());
    const auto moved = [&](ValueId id) {
      return replaced[id] != kernel::kNoValue ? replaced[id] : id + shift;
    };
    for (const Instr& instr : one_.instrs) {
      Instr copy = instr;
      for (ValueId& a : copy.args) a = moved(a);
      for (kernel::Region& region : copy.regions) {
        for (ValueId& id : region) id += shift;
      }
      k_.instrs.push_back(std::move(copy));
    }
    for (const ValueId id : one_.body) {
      if (replaced[id] == kernel::kNoValue) body.push_back(id + shift);
    }
  }

  const kernel::Kernel& one_;
  u32 count_;
  kernel::Kernel k_;
  ValueId group_ = kernel::kNoValue;
  u32 start_ = 0;                                // variable: first workgroup of the own instance
  std::vector<std::pair<ValueId, u32>> params_;  // of the one kernel, and their variables
};

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
  all.kernel = Instances(parts[0]->kernel, count).build();
  all.label = fmt::format("{} x {}", parts[0]->label, count);
  all.choice = fmt::format("{}; {} equal kernels side by side", parts[0]->choice, count);
  std::vector<ArgRef> starts;
  for (const Launch* part : parts) {
    if (part != parts[0]) starts.push_back(ArgRef::number(all.groups));
    all.groups += part->groups;
    all.flops += part->flops;
    all.args.insert(all.args.end(), part->args.begin(), part->args.end());
    for (const Launch::InPlace& p : part->in_place) {
      all.in_place.push_back({p.operand, all.instances - 1});
    }
    if (part != parts.back()) ++all.instances;
    all.parts.insert(all.parts.end(), part->parts.begin(), part->parts.end());
  }
  all.args.insert(all.args.end(), starts.begin(), starts.end());
  return all;
}

}  // namespace

void merge_launches(Launches& launches) {
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
    merged.push_back(parts.size() == 1 ? std::move(list[i]) : merge(parts));
  }
  list = std::move(merged);
}

}  // namespace oa::graph
