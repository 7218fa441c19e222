#include "oa/kernel/interpret.h"

#include <algorithm>

#include "oa/core/error.h"
#include "oa/kernel/evaluate.h"
#include "oa/kernel/interpret_memory.h"
#include "oa/kernel/op_info.h"

namespace oa::kernel {
namespace {

using Mask = std::vector<u8>;    // by lane: 1 runs
using Cells = std::vector<u64>;  // lane-major components; a fragment's elements by subgroup

class Interpreter {
 public:
  Interpreter(const Kernel& k, std::span<const u64> args, DeviceMemory& memory, u32 groups,
              const InterpretOptions& options)
      : k_(k),
        args_(args),
        groups_(groups),
        options_(options),
        device_(memory),
        values_(k.instrs.size()) {
    if (args.size() != k.params) {
      invalid("kernel::interpret", "parameters of {}, got {}, expected {}", k.name, args.size(),
              k.params);
    }
    for (const SharedSlot& s : k.shared) shared_.emplace_back(s, options);
    for (const VarSlot& v : k.vars) vars_.push_back({v.type, {}, {}});
    place_.kernel = &k;
  }

  void run() {
    const Mask all(k_.width, 1);
    for (u32 g = 0; g < groups_; ++g) {
      place_.group = g;
      device_.next_epoch();
      for (SharedMemory& s : shared_) s.clear();
      for (Var& v : vars_) {
        v.cells.assign(cell_count(v.type), 0);
        v.written.assign(k_.width, false);
      }
      region(k_.body, all);
    }
  }

 private:
  struct Var {
    Type type;
    Cells cells;
    std::vector<bool> written;
  };

  u32 subgroups() const { return k_.width / k_.subgroup; }
  static u32 per_owner(const Type& t) { return t.is_fragment() ? t.rows * t.cols : t.lanes; }
  size_t cell_count(const Type& t) const {
    return size_t{t.is_fragment() ? subgroups() : k_.width} * per_owner(t);
  }

  const Type& type(ValueId id) const { return k_[id].type; }
  u64 get(ValueId id, u32 lane) const { return values_[id][lane]; }
  i64 integer(ValueId id, u32 lane) const {
    const u64 bits = get(id, lane);
    return type(id).scalar == Scalar::I32 ? static_cast<i32>(bits) : static_cast<i64>(bits);
  }

  [[noreturn]] void wrong(u32 lane, const std::string& what) {
    place_.lane = lane;
    report(place_, what);
  }

  static bool any(const Mask& m) { return std::ranges::find(m, 1) != m.end(); }
  static u32 first(const Mask& m) { return static_cast<u32>(std::ranges::find(m, 1) - m.begin()); }

  template <class Body>
  void each(const Mask& mask, Body body) {
    for (u32 lane = 0; lane < k_.width; ++lane) {
      if (!mask[lane]) continue;
      place_.lane = lane;
      body(lane);
    }
  }

  // Every lane of each subgroup that runs must be there.
  void whole_subgroups(const Mask& mask) {
    for (u32 lane = 0; lane < k_.width; ++lane) {
      const u32 begin = lane / k_.subgroup * k_.subgroup;
      if (mask[lane] != mask[begin]) {
        wrong(mask[lane] ? begin : lane, "the lane is not there, in divergent control flow");
      }
    }
  }

  void region(const Region& r, const Mask& mask) {
    for (ValueId id : r) {
      place_.instr = id;
      tick(mask);
      Cells& out = values_[id];
      if (out.empty() && yields_value(k_[id].op)) out.resize(cell_count(type(id)));
      step(id, k_[id], out, mask);
    }
  }

