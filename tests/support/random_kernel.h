// Random structured kernels with one right answer, to compare executions of the same program:
// interpreter, simplified program, native code, Vulkan.
//
// A program is free of races and of results that ir.h leaves open, except the bits of NaNs; compare
// with RandomProgram::Memory::same().
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "oa/core/dtype.h"
#include "oa/kernel/interpret.h"
#include "oa/kernel/lang.h"

namespace oa::testing {

using namespace oa::kernel;  // NOLINT: the language is made to be read without prefixes

// Seeds of a test: 0 .. count-1, or what OA_RANDOM_SEEDS=from,count asks for.
inline std::pair<u64, u64> random_seeds(u64 count) {
  const char* text = std::getenv("OA_RANDOM_SEEDS");
  if (!text) return {0, count};
  char* end = nullptr;
  const u64 from = std::strtoull(text, &end, 10);
  return {from, *end == ',' ? std::strtoull(end + 1, nullptr, 10) : 1};
}

struct RandomOptions {
  Target target;
  u32 width = 16;
  u32 size = 40;             // statements, roughly
  bool wide = true;          // F64, I64, U64 values
  bool exact_floats = true;  // false: no fma, subnormals or NaN, for devices that are free there
};

class RandomProgram {
 public:
  static constexpr u32 kGroups = 3;
  static constexpr u32 kInputs = 61;  // elements of each input: odd on purpose
  static constexpr u32 kCells = 4;    // output elements a lane owns in each buffer

  struct Memory {
    std::vector<f32> floats, float_out;
    std::vector<u32> ints, int_out, counters;
    std::vector<u16> half_out, brain_out;
    std::vector<u8> byte_out;

    // Buffers in the order of the kernel's parameters, at their host addresses.
    std::vector<BufferView> views() {
      return {view(floats),   view(ints),      view(float_out), view(int_out),
              view(half_out), view(brain_out), view(byte_out),  view(counters)};
    }

    // Empty if both hold the same results, else the first difference. NaNs are equal.
    std::string difference(const Memory& other) const {
      for (size_t i = 0; i < float_out.size(); ++i) {
        const f32 a = float_out[i], b = other.float_out[i];
        if (std::bit_cast<u32>(a) != std::bit_cast<u32>(b) && !(std::isnan(a) && std::isnan(b))) {
          return fmt::format("float_out[{}]: {} ({:#x}) and {} ({:#x})", i, a,
                             std::bit_cast<u32>(a), b, std::bit_cast<u32>(b));
        }
      }
      const auto halves = [](const char* name, const std::vector<u16>& a, const std::vector<u16>& b,
                             f32 (*convert)(u16)) -> std::string {
        for (size_t i = 0; i < a.size(); ++i) {
          if (a[i] != b[i] && !(std::isnan(convert(a[i])) && std::isnan(convert(b[i])))) {
            return fmt::format("{}[{}]: {:#x} and {:#x}", name, i, a[i], b[i]);
          }
        }
        return {};
      };
      std::string d = halves("half_out", half_out, other.half_out, f16_to_f32);
      if (d.empty()) d = halves("brain_out", brain_out, other.brain_out, bf16_to_f32);
      const auto plain = [&](const char* name, const auto& a, const auto& b) {
        for (size_t i = 0; i < a.size() && d.empty(); ++i) {
          if (a[i] != b[i]) d = fmt::format("{}[{}]: {:#x} and {:#x}", name, i, a[i], b[i]);
        }
      };
      plain("int_out", int_out, other.int_out);
      plain("byte_out", byte_out, other.byte_out);
      plain("counters", counters, other.counters);
      return d;
    }

   private:
    template <class T>
    static BufferView view(std::vector<T>& v) {
      return {reinterpret_cast<u64>(v.data()), v.data(), v.size() * sizeof(T)};
    }
  };

