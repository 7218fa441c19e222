#include "oa/kernel/print.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <iterator>

#include "oa/kernel/op_info.h"

namespace oa::kernel {
namespace {

template <class... Args>
void put(std::string& out, fmt::format_string<Args...> text, Args&&... args) {
  fmt::format_to(std::back_inserter(out), text, std::forward<Args>(args)...);
}

void constant(std::string& out, Scalar s, u64 bits) {
  const bool narrow = size_bytes(s) == 8 || bits >> (8 * size_bytes(s)) == 0;
  if (narrow) {
    switch (s) {
      case Scalar::Bool:
        if (bits > 1) break;
        out += bits ? "true" : "false";
        return;
      case Scalar::I32: put(out, "{}", static_cast<i32>(bits)); return;
      case Scalar::I64: put(out, "{}", static_cast<i64>(bits)); return;
      case Scalar::U8:
      case Scalar::U32:
      case Scalar::U64: put(out, "{}", bits); return;
      case Scalar::F32:
        if (const auto x = std::bit_cast<f32>(static_cast<u32>(bits)); std::isfinite(x)) {
          put(out, "{}", x);
          return;
        }
        break;
      case Scalar::F64:
        if (const auto x = std::bit_cast<f64>(bits); std::isfinite(x)) {
          put(out, "{}", x);
          return;
        }
        break;
      default: break;
    }
  }
  put(out, "{:#x}", bits);
}

void imm(std::string& out, const Instr& i) {
  switch (info(i.op).imm) {
    case ImmUse::None:
      if (i.imm) put(out, " imm={}", i.imm);
      return;
    case ImmUse::Bits:
      out += ' ';
      constant(out, i.type.scalar, i.imm);
      return;
    case ImmUse::Atomic:
      if (i.imm <= static_cast<u64>(AtomicOp::Exchange)) {
        put(out, " {}", name(static_cast<AtomicOp>(i.imm)));
        return;
      }
      break;
    case ImmUse::Scope:
      if (i.imm >= 1 && i.imm <= 3) {
        static constexpr const char* kScopes[] = {"shared", "device", "shared+device"};
        put(out, " {}", kScopes[i.imm - 1]);
        return;
      }
      break;
    case ImmUse::Layout:
      if (i.imm <= 1) {
        out += i.imm ? " col" : " row";
        return;
      }
      break;
    case ImmUse::Hint:
      if (i.imm == 0) return;
      if (i.imm == 1) {
        out += fmt::format(" {}", hint_name(i.op));
        return;
      }
      break;
    case ImmUse::Number: break;
  }
  put(out, " {}", i.imm);
}

void line(std::string& out, const Kernel& k, ValueId id) {
  if (id >= k.instrs.size()) {
    put(out, "%{} (no such instruction)", id);
    return;
  }
  const Instr& i = k[id];
  if (i.op > Op::Yield) {
    put(out, "op {} (no such op)", static_cast<int>(i.op));
    return;
  }
  const OpInfo& what = info(i.op);
  if (yields_value(i.op)) put(out, "%{} = ", id);
  out += name(i.op);
  if (what.elem) put(out, ".{}", name(i.elem));
  if (yields_value(i.op)) put(out, " {}", print(i.type));
  if (what.slot != SlotUse::None && i.slot != kNoSlot) {
    put(out, " {}{}", what.slot == SlotUse::Var ? 'v' : 's', i.slot);
  }
  if (what.imm != ImmUse::None) imm(out, i);
  for (size_t a = 0; a < i.args.size(); ++a) put(out, "{}%{}", a ? ", " : " ", i.args[a]);
  if (what.slot == SlotUse::None && i.slot != kNoSlot) put(out, " slot={}", i.slot);
  if (what.imm == ImmUse::None) imm(out, i);
}

void region(std::string& out, const Kernel& k, const Region& r, size_t indent) {
  for (ValueId id : r) {
    out.append(indent, ' ');
    line(out, k, id);
    if (id < k.instrs.size() && !k[id].regions.empty()) {
      const Instr& i = k[id];
      const size_t last =
          i.op == Op::If && i.regions.size() == 2 && i.regions[1].empty() ? 1 : i.regions.size();
      for (size_t n = 0; n < last; ++n) {
        out += n == 0 ? " {\n" : i.op == Op::If ? " else {\n" : " do {\n";
        region(out, k, i.regions[n], indent + 2);
        out.append(indent, ' ');
        out += '}';
      }
    }
    out += '\n';
  }
}

void quoted(std::string& out, const std::string& text) {
  out += '"';
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  out += '"';
}

}  // namespace

std::string print(const Type& type) {
  if (type.is_fragment()) {
    static constexpr char kUse[] = {'?', 'a', 'b', 'c'};
    return fmt::format("frag_{}<{},{}x{}>", kUse[static_cast<int>(type.use) & 3], name(type.scalar),
                       type.rows, type.cols);
  }
  if (type.lanes == 1) return name(type.scalar);
  return fmt::format("{}x{}", name(type.scalar), type.lanes);
}

std::string print(const Kernel& kernel, ValueId id) {
  std::string out;
  line(out, kernel, id);
  return out;
}

std::string print(const Kernel& kernel) {
  std::string out = "kernel ";
  quoted(out, kernel.name);
  put(out, " width {} subgroup {} params {}\n", kernel.width, kernel.subgroup, kernel.params);
  for (size_t s = 0; s < kernel.shared.size(); ++s) {
    put(out, "shared s{} {}[{}]\n", s, name(kernel.shared[s].elem), kernel.shared[s].count);
  }
  for (size_t v = 0; v < kernel.vars.size(); ++v) {
    put(out, "var v{} {}\n", v, print(kernel.vars[v].type));
  }
  out += "{\n";
  region(out, kernel, kernel.body, 2);
  out += "}\n";
  return out;
}

}  // namespace oa::kernel