  void step(ValueId id, const Instr& i, Cells& out, const Mask& mask) {
    if (is_arithmetic(i.op)) return arithmetic(i, out, mask);
    if (i.op >= Op::Load && i.op <= Op::SharedAtomic) return memory(i, out, mask);
    if (i.op >= Op::FragFill && i.op <= Op::FragCast) {
      whole_subgroups(mask);
      return fragment(i, out, mask);
    }
    switch (i.op) {
      case Op::Const: return each(mask, [&](u32 l) { out[l] = i.imm; });
      case Op::Param:
        return each(mask, [&](u32 l) {
          out[l] = size_bytes(i.type.scalar) == 4 ? args_[i.imm] & 0xffffffffu : args_[i.imm];
        });
      case Op::LaneId: return each(mask, [&](u32 l) { out[l] = l; });
      case Op::GroupId: return each(mask, [&](u32 l) { out[l] = place_.group; });
      case Op::GroupCount: return each(mask, [&](u32 l) { out[l] = groups_; });
      case Op::VecBuild:
        return each(mask, [&](u32 l) {
          for (u32 c = 0; c < i.type.lanes; ++c) out[l * i.type.lanes + c] = get(i.args[c], l);
        });
      case Op::VecExtract:
        return each(mask,
                    [&](u32 l) { out[l] = values_[i.args[0]][l * type(i.args[0]).lanes + i.imm]; });
      case Op::VarLoad: return var_load(i, out, mask);
      case Op::VarStore: return var_store(i, mask);
      case Op::Shuffle:
      case Op::ShuffleXor:
      case Op::SubgroupAny:
      case Op::SubgroupAll: whole_subgroups(mask); return lanes(i, out, mask);
      case Op::Barrier: return barrier(i, mask);
      case Op::If: return branch(i, mask);
      case Op::For: return loop(id, i, out, mask);
      case Op::While: return loop(i, mask);
      default: return;  // Yield: its While looks at the operand
    }
  }

  void arithmetic(const Instr& i, Cells& out, const Mask& mask) {
    const u32 n = i.type.lanes;  // above 1 for Select and Bitcast
    const Scalar operand = type(i.args.back()).scalar;
    const u64* in[3] = {};
    u32 wide[3] = {};
    for (size_t a = 0; a < i.args.size(); ++a) {
      in[a] = values_[i.args[a]].data();
      wide[a] = type(i.args[a]).lanes;
    }
    for (u32 lane = 0; lane < k_.width; ++lane) {
      if (!mask[lane]) continue;
      for (u32 c = 0; c < n; ++c) {
        u64 args[3];
        for (size_t a = 0; a < i.args.size(); ++a) {
          args[a] = in[a][wide[a] == 1 ? lane : lane * n + c];
        }
        out[lane * n + c] = evaluate(i.op, i.type.scalar, operand, args);
      }
    }
  }

  // Loads, stores and atomics of both memories.
  void memory(const Instr& i, Cells& out, const Mask& mask) {
    const bool device = i.op <= Op::AtomicCas;
    const size_t at = device ? 1 : 0;  // operand: the index
    const auto read = [&](u32 l, i64 index, Access how) {
      return device ? device_.read(place_, get(i.args[0], l), index, i.elem, l, how)
                    : shared_[i.slot].read(place_, i.slot, index, l, how);
    };
    const auto write = [&](u32 l, i64 index, u64 value, Access how) {
      if (device) {
        device_.write(place_, get(i.args[0], l), index, i.elem, value, l, how);
      } else {
        shared_[i.slot].write(place_, i.slot, index, value, l, how);
      }
    };
    each(mask, [&](u32 l) {
      const i64 index = integer(i.args[at], l);
      switch (i.op) {
        case Op::Load:
        case Op::SharedLoad:
          aligned(index, i.type.lanes);
          for (u32 c = 0; c < i.type.lanes; ++c) {
            out[l * i.type.lanes + c] = read(l, index + c, Access::Read);
          }
          return;
        case Op::Store:
        case Op::SharedStore: {
          const u32 n = type(i.args[at + 1]).lanes;
          aligned(index, n);
          for (u32 c = 0; c < n; ++c) {
            write(l, index + c, values_[i.args[at + 1]][l * n + c], Access::Write);
          }
          return;
        }
        default: {
          const u64 old = read(l, index, Access::Atomic);
          const u64 operand = get(i.args[at + 1], l);
          const u64 next = i.op == Op::AtomicCas ? (old == operand ? get(i.args[3], l) : old)
                                                 : evaluate_atomic(static_cast<AtomicOp>(i.imm),
                                                                   i.elem, old, operand);
          write(l, index, next, Access::Atomic);
          out[l] = old;
        }
      }
    });
  }