  RandomProgram(u64 seed, const RandomOptions& options) : state_(seed * 2 + 1), options_(options) {
    kernel_ = trace(fmt::format("random_{}", seed), options.target, options.width, [&] { body(); });
  }

  const Kernel& kernel() const { return kernel_; }

  Memory memory() {
    Memory m;
    static constexpr f32 kSpecial[] = {0.0f,    -0.0f,   1.0f,   -1.0f,   0.5f,  1e-40f,
                                       -1e-42f, 3.4e38f, 2.1e9f, -4.3e9f, 1e20f, 65519.0f};
    for (u32 i = 0; i < kInputs; ++i) {
      const f32 uniform = static_cast<f32>(static_cast<i32>(next())) * 0x1p-28f;
      f32 x = below(3) ? uniform : kSpecial[below(std::size(kSpecial))];
      if (options_.exact_floats && below(12) == 0) x = std::numeric_limits<f32>::quiet_NaN();
      if (options_.exact_floats && below(12) == 0) x = -std::numeric_limits<f32>::infinity();
      if (!options_.exact_floats && std::abs(x) < 1e-30f) x = 0.0f;
      m.floats.push_back(x);
      static constexpr u32 kInts[] = {0u, 1u, 0xffffffffu, 0x80000000u, 0x7fffffffu, 31u, 32u};
      m.ints.push_back(below(3) ? static_cast<u32>(next()) : kInts[below(std::size(kInts))]);
    }
    const size_t out = size_t{kGroups} * options_.width * kCells;
    m.float_out.assign(out, 0.25f);
    m.int_out.assign(out, 77);
    m.half_out.assign(out, f32_to_f16(0.5f));
    m.brain_out.assign(out, f32_to_bf16(2.0f));
    m.byte_out.assign(out, 9);
    m.counters.assign(8, 0);
    return m;
  }

  // Parameters for a memory whose buffers lie at these addresses.
  std::vector<u64> args(std::span<const BufferView> views) {
    std::vector<u64> a;
    for (const BufferView& v : views) a.push_back(v.address);
    a.push_back(5);                           // a number
    a.push_back(std::bit_cast<u32>(1.375f));  // a factor
    return a;
  }

