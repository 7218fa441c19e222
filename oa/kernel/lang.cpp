// Recording of the kernel language: each function appends one instruction to the open region.
#include "oa/kernel/lang.h"

#include <bit>
#include <optional>
#include <unordered_map>

#include "oa/core/dtype.h"
#include "oa/core/error.h"
#include "oa/kernel/traced.h"

namespace oa::kernel {
namespace {

// The kernel being traced on this thread. Constants are shared within a region.
struct Tracer {
  Kernel kernel;
  Target target;
  struct Open {
    Region region;
    std::unordered_map<u64, ValueId> constants;
  };
  std::vector<Open> open;
  std::unordered_map<ValueId, FunctionMark> functions;  // by the value they end in
  std::vector<ValueId> extents;                         // parameters that get their numbers last
};

thread_local Tracer* current = nullptr;

Tracer& tracer(std::string_view what) {
  if (!current) fail(ErrorKind::FailedPrecondition, what, "used outside trace()");
  return *current;
}

ValueId append(Instr instr) {
  Tracer& t = tracer(name(instr.op));
  const auto id = static_cast<ValueId>(t.kernel.instrs.size());
  t.kernel.instrs.push_back(std::move(instr));
  t.open.back().region.push_back(id);
  return id;
}

Value append_value(Instr instr) {
  const Type type = instr.type;
  return Value(append(std::move(instr)), type);
}

Region record(const std::function<void()>& body) {
  Tracer& t = tracer("region");
  t.open.emplace_back();
  body();
  Region region = std::move(t.open.back().region);
  t.open.pop_back();
  return region;
}

[[noreturn]] void bad(Op op, std::string_view why) {
  fail(ErrorKind::Internal, fmt::format("kernel::{}", name(op)), "{}", why);
}

void same_types(Op op, const Value& a, const Value& b) {
  if (a.type != b.type) {
    bad(op, fmt::format("operand types differ, got {} and {}", name(a.scalar()), name(b.scalar())));
  }
}

Value raw_constant(Scalar s, u64 bits) {
  Tracer& t = tracer("constant");
  // A constant of an enclosing region is visible here too.
  const u64 key = (bits * 0x9e3779b97f4a7c15ull) ^ static_cast<u64>(s);
  for (auto& scope : t.open) {
    if (auto it = scope.constants.find(key); it != scope.constants.end()) {
      const Instr& found = t.kernel.instrs[it->second];
      if (found.imm == bits && found.type.scalar == s) return Value(it->second, found.type);
    }
  }
  const Value v = append_value({.op = Op::Const, .type = Type{s}, .imm = bits});
  t.open.back().constants[key] = v.id;
  return v;
}

Value param(Scalar s) {
  Tracer& t = tracer("param");
  return append_value({.op = Op::Param, .type = Type{s}, .imm = t.kernel.params++});
}

}  // namespace

const Instr& traced_instr(ValueId id) { return tracer("derivative").kernel.instrs[id]; }

const FunctionMark* traced_function(ValueId id) {
  const auto& functions = tracer("derivative").functions;
  const auto it = functions.find(id);
  return it == functions.end() ? nullptr : &it->second;
}

void mark_function(std::string_view function, std::initializer_list<Value> args,
                   const Value& result) {
  FunctionMark mark{.function = function};
  u32 n = 0;
  for (const Value& a : args) mark.args[n++] = a.id;
  tracer(function).functions[result.id] = mark;
}

void type_mismatch(const char* what, Scalar got, Scalar expected) {
  fail(ErrorKind::Internal, "kernel", "{} has the wrong type, got {}, expected {}", what, name(got),
       name(expected));
}

Value constant(Scalar s, f64 x) {
  switch (s) {
    case Scalar::F64: return raw_constant(s, std::bit_cast<u64>(x));
    case Scalar::F32: return raw_constant(s, std::bit_cast<u32>(static_cast<f32>(x)));
    case Scalar::F16: return raw_constant(s, f32_to_f16(static_cast<f32>(x)));
    case Scalar::BF16: return raw_constant(s, f32_to_bf16(static_cast<f32>(x)));
    default: return constant_int(s, static_cast<i64>(x));
  }
}

Value constant_int(Scalar s, i64 x) {
  if (is_float(s)) return constant(s, static_cast<f64>(x));
  if (s == Scalar::Bool) return raw_constant(s, x != 0);
  const u64 mask = size_bytes(s) == 8 ? ~0ull : (1ull << (8 * size_bytes(s))) - 1;
  return raw_constant(s, static_cast<u64>(x) & mask);
}

Value emit(Op op, Type type, std::initializer_list<Value> args, u64 imm) {
  Instr instr{.op = op, .type = type, .imm = imm};
  for (const Value& a : args) {
    if (!a.valid()) bad(op, "operand is an empty Value");
    instr.args.push_back(a.id);
  }
  return append_value(std::move(instr));
}

Value unary(Op op, const Value& a) { return emit(op, a.type, {a}); }

Value binary(Op op, const Value& a, const Value& b) {
  same_types(op, a, b);
  return emit(op, a.type, {a, b});
}

Value compare(Op op, const Value& a, const Value& b) {
  same_types(op, a, b);
  return emit(op, Type{Scalar::Bool}, {a, b});
}

Value cast(const Value& a, Scalar to) {
  if (a.scalar() == to) return a;
  return emit(Op::Cast, Type{to}, {a});
}

Value bitcast(const Value& a, Scalar to) {
  if (a.scalar() == to) return a;
  if (size_bytes(a.scalar()) != size_bytes(to)) bad(Op::Bitcast, "sizes differ");
  return emit(Op::Bitcast, Type{to, a.type.lanes}, {a});
}

Value select(const Value& cond, const Value& a, const Value& b) {
  same_types(Op::Select, a, b);
  if (cond.scalar() != Scalar::Bool) bad(Op::Select, "condition is not Bool");
  return emit(Op::Select, a.type, {cond, a, b});
}

Value fma(const Value& a, const Value& b, const Value& c) {
  same_types(Op::Fma, a, b);
  same_types(Op::Fma, a, c);
  return emit(Op::Fma, a.type, {a, b, c});
}

const Target& target() { return tracer("target").target; }
u32 width() { return tracer("width").kernel.width; }
u32 subgroup_width() { return tracer("subgroup_width").kernel.subgroup; }
U32 lane() { return U32(emit(Op::LaneId, Type{Scalar::U32}, {})); }
U32 group() { return U32(emit(Op::GroupId, Type{Scalar::U32}, {})); }
U32 group_count() { return U32(emit(Op::GroupCount, Type{Scalar::U32}, {})); }

Value extent(Scalar s, i64 x) {
  if (x == 0 || x == 1) return constant_int(s, x);
  Tracer& t = tracer("extent");
  const auto bits = static_cast<u64>(x);
  for (const ValueId id : t.extents) {
    const Instr& known = t.kernel.instrs[id];
    if (known.imm == bits && known.type.scalar == s) return Value(id, known.type);
  }
  const auto id = static_cast<ValueId>(t.kernel.instrs.size());
  t.kernel.instrs.push_back({.op = Op::Param, .type = Type{s}, .imm = bits});
  Region& outermost = t.open.front().region;
  outermost.insert(outermost.begin(), id);  // visible everywhere: a loop around may stand already
  t.extents.push_back(id);
  return Value(id, Type{s});
}

U64 param_u64() { return U64(param(Scalar::U64)); }
U32 param_u32() { return U32(param(Scalar::U32)); }
F32 param_f32() { return F32(param(Scalar::F32)); }
Buffer param_buffer(Scalar elem) { return Buffer(elem, param_u64()); }

Value Buffer::load(const Value& index, u32 lanes) const { return load(index, lanes, false); }

Value Buffer::load_constant(const Value& index, u32 lanes) const {
  return load(index, lanes, true);
}

Value Buffer::load(const Value& index, u32 lanes, bool constant) const {
  return append_value({.op = Op::Load,
                       .type = Type{value_scalar(elem_), static_cast<u8>(lanes)},
                       .elem = elem_,
                       .imm = constant,
                       .args = {address_.id, index.id}});
}

void Buffer::store(const Value& index, const Value& value) const { store(index, value, false); }

void Buffer::store_streaming(const Value& index, const Value& value) const {
  store(index, value, true);
}

void Buffer::store(const Value& index, const Value& value, bool streaming) const {
  if (value.scalar() != value_scalar(elem_)) {
    bad(Op::Store,
        fmt::format("value is {}, expected {}", name(value.scalar()), name(value_scalar(elem_))));
  }
  append({.op = Op::Store,
          .elem = elem_,
          .imm = streaming,
          .args = {address_.id, index.id, value.id}});
}

Value Buffer::atomic(AtomicOp op, const Value& index, const Value& value) const {
  return append_value({.op = Op::Atomic,
                       .type = value.type,
                       .elem = elem_,
                       .imm = static_cast<u64>(op),
                       .args = {address_.id, index.id, value.id}});
}

Value Buffer::compare_exchange(const Value& index, const Value& expected,
                               const Value& value) const {
  return append_value({.op = Op::AtomicCas,
                       .type = value.type,
                       .elem = elem_,
                       .args = {address_.id, index.id, expected.id, value.id}});
}

Value vec(std::initializer_list<Value> components) {
  return vec(std::span<const Value>(components.begin(), components.size()));
}

Value vec(std::span<const Value> components) {
  Instr instr{.op = Op::VecBuild,
              .type = Type{components[0].scalar(), static_cast<u8>(components.size())}};
  for (const Value& c : components) {
    same_types(Op::VecBuild, components[0], c);
    instr.args.push_back(c.id);
  }
  return append_value(std::move(instr));
}

Value extract(const Value& v, u32 component) {
  if (component >= v.type.lanes) bad(Op::VecExtract, "component out of range");
  if (v.type.lanes == 1) return v;
  return emit(Op::VecExtract, Type{v.scalar()}, {v}, component);
}

VarValue::VarValue(Type type) : type_(type) {
  Tracer& t = tracer("Var");
  slot_ = static_cast<u32>(t.kernel.vars.size());
  t.kernel.vars.push_back({type});
}

Value VarValue::get() const {
  return append_value({.op = Op::VarLoad, .type = type_, .slot = slot_});
}

void VarValue::set(const Value& v) const {
  if (v.type != type_) type_mismatch("variable", v.scalar(), type_.scalar);
  append({.op = Op::VarStore, .slot = slot_, .args = {v.id}});
}

Shared::Shared(Scalar elem, u32 count) : elem_(elem) {
  Tracer& t = tracer("Shared");
  slot_ = static_cast<u32>(t.kernel.shared.size());
  t.kernel.shared.push_back({elem, count});
}

Value Shared::load(const Value& index, u32 lanes) const {
  return append_value({.op = Op::SharedLoad,
                       .type = Type{value_scalar(elem_), static_cast<u8>(lanes)},
                       .elem = elem_,
                       .slot = slot_,
                       .args = {index.id}});
}

void Shared::store(const Value& index, const Value& value) const {
  if (value.scalar() != value_scalar(elem_)) {
    bad(Op::SharedStore,
        fmt::format("value is {}, expected {}", name(value.scalar()), name(value_scalar(elem_))));
  }
  append({.op = Op::SharedStore, .elem = elem_, .slot = slot_, .args = {index.id, value.id}});
}

Value Shared::atomic(AtomicOp op, const Value& index, const Value& value) const {
  return append_value({.op = Op::SharedAtomic,
                       .type = value.type,
                       .elem = elem_,
                       .slot = slot_,
                       .imm = static_cast<u64>(op),
                       .args = {index.id, value.id}});
}

void barrier(u64 scope) { append({.op = Op::Barrier, .imm = scope}); }

Value shuffle(const Value& v, const U32& source) { return emit(Op::Shuffle, v.type, {v, source}); }
Value shuffle_xor(const Value& v, u32 mask) { return emit(Op::ShuffleXor, v.type, {v}, mask); }
Bool subgroup_any(const Bool& v) { return Bool(emit(Op::SubgroupAny, v.type, {v})); }
Bool subgroup_all(const Bool& v) { return Bool(emit(Op::SubgroupAll, v.type, {v})); }

std::vector<Value> subgroup_reduce(std::span<const Value> v, const CombineTuple& combine) {
  std::vector<Value> acc(v.begin(), v.end());
  for (u32 mask = 1; mask < subgroup_width(); mask *= 2) {
    std::vector<Value> other;
    for (const Value& a : acc) other.push_back(shuffle_xor(a, mask));
    acc = combine(acc, other);
  }
  return acc;
}

std::vector<Value> group_reduce(std::span<const Value> v, const CombineTuple& combine) {
  std::vector<Value> acc = subgroup_reduce(v, combine);
  const u32 subgroups = width() / subgroup_width();
  if (subgroups == 1) {
    // All lanes have the total. On a CPU what follows is done once if one lane is said to give it.
    if (target().is_cpu()) {
      for (Value& a : acc) a = shuffle(a, U32(0));
    }
    return acc;
  }
  // One cell per subgroup; then every lane combines all cells in the same order.
  std::vector<Shared> cells;
  cells.reserve(acc.size());
  for (const Value& a : acc) cells.emplace_back(a.scalar(), subgroups);
  If(lane() % subgroup_width() == U32(0), [&] {
    for (size_t i = 0; i < acc.size(); ++i) cells[i][lane() / subgroup_width()] = acc[i];
  });
  barrier();
  std::vector<Value> total;
  for (auto& cell : cells) total.push_back(cell.load(U32(0)));
  for (u32 s = 1; s < subgroups; ++s) {
    std::vector<Value> next;
    for (auto& cell : cells) next.push_back(cell.load(U32(s)));
    total = combine(total, next);
  }
  barrier();  // the cells may be written again in the next round of a loop
  return total;
}

Value subgroup_reduce(const Value& v, const Combine& combine) {
  return subgroup_reduce(std::span(&v, 1), [&](std::span<const Value> a, std::span<const Value> b) {
    return std::vector<Value>{combine(a[0], b[0])};
  })[0];
}

Value group_reduce(const Value& v, const Combine& combine) {
  return group_reduce(std::span(&v, 1), [&](std::span<const Value> a, std::span<const Value> b) {
    return std::vector<Value>{combine(a[0], b[0])};
  })[0];
}

Type fragment_type(FragUse use, Scalar scalar, u32 rows, u32 cols) {
  return Type{scalar, 1, use, static_cast<u8>(rows), static_cast<u8>(cols)};
}

Value frag_fill(Type type, const Value& x) { return emit(Op::FragFill, type, {x}); }

Value frag_load(Type type, const Buffer& from, const Value& offset, const Value& stride,
                Layout layout) {
  return append_value({.op = Op::FragLoad,
                       .type = type,
                       .elem = from.elem(),
                       .imm = static_cast<u64>(layout),
                       .args = {from.address().id, offset.id, stride.id}});
}

Value frag_load(Type type, const Shared& from, const Value& offset, const Value& stride,
                Layout layout) {
  return append_value({.op = Op::FragLoad,
                       .type = type,
                       .elem = type.scalar,
                       .slot = from.slot(),
                       .imm = static_cast<u64>(layout),
                       .args = {offset.id, stride.id}});
}

void frag_store(const Buffer& to, const Value& offset, const Value& stride, Layout layout,
                const Value& f) {
  append({.op = Op::FragStore,
          .elem = to.elem(),
          .imm = static_cast<u64>(layout),
          .args = {to.address().id, offset.id, stride.id, f.id}});
}

void frag_store(const Shared& to, const Value& offset, const Value& stride, Layout layout,
                const Value& f) {
  append({.op = Op::FragStore,
          .elem = to.elem(),
          .slot = to.slot(),
          .imm = static_cast<u64>(layout),
          .args = {offset.id, stride.id, f.id}});
}

Value frag_mul_add(const Value& a, const Value& b, const Value& c) {
  return emit(Op::FragMulAdd, c.type, {a, b, c});
}
Value frag_add(const Value& a, const Value& b) { return emit(Op::FragAdd, a.type, {a, b}); }
Value frag_mul(const Value& a, const Value& b) { return emit(Op::FragMul, a.type, {a, b}); }
Value frag_cast(const Value& c, Scalar to) {
  Type type = c.type;
  type.scalar = to;
  return emit(Op::FragCast, type, {c});
}

void If(const Bool& cond, const std::function<void()>& then) {
  If(cond, then, [] {});
}

void If(const Bool& cond, const std::function<void()>& then,
        const std::function<void()>& otherwise) {
  Region yes = record(then);
  Region no = record(otherwise);
  Instr instr{.op = Op::If, .args = {cond.id}};
  instr.regions.push_back(std::move(yes));
  instr.regions.push_back(std::move(no));
  append(std::move(instr));
}

void For(const Value& begin, const Value& end, const Value& step,
         const std::function<void(const Value&)>& body, Unroll unroll) {
  same_types(Op::For, begin, end);
  same_types(Op::For, begin, step);
  // The index exists before its body, so the instruction is appended first and completed after.
  const Value index = append_value({.op = Op::For,
                                    .type = begin.type,
                                    .imm = unroll == Unroll::Never,
                                    .args = {begin.id, end.id, step.id}});
  Region region = record([&] { body(index); });
  tracer("For").kernel.instrs[index.id].regions.push_back(std::move(region));
}

void While(const std::function<Bool()>& cond, const std::function<void()>& body) {
  Region test = record([&] {
    const Bool go = cond();
    append({.op = Op::Yield, .args = {go.id}});
  });
  Region loop = record(body);
  Instr instr{.op = Op::While};
  instr.regions.push_back(std::move(test));
  instr.regions.push_back(std::move(loop));
  append(std::move(instr));
}

Kernel trace(std::string name, const Target& target, u32 width, const std::function<void()>& body) {
  if (width == 0 || !std::has_single_bit(width)) {
    invalid("kernel::trace", "width of {}, got {}, expected a power of two", name, width);
  }
  Tracer t;
  t.kernel.name = std::move(name);
  t.kernel.width = width;
  t.kernel.subgroup = target.is_cpu() ? width : std::min(width, target.subgroup);
  t.target = target;
  struct Restore {  // nested tracing and exceptions both put the outer kernel back
    Tracer* outer = current;
    ~Restore() { current = outer; }
  } restore;
  current = &t;
  t.open.emplace_back();
  body();
  t.kernel.body = std::move(t.open.back().region);
  for (const ValueId id : t.extents) {
    t.kernel.extents.push_back(t.kernel.instrs[id].imm);
    t.kernel.instrs[id].imm = t.kernel.params++;
  }
  return std::move(t.kernel);
}

}  // namespace oa::kernel