  void aligned(i64 index, u32 n) {
    if (index % n) {
      wrong(place_.lane,
            fmt::format("index of a vector, got {}, expected a multiple of {}", index, n));
    }
  }

  void var_load(const Instr& i, Cells& out, const Mask& mask) {
    copy_var(vars_[i.slot].cells, out, vars_[i.slot].type, mask, [&](u32 lane) {
      if (!vars_[i.slot].written[lane]) wrong(lane, "reads a variable that was never written");
    });
  }

  void var_store(const Instr& i, const Mask& mask) {
    Var& v = vars_[i.slot];
    copy_var(values_[i.args[0]], v.cells, v.type, mask, [&](u32 lane) { v.written[lane] = true; });
  }

  template <class Note>
  void copy_var(const Cells& from, Cells& to, const Type& t, const Mask& mask, Note note) {
    if (t.is_fragment()) whole_subgroups(mask);
    const u32 n = per_owner(t);
    each(mask, [&](u32 lane) {
      note(lane);
      if (t.is_fragment() && lane % k_.subgroup) return;  // the first lane stands for all
      const size_t owner = t.is_fragment() ? lane / k_.subgroup : lane;
      std::copy_n(from.begin() + static_cast<i64>(owner * n), n,
                  to.begin() + static_cast<i64>(owner * n));
    });
  }

  void lanes(const Instr& i, Cells& out, const Mask& mask) {
    const Cells in = values_[i.args[0]];
    each(mask, [&](u32 l) {
      const u32 begin = l / k_.subgroup * k_.subgroup;
      if (i.op == Op::Shuffle) {
        const u64 source = get(i.args[1], l);
        if (source >= k_.subgroup) {
          wrong(l, fmt::format("source lane, got {}, expected below {}", source, k_.subgroup));
        }
        out[l] = in[begin + source];
      } else if (i.op == Op::ShuffleXor) {
        out[l] = in[begin + ((l - begin) ^ i.imm)];
      } else {
        const bool want = i.op == Op::SubgroupAny;
        const bool found = std::find(in.begin() + begin, in.begin() + begin + k_.subgroup,
                                     u64{want}) != in.begin() + begin + k_.subgroup;
        out[l] = found == want;
      }
    });
  }

  void barrier(const Instr& i, const Mask& mask) {
    for (u32 l = 0; l < k_.width; ++l) {
      if (!mask[l]) wrong(l, "the lane does not reach the barrier");
    }
    if (i.imm & kDeviceMemory) device_.next_epoch();
    if (i.imm & kSharedMemory) {
      for (SharedMemory& s : shared_) s.next_epoch();
    }
  }

  void branch(const Instr& i, const Mask& mask) {
    Mask yes = mask, no = mask;
    for (u32 l = 0; l < k_.width; ++l) {
      if (!mask[l]) continue;
      yes[l] = get(i.args[0], l) != 0;
      no[l] = !yes[l];
    }
    if (any(yes)) region(i.regions[0], yes);
    if (any(no)) region(i.regions[1], no);
  }