 private:
  u64 next() {
    u64 z = state_ += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  u32 below(u64 n) { return static_cast<u32>((next() >> 11) % n); }

  static constexpr std::array kTypes = {Scalar::F32, Scalar::U32, Scalar::I32, Scalar::Bool,
                                        Scalar::F64, Scalar::I64, Scalar::U64};
  std::vector<Value>& pool(Scalar s) { return pools_[static_cast<size_t>(s)]; }

  Scalar type() { return kTypes[below(options_.wide ? 7 : 4)]; }
  Scalar number_type() {
    const Scalar s = type();
    return s == Scalar::Bool ? Scalar::U32 : s;
  }

  static constexpr Op kCompare[] = {Op::Eq, Op::Ne, Op::Lt, Op::Le, Op::Gt, Op::Ge};

  Value pick(Scalar s) {
    auto& p = pool(s);
    if (p.empty() || below(12) == 0) return literal_of(s);
    // Recent values are likelier, so that chains grow.
    const size_t back = std::min<size_t>(p.size(), 1 + below(below(3) ? 6 : p.size()));
    return p[p.size() - back];
  }

  Value literal_of(Scalar s) {
    if (is_float(s)) {
      static constexpr f64 kFloats[] = {0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 8.0, 0.1, -3.75, 1e10};
      return constant(s, kFloats[below(std::size(kFloats))]);
    }
    static constexpr i64 kInts[] = {0, 1, 2, 3, 4, 7, 8, 16, 255, 1024, -1, -8, 123456789};
    if (s == Scalar::Bool) return constant_int(s, below(2));
    return constant_int(s, kInts[below(std::size(kInts))]);
  }

  void keep(const Value& v) { pool(v.scalar()).push_back(v); }

  // Makes every result one that machines agree on.
  Value tame(const Value& v) {
    if (!is_float(v.scalar()) || options_.exact_floats) return v;
    const Value small = constant(v.scalar(), 1e-30), big = constant(v.scalar(), 1e30);
    const Value size = unary(Op::Abs, v);
    return select((size > small) & (size < big), v, constant(v.scalar(), 1.0));
  }

  Value arithmetic() {
    const Scalar s = number_type();
    const Value a = pick(s), b = pick(s);
    if (is_float(s)) {
      switch (below(options_.exact_floats ? 14 : 12)) {
        case 0: return a + b;
        case 1: return a - b;
        case 2: return a * b;
        case 3: return a / b;
        case 4: return kernel::min(a, b) + constant(s, 0.0);  // no zero of open sign
        case 5: return kernel::max(a, b) + constant(s, 0.0);
        case 6: return -a;
        case 7: return unary(Op::Abs, a);
        case 8: return unary(Op::Floor, a);
        case 9: return unary(Op::Ceil, a);
        case 10: return unary(Op::Trunc, a);
        case 11: return below(2) ? unary(Op::RoundEven, a) : unary(Op::Sqrt, unary(Op::Abs, a));
        case 12: return a % b;
        default: return fma(a, b, pick(s));
      }
    }
    const bool sign = is_signed(s);
    const Value count = b & constant_int(s, 8 * size_bytes(s) - 1);
    const Value divisor = (b & constant_int(s, 0x7f)) + constant_int(s, 1);
    switch (below(14)) {
      case 0: return a + b;
      case 1: return a - b;
      case 2: return a * b;
      case 3: return sign && below(2) ? (a >> constant_int(s, 1)) / -divisor : a / divisor;
      case 4: return sign && below(2) ? (a >> constant_int(s, 1)) % -divisor : a % divisor;
      case 5: return kernel::min(a, b);
      case 6: return kernel::max(a, b);
      case 7: return a << count;
      case 8: return a >> count;
      case 9: return a & b;
      case 10: return a | b;
      case 11: return a ^ b;
      case 12: return below(2) ? ~a : -a;
      default:
        if (s == Scalar::U32) return mul_hi(U32(a), U32(b));
        return sign ? unary(Op::Abs, a) : a * constant_int(s, 4);
    }
  }

  Value condition() {
    if (below(4) == 0) {
      const Value a = pick(Scalar::Bool), b = pick(Scalar::Bool);
      switch (below(6)) {
        case 0: return a & b;
        case 1: return a | b;
        case 2: return a ^ b;
        case 3: return !a;
        case 4: return a == b;
        default: return a != b;
      }
    }
    const Scalar s = number_type();
    return compare(kCompare[below(6)], pick(s), pick(s));
  }

  Value conversion() {
    if (below(3) == 0) {  // bits; those of a NaN are open
      const Value x = pick(Scalar::F32);
      const Value clean = select(is_nan(x), constant(Scalar::F32, 3.0), x);
      if (below(2)) return bitcast(clean, below(2) ? Scalar::U32 : Scalar::I32);
      return bitcast(pick(Scalar::I32), Scalar::U32);
    }
    return cast(pick(type()), type());
  }

  void expression() {
    switch (below(8)) {
      case 0: keep(condition()); return;
      case 1: keep(tame(conversion())); return;
      case 2: {
        const Scalar s = type();
        keep(select(condition(), pick(s), pick(s)));
        return;
      }
      default: keep(tame(arithmetic()));
    }
  }

  Value input_index() { return pick(Scalar::U32) % constant_int(Scalar::U32, kInputs); }
  Value own_cell() {
    return (group() * kernel::width() + lane()) * U32(kCells) + U32(below(kCells));
  }

  void load() {
    const bool again = below(3) == 0;  // from an own output cell: what was stored last
    switch (below(again ? 5 : 2)) {
      case 0:
        keep(again ? tame(buffers_[2][own_cell()].load()) : buffers_[0][input_index()].load());
        return;
      case 1: keep(buffers_[again ? 3 : 1][again ? own_cell() : input_index()].load()); return;
      case 2: keep(tame(buffers_[4][own_cell()].load())); return;
      case 3: keep(tame(buffers_[5][own_cell()].load())); return;
      default: keep(buffers_[6][own_cell()].load());
    }
  }

  void store() {
    const u32 b = 2 + below(5);
    const Scalar s = value_scalar(buffers_[b].elem());
    if (b < 4 && below(4) == 0) {  // two neighbours at once
      const Value base = (group() * kernel::width() + lane()) * U32(kCells) + U32(2 * below(2));
      const Value first = pick(s), second = pick(s);
      buffers_[b].store(base, vec({first, second}));
      const Value both = buffers_[b].load(base, 2);
      keep(extract(both, below(2)));
      return;
    }
    const Value cell = own_cell();
    if (below(3) == 0) keep(tame(buffers_[b][cell].load()));
    buffers_[b][cell] = pick(s);
    if (below(3) == 0) keep(tame(buffers_[b][cell].load()));
  }

  void counter() {
    const u32 which = below(4);
    static constexpr AtomicOp kOps[] = {AtomicOp::Add, AtomicOp::Max, AtomicOp::Or, AtomicOp::And};
    buffers_[7].atomic(kOps[which], U32(which), pick(Scalar::U32));
  }

  void variable() {
    if (vars_.empty() || below(4) == 0) {
      vars_.push_back(VarValue(pick(type())));
    } else if (below(2)) {
      keep(*vars_[below(vars_.size())]);
    } else {
      const VarValue& v = vars_[below(vars_.size())];
      v.set(pick(v.get().scalar()));
    }
  }

  // Only where all lanes come by.
  void collective() {
    const u32 sub = subgroup_width(), w = kernel::width();
    const Scalar s = below(2) ? Scalar::F32 : Scalar::U32;
    switch (below(5)) {
      case 0: keep(shuffle_xor(pick(s), below(sub))); return;
      case 1:
        keep(shuffle(pick(s), U32(pick(Scalar::U32) % constant_int(Scalar::U32, sub))));
        return;
      case 2:
        keep(below(2) ? subgroup_any(Bool(pick(Scalar::Bool)))
                      : subgroup_all(Bool(pick(Scalar::Bool))));
        return;
      case 3: {
        const Value v = pick(Scalar::U32);
        keep(group_reduce(v, [](const Value& a, const Value& b) { return a + b; }));
        return;
      }
      default: {
        Shared cells(s, w);
        cells[lane()] = pick(s);
        barrier();
        keep(cells[pick(Scalar::U32) % constant_int(Scalar::U32, w)].load());
        keep(cells[lane() ^ U32(below(w))].load());
        barrier();
      }
    }
  }

  // A value that all lanes share.
  U32 uniform() {
    switch (below(3)) {
      case 0: return group();
      case 1: return group_count();
      default: return U32(number_);
    }
  }

  void nested(const std::function<void()>& make) {
    const auto pools = pools_;
    const size_t vars = vars_.size();
    make();
    pools_ = pools;
    vars_.erase(vars_.begin() + static_cast<i64>(vars), vars_.end());
  }

  void flow() {
    const bool same = uniform_ && below(2);  // in all lanes
    const bool before = uniform_;
    const u32 inner = 2 + below(5);
    ++depth_;
    uniform_ = same;
    switch (below(4)) {
      case 0:
      case 1: {
        const Bool cond(same ? uniform() < U32(below(6)) : condition());
        const bool both = below(2);
        const auto then = [&] { nested([&] { block(inner); }); };
        const auto otherwise = [&] {
          nested([&] {
            if (both) block(inner);
          });
        };
        If(cond, then, otherwise);
        break;
      }
      case 2: {
        const Scalar s = below(2) ? Scalar::U32 : Scalar::I32;
        Value begin = constant_int(s, below(4)), end = constant_int(s, below(7));
        if (!same) begin = begin + (pick(s) & constant_int(s, 3));
        if (same && below(2)) end = cast(uniform() & U32(7), s);
        if (!same && below(2)) end = pick(s) & constant_int(s, 7);
        if (same && below(4) == 0) begin = end - constant_int(s, 1);
        if (s == Scalar::U32 && same) begin = kernel::min(begin, constant_int(s, 9));
        For(begin, end, constant_int(s, 1 + below(3)), [&](const Value& i) {
          nested([&] {
            keep(i);
            if (below(2)) keep(compare(kCompare[below(6)], i, constant_int(s, below(8))));
            block(inner);
          });
        });
        break;
      }
      default: {
        Var<U32> n(0u);
        const U32 limit =
            same ? U32(uniform() & U32(3)) : U32(pick(Scalar::U32) & constant_int(Scalar::U32, 3));
        While([&] { return *n < limit; },
              [&] {
                n += U32(1);
                nested([&] { block(inner); });
              });
      }
    }
    uniform_ = before;
    --depth_;
  }

  void block(u32 statements) {
    for (u32 n = 0; n < statements && budget_ > 0; ++n) {
      --budget_;
      switch (below(16)) {
        case 0: load(); break;
        case 1: store(); break;
        case 2: counter(); break;
        case 3:
        case 4: variable(); break;
        case 5:
        case 6:
          if (depth_ < 4) flow();
          break;
        case 7:
          if (uniform_) collective();
          break;
        default: expression();
      }
    }
    // Most blocks have an effect.
    if (depth_ > 0 && below(4)) {
      if (below(3) == 0 || vars_.empty()) {
        store();
      } else {
        const VarValue& v = vars_[below(vars_.size())];
        v.set(pick(v.get().scalar()));
      }
    }
  }

  void body() {
    static constexpr Scalar kElems[] = {Scalar::F32, Scalar::U32,  Scalar::F32, Scalar::U32,
                                        Scalar::F16, Scalar::BF16, Scalar::U8,  Scalar::U32};
    for (Scalar s : kElems) buffers_.push_back(param_buffer(s));
    number_ = param_u32();
    keep(number_), keep(param_f32()), keep(group()), keep(lane());
    for (u32 n = 0; n < 3; ++n) {
      const Value at = (lane() + group() * U32(7) + U32(n * 5)) % U32(kInputs);
      keep(buffers_[0][at].load()), keep(buffers_[1][at].load());
    }
    for (Scalar s : {Scalar::I32, Scalar::I64, Scalar::U64})
      keep(cast(pool(Scalar::U32).back(), s));
    keep(cast(pool(Scalar::F32).back(), Scalar::F64));
    for (Scalar s : {Scalar::F32, Scalar::U32, Scalar::I32}) vars_.push_back(VarValue(pick(s)));
    budget_ = options_.size;
    while (budget_ > 0) block(4);
    // Everything that was computed leaves a trace.
    const Value cell = (group() * kernel::width() + lane()) * U32(kCells);
    for (const VarValue& v : vars_) keep(*v);
    for (Scalar s : kTypes) {
      if (pool(s).empty()) continue;
      const Value v = cast(pool(s).back(), is_float(s) ? Scalar::F32 : Scalar::U32);
      buffers_[is_float(s) ? 2 : 3][cell + U32(static_cast<u32>(s) % kCells)] = tame(v);
    }
  }

  u64 state_;
  RandomOptions options_;
  Kernel kernel_;
  std::vector<Buffer> buffers_;
  Value number_;
  std::array<std::vector<Value>, 10> pools_;
  std::vector<VarValue> vars_;
  u32 budget_ = 0;
  u32 depth_ = 0;
  bool uniform_ = true;
};

}  // namespace oa::testing