  void loop(ValueId id, const Instr& i, Cells& out, const Mask& mask) {
    const Scalar s = i.type.scalar;
    const u32 lead = first(mask);
    const u64 step = get(i.args[2], lead);
    each(mask, [&](u32 l) {
      if (get(i.args[2], l) != step) {
        wrong(l, fmt::format("the step differs between lanes, got {}, expected {}",
                             get(i.args[2], l), step));
      }
    });
    const u64 zero_step[] = {0, step};
    if (!evaluate(Op::Lt, Scalar::Bool, s, zero_step)) wrong(lead, "the step is not positive");
    Cells index(k_.width);
    for (u32 l = 0; l < k_.width; ++l) {
      if (mask[l]) index[l] = get(i.args[0], l);
    }
    Mask running = mask;
    while (true) {
      for (u32 l = 0; l < k_.width; ++l) {
        if (!running[l]) continue;
        const u64 test[] = {index[l], get(i.args[1], l)};
        running[l] = static_cast<u8>(evaluate(Op::Lt, Scalar::Bool, s, test));
      }
      if (!any(running)) return;
      for (u32 l = 0; l < k_.width; ++l) {
        if (running[l]) out[l] = index[l];
      }
      region(i.regions[0], running);
      place_.instr = id;
      tick(running);
      for (u32 l = 0; l < k_.width; ++l) {
        if (!running[l]) continue;
        const u64 sum[] = {index[l], step};
        const u64 next = evaluate(Op::Add, s, s, sum);
        const u64 order[] = {index[l], next};
        if (!evaluate(Op::Lt, Scalar::Bool, s, order)) wrong(l, "the index overflows its type");
        index[l] = next;
      }
    }
  }

  void loop(const Instr& i, const Mask& mask) {
    const ValueId self = place_.instr;
    Mask running = mask;
    while (true) {
      region(i.regions[0], running);
      const ValueId go = k_[i.regions[0].back()].args[0];
      for (u32 l = 0; l < k_.width; ++l) {
        if (running[l]) running[l] = get(go, l) != 0;
      }
      if (!any(running)) return;
      region(i.regions[1], running);
      place_.instr = self;
      tick(running);
    }
  }

  void tick(const Mask& mask) {
    steps_ += k_.width;
    if (steps_ > options_.max_steps) {
      wrong(first(mask), fmt::format("still running after {} steps", options_.max_steps));
    }
  }

  // Fragments: one matrix for each subgroup, elements held as the values that loads yield.
  void fragment(const Instr& i, Cells& out, const Mask& mask) {
    for (u32 g = 0; g < subgroups(); ++g) {
      const u32 lane = g * k_.subgroup;
      if (!mask[lane]) continue;
      place_.lane = lane;
      switch (i.op) {
        case Op::FragLoad:
        case Op::FragStore: fragment_memory(i, out, g); break;
        case Op::FragMulAdd: multiply(i, out, g); break;
        default: {
          const u32 n = per_owner(i.type);
          const u64 fill = i.op == Op::FragFill ? same(i.args[0], g, "value") : 0;
          for (u32 e = g * n; e < (g + 1) * n; ++e) out[e] = element(i, e, fill);
        }
      }
    }
  }

  // An operand that must agree in the lanes of subgroup g.
  u64 same(ValueId id, u32 g, const char* what) {
    const u32 begin = g * k_.subgroup;
    for (u32 l = begin; l < begin + k_.subgroup; ++l) {
      if (get(id, l) != get(id, begin)) {
        wrong(l, fmt::format("the {} differs between lanes of a subgroup", what));
      }
    }
    return get(id, begin);
  }

  static u64 rounded(Scalar s, u64 value) {
    return element_to_value(s, value_to_element(s, value));
  }

  u64 element(const Instr& i, u32 e, u64 fill) const {
    const Scalar s = i.type.scalar, v = value_scalar(s);
    if (i.op == Op::FragFill) return rounded(s, fill);
    const u64 a = values_[i.args[0]][e];
    if (i.op == Op::FragCast) {
      return rounded(s, cast_bits(v, value_scalar(type(i.args[0]).scalar), a));
    }
    const u64 args[] = {a, values_[i.args[1]][e]};
    return rounded(s, evaluate(i.op == Op::FragAdd ? Op::Add : Op::Mul, v, v, args));
  }

  void multiply(const Instr& i, Cells& out, u32 g) {
    const Type &a = type(i.args[0]), &b = type(i.args[1]), &c = i.type;
    const Scalar from = value_scalar(a.scalar), to = value_scalar(c.scalar);
    const u64* ma = &values_[i.args[0]][size_t{g} * a.rows * a.cols];
    const u64* mb = &values_[i.args[1]][size_t{g} * b.rows * b.cols];
    const u64* mc = &values_[i.args[2]][size_t{g} * c.rows * c.cols];
    u64* md = &out[size_t{g} * c.rows * c.cols];
    for (u32 row = 0; row < c.rows; ++row) {
      for (u32 col = 0; col < c.cols; ++col) {
        u64 sum = mc[row * c.cols + col];
        for (u32 n = 0; n < a.cols; ++n) {
          const u64 x = cast_bits(to, from, ma[row * a.cols + n]);
          const u64 y = cast_bits(to, from, mb[n * b.cols + col]);
          if (is_float(to)) {
            const u64 args[] = {x, y, sum};
            sum = evaluate(Op::Fma, to, to, args);
          } else {
            const u64 factors[] = {x, y};
            const u64 terms[] = {sum, evaluate(Op::Mul, to, to, factors)};
            sum = evaluate(Op::Add, to, to, terms);
          }
        }
        md[row * c.cols + col] = rounded(c.scalar, sum);
      }
    }
  }

  // Element `index` of a fragment in shared memory, whose cells may hold two.
  u64 shared_element(const Instr& i, i64 index) {
    SharedMemory& memory = shared_[i.slot];
    if (k_.shared[i.slot].elem == i.elem) {
      return memory.read(place_, i.slot, index, kManyLanes, Access::Read);
    }
    const u64 pair = memory.read(place_, i.slot, index >> 1, kManyLanes, Access::Read);
    return element_to_value(i.elem, pair >> (16 * (index & 1)) & 0xffff);
  }

  void fragment_memory(const Instr& i, Cells& out, u32 g) {
    const bool load = i.op == Op::FragLoad, device = i.slot == kNoSlot;
    const size_t at = device ? 1 : 0;
    const u64 address = device ? same(i.args[0], g, "address") : 0;
    same(i.args[at], g, "offset"), same(i.args[at + 1], g, "stride");
    const u32 lane = g * k_.subgroup;
    const i64 offset = integer(i.args[at], lane), stride = integer(i.args[at + 1], lane);
    const ValueId matrix = load ? place_.instr : i.args[at + 2];
    const Type& t = type(matrix);
    for (u32 row = 0; row < t.rows; ++row) {
      for (u32 col = 0; col < t.cols; ++col) {
        const size_t e = (size_t{g} * t.rows + row) * t.cols + col;
        const i64 index = offset + (i.imm ? col * stride + row : row * stride + col);
        if (load) {
          out[e] = device ? device_.read(place_, address, index, i.elem, kManyLanes, Access::Read)
                          : shared_element(i, index);
        } else if (device) {
          device_.write(place_, address, index, i.elem, values_[matrix][e], kManyLanes,
                        Access::Write);
        } else {
          shared_[i.slot].write(place_, i.slot, index, values_[matrix][e], kManyLanes,
                                Access::Write);
        }
      }
    }
  }

  const Kernel& k_;
  std::span<const u64> args_;
  u32 groups_;
  const InterpretOptions& options_;
  DeviceMemory& device_;
  std::vector<SharedMemory> shared_;
  std::vector<Var> vars_;
  std::vector<Cells> values_;
  Place place_;
  u64 steps_ = 0;
};

}  // namespace

void interpret(const Kernel& kernel, std::span<const u64> args, DeviceMemory& memory, u32 groups,
               const InterpretOptions& options) {
  Interpreter(kernel, args, memory, groups, options).run();
}

void interpret(const Kernel& kernel, std::span<const u64> args, std::span<const BufferView> buffers,
               u32 groups, const InterpretOptions& options) {
  DeviceMemory memory(buffers, DeviceMemory::granule_of(kernel), options);
  interpret(kernel, args, memory, groups, options);
}

}  // namespace oa::kernel
