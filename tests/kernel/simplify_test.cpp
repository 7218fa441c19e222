// The simplifier rule by rule: the exact program that comes out.
#include "oa/kernel/simplify.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "oa/kernel/lang.h"
#include "oa/kernel/parse.h"
#include "oa/kernel/print.h"
#include "oa/kernel/verify.h"

namespace oa::kernel {
namespace {

Kernel program(const std::string& instrs, u32 width = 8) {
  Kernel k = parse(fmt::format(
      "kernel \"k\" width {0} subgroup {0} params 8\nshared s0 f32[64]\nvar v0 f32\nvar v1 u32\n"
      "{{\n{1}}}\n",
      width, instrs));
  verify(k);
  return k;
}

// Instructions of the simplified program, from the first line of its body.
std::string simple(const std::string& instrs, u32 width = 8) {
  const Kernel k = simplify(program(instrs, width));
  verify(k);
  const std::string text = print(k);
  const size_t from = text.find("{\n") + 2;
  std::string out;
  for (size_t at = from; at + 2 < text.size();) {
    const size_t end = text.find('\n', at);
    out.append(text, at + 2, end - at - 1);
    at = end + 1;
  }
  return out;
}

// What is stored when `expression` over parameters (named x: u32, y: i32, f: f32, b: bool) is
// stored: the name of a parameter, a constant, or the last instruction with its operands' text.
std::string value(Scalar s, const std::string& expression) {
  const std::string head =
      "%out = param u64 0\n%x = param u32 1\n%y = param i32 2\n%f = param f32 3\n%0 = const u32 0\n"
      "%1 = const u32 1\n%i0 = const i32 0\n%i1 = const i32 1\n%f0 = const f32 0\n%f1 = const f32 "
      "1\n"
      "%lane = lane_id u32\n%b = lt bool %x, %1\n%true = const bool true\n%false = const bool "
      "false\n";
  const Kernel k = simplify(program(head + expression + "store." + name(s) + " %out, %0, %r\n"));
  verify(k);
  const auto text = [&](ValueId id) -> std::string {
    const Instr& i = k[id];
    const char* const params[] = {"out", "x", "y", "f"};
    if (i.op == Op::Param) return params[i.imm];
    if (i.op == Op::Const) {
      const std::string line = print(k, id);
      return line.substr(line.rfind(' ') + 1);
    }
    if (i.op == Op::LaneId) return "lane";
    return fmt::format("({})", name(i.op));
  };
  const ValueId stored = k[k.body.back()].args[2];
  const Instr& i = k[stored];
  if (i.args.empty()) return text(stored);
  std::string out = name(i.op);
  for (ValueId a : i.args) {
    out += ' ';
    out += text(a);
  }
  return out;
}

TEST(Simplify, FoldsConstants) {
  EXPECT_EQ(value(Scalar::U32, "%a = sub u32 %0, %1\n%r = shr u32 %a, %1\n"), "2147483647");
  EXPECT_EQ(value(Scalar::I32, "%a = sub i32 %i0, %i1\n%r = shr i32 %a, %i1\n"), "-1");
  EXPECT_EQ(value(Scalar::F32, "%a = const f32 3\n%r = div f32 %f1, %a\n"), "0.33333334");
  EXPECT_EQ(value(Scalar::F32, "%a = neg f32 %f0\n%r = sqrt f32 %a\n"), "-0");
  EXPECT_EQ(value(Scalar::I32, "%a = const f32 1e30\n%r = cast i32 %a\n"), "2147483647");
  EXPECT_EQ(value(Scalar::U32, "%a = const f32 0x7fc00000\n%r = cast u32 %a\n"), "0");
  EXPECT_EQ(value(Scalar::U32, "%c = lt bool %f0, %f1\n%r = select u32 %c, %x, %0\n"), "x");
}

TEST(Simplify, LeavesOpenResultsToTheMachine) {
  EXPECT_EQ(value(Scalar::U32, "%r = div u32 %1, %0\n"), "div 1 0");
  EXPECT_EQ(value(Scalar::U32, "%r = rem u32 %x, %x\n"), "rem x x");
  EXPECT_EQ(value(Scalar::U32, "%c = const u32 32\n%r = shl u32 %1, %c\n"), "shl 1 32");
}

TEST(Simplify, IntegerIdentities) {
  EXPECT_EQ(value(Scalar::U32, "%r = add u32 %0, %x\n"), "x");
  EXPECT_EQ(value(Scalar::U32, "%r = sub u32 %x, %0\n"), "x");
  EXPECT_EQ(value(Scalar::U32, "%r = sub u32 %x, %x\n"), "0");
  EXPECT_EQ(value(Scalar::U32, "%r = mul u32 %1, %x\n"), "x");
  EXPECT_EQ(value(Scalar::U32, "%r = mul u32 %x, %0\n"), "0");
  EXPECT_EQ(value(Scalar::U32, "%c = const u32 8\n%r = mul u32 %c, %x\n"), "shl x 3");
  EXPECT_EQ(value(Scalar::I32, "%c = const i32 8\n%r = mul i32 %c, %y\n"), "shl y 3");
  EXPECT_EQ(value(Scalar::U32, "%c = const u32 8\n%r = div u32 %x, %c\n"), "shr x 3");
  EXPECT_EQ(value(Scalar::U32, "%c = const u32 8\n%r = rem u32 %x, %c\n"), "and x 7");
  EXPECT_EQ(value(Scalar::U32, "%r = rem u32 %x, %1\n"), "0");
  // Signed division rounds towards zero, a shift does not.
  EXPECT_EQ(value(Scalar::I32, "%c = const i32 8\n%r = div i32 %y, %c\n"), "div y 8");
  EXPECT_EQ(value(Scalar::I32, "%c = const i32 8\n%r = rem i32 %y, %c\n"), "rem y 8");
  EXPECT_EQ(value(Scalar::I32, "%c = const i32 2\n%l = cast i32 %lane\n%r = div i32 %l, %c\n"),
            "shr (cast) 1");
  EXPECT_EQ(value(Scalar::I32, "%c = const i32 -2147483648\n%r = div i32 %y, %c\n"),
            "div y -2147483648");
  EXPECT_EQ(value(Scalar::U32, "%c = const u32 5\n%a = add u32 %x, %c\n%r = add u32 %c, %a\n"),
            "add x 10");
  EXPECT_EQ(value(Scalar::U32, "%c = const u32 5\n%a = shl u32 %x, %c\n%r = shl u32 %a, %c\n"),
            "shl x 10");
  EXPECT_EQ(value(Scalar::U32, "%c = const u32 20\n%a = shl u32 %x, %c\n%r = shl u32 %a, %c\n"),
            "shl (shl) 20");
  EXPECT_EQ(value(Scalar::U32, "%r = and u32 %x, %x\n"), "x");
  EXPECT_EQ(value(Scalar::U32, "%c = const u32 4294967295\n%r = xor u32 %c, %x\n"), "not x");
  EXPECT_EQ(value(Scalar::U32, "%a = not u32 %x\n%r = not u32 %a\n"), "x");
  EXPECT_EQ(value(Scalar::U32, "%r = min u32 %x, %x\n"), "x");
}

TEST(Simplify, FloatIdentitiesOnlyWhereExact) {
  EXPECT_EQ(value(Scalar::F32, "%r = mul f32 %f1, %f\n"), "f");
  EXPECT_EQ(value(Scalar::F32, "%r = sub f32 %f, %f0\n"), "f");
  EXPECT_EQ(value(Scalar::F32, "%r = add f32 %f, %f0\n"), "add f 0");  // -0 + 0 is 0
  EXPECT_EQ(value(Scalar::F32, "%m = neg f32 %f0\n%r = add f32 %m, %f\n"), "f");
  EXPECT_EQ(value(Scalar::F32, "%r = mul f32 %f, %f0\n"), "mul f 0");
  EXPECT_EQ(value(Scalar::F32, "%r = sub f32 %f, %f\n"), "sub f f");
  EXPECT_EQ(value(Scalar::F32, "%r = div f32 %f, %f\n"), "div f f");
  EXPECT_EQ(value(Scalar::F32, "%c = const f32 -8\n%r = div f32 %f, %c\n"), "mul f -0.125");
  EXPECT_EQ(value(Scalar::F32, "%c = const f32 3\n%r = div f32 %f, %c\n"), "div f 3");
  EXPECT_EQ(value(Scalar::F32, "%c = const f32 1e-45\n%r = div f32 %f, %c\n"), "div f 1e-45");
  EXPECT_EQ(value(Scalar::F32, "%c = const f32 2\n%a = mul f32 %f, %c\n%r = mul f32 %a, %c\n"),
            "mul (mul) 2");
  EXPECT_EQ(value(Scalar::F32, "%r = fma f32 %f1, %f, %f\n"), "add f f");
  EXPECT_EQ(value(Scalar::F32, "%r = fma f32 %f, %f, %f0\n"), "fma f f 0");
  EXPECT_EQ(value(Scalar::F32, "%a = neg f32 %f\n%r = neg f32 %a\n"), "f");
  EXPECT_EQ(value(Scalar::F32, "%c = const f32 0xff800000\n%r = max f32 %c, %f\n"), "f");
  EXPECT_EQ(value(Scalar::F32, "%c = const f32 0x7f800000\n%r = min f32 %f, %c\n"), "f");
  EXPECT_EQ(value(Scalar::F32, "%c = const f32 0xff800000\n%r = min f32 %f, %c\n"),
            "min f 0xff800000");  // NaN stays NaN
  EXPECT_EQ(value(Scalar::F32, "%c = const f32 4\n%r = rem f32 %f, %c\n"), "rem f 4");
  EXPECT_EQ(value(Scalar::F32, "%a = neg f32 %f\n%r = abs f32 %a\n"), "abs f");
}

TEST(Simplify, ComparisonsAndSelects) {
  EXPECT_EQ(value(Scalar::Bool, "%r = le bool %x, %x\n"), "true");
  EXPECT_EQ(value(Scalar::Bool, "%r = ne bool %f, %f\n"), "ne f f");  // true on NaN
  EXPECT_EQ(value(Scalar::Bool, "%r = le bool %f, %f\n"), "le f f");
  EXPECT_EQ(value(Scalar::Bool, "%r = lt bool %f, %f\n"), "false");
  EXPECT_EQ(value(Scalar::Bool, "%c = const u32 8\n%r = lt bool %lane, %c\n"), "true");
  EXPECT_EQ(value(Scalar::Bool, "%c = const u32 7\n%r = lt bool %lane, %c\n"), "lt lane 7");
  EXPECT_EQ(value(Scalar::Bool, "%r = lt bool %x, %0\n"), "false");
  EXPECT_EQ(value(Scalar::Bool, "%a = lt bool %x, %lane\n%r = not bool %a\n"), "ge x lane");
  EXPECT_EQ(value(Scalar::Bool, "%a = lt bool %f, %f1\n%r = not bool %a\n"), "not (lt)");
  EXPECT_EQ(value(Scalar::Bool, "%a = eq bool %f, %f1\n%r = not bool %a\n"), "ne f 1");
  EXPECT_EQ(value(Scalar::Bool, "%r = eq bool %b, %true\n"), "lt x 1");
  EXPECT_EQ(value(Scalar::U32, "%r = select u32 %b, %x, %x\n"), "x");
  EXPECT_EQ(value(Scalar::Bool, "%r = select bool %b, %true, %false\n"), "lt x 1");
  EXPECT_EQ(
      value(Scalar::U32, "%a = lt bool %f, %f1\n%n = not bool %a\n%r = select u32 %n, %x, %0\n"),
      "select (lt) 0 x");
  EXPECT_EQ(value(Scalar::U32, "%c = const u32 63\n%a = rem u32 %x, %c\n%r = and u32 %a, %c\n"),
            "rem x 63");
  EXPECT_EQ(value(Scalar::U32, "%c = const u32 9\n%r = rem u32 %lane, %c\n"), "lane");
  EXPECT_EQ(value(Scalar::U32, "%c = const u32 9\n%r = div u32 %lane, %c\n"), "0");
}

TEST(Simplify, CastsAndVectors) {
  EXPECT_EQ(value(Scalar::U32, "%a = cast u64 %x\n%r = cast u32 %a\n"), "x");
  EXPECT_EQ(value(Scalar::I32, "%a = cast u64 %y\n%r = cast i32 %a\n"), "y");
  EXPECT_EQ(value(Scalar::F32, "%a = cast f64 %f\n%r = cast f32 %a\n"), "cast (cast)");
  EXPECT_EQ(value(Scalar::U32, "%a = cast f32 %x\n%r = cast u32 %a\n"), "cast (cast)");
  EXPECT_EQ(value(Scalar::Bool, "%a = cast u32 %b\n%r = cast bool %a\n"), "lt x 1");
  EXPECT_EQ(value(Scalar::I64, "%a = cast u32 %y\n%r = cast i64 %a\n"), "cast (cast)");
  EXPECT_EQ(value(Scalar::F32, "%a = bitcast u32 %f\n%c = bitcast i32 %a\n%r = bitcast f32 %c\n"),
            "f");
  EXPECT_EQ(value(Scalar::F32, "%a = vec_build f32x2 %f, %f1\n%r = vec_extract f32 1 %a\n"), "1");
  EXPECT_EQ(value(Scalar::F32,
                  "%v = load.f32 f32x2 %out, %0\n%p = vec_extract f32 0 %v\n"
                  "%q = vec_extract f32 1 %v\n%r = vec_build f32x2 %p, %q\n"),
            "load out 0");
  EXPECT_EQ(value(Scalar::F32,
                  "%v = load.f32 f32x2 %out, %0\n%p = vec_extract f32 0 %v\n"
                  "%q = vec_extract f32 1 %v\n%r = vec_build f32x2 %q, %p\n"),
            "vec_build (vec_extract) (vec_extract)");
}

TEST(Simplify, SharesEqualValuesWhereTheyAreVisible) {
  EXPECT_EQ(
      simple("%0 = param u64 0\n%1 = param u32 1\n%2 = lane_id u32\n%3 = add u32 %1, %2\n"
             "%4 = add u32 %2, %1\nstore.u32 %0, %3, %4\n"
             "%5 = lt bool %1, %2\nif %5 {\n%6 = add u32 %1, %2\n%7 = mul u32 %6, %1\n"
             "store.u32 %0, %6, %7\n} else {\n%8 = mul u32 %3, %1\nstore.u32 %0, %1, %8\n}\n"),
      "%0 = param u64 0\n%1 = param u32 1\n%2 = lane_id u32\n%3 = add u32 %1, %2\n"
      "store.u32 %0, %3, %3\n%5 = lt bool %1, %2\nif %5 {\n  %7 = mul u32 %1, %3\n"
      "  store.u32 %0, %3, %7\n} else {\n  %9 = mul u32 %1, %3\n  store.u32 %0, %1, %9\n}\n");
}

TEST(Simplify, SharesLoadsUntilMemoryMayChange) {
  const std::string head = "%0 = param u64 0\n%1 = lane_id u32\n%2 = load.f32 f32 %0, %1\n";
  const std::string tail = "%3 = load.f32 f32 %0, %1\n%4 = add f32 %2, %3\nstore.f32 %0, %1, %4\n";
  EXPECT_EQ(simple(head + tail),
            "%0 = param u64 0\n%1 = lane_id u32\n%2 = load.f32 f32 %0, %1\n%3 = add f32 %2, %2\n"
            "store.f32 %0, %1, %3\n");
  for (const char* between :
       {"store.f32 %0, %1, %2\n", "barrier shared\n", "barrier device\n",
        "%9 = atomic.u32 u32 add %0, %1, %1\n",
        "%8 = param u32 1\n%9 = lt bool %1, %8\nif %9 {\nstore.f32 %0, %1, %2\n}\n"}) {
    const Kernel k = simplify(program(head + between + tail));
    int loads = 0;
    for (const Instr& i : k.instrs) loads += i.op == Op::Load;
    EXPECT_EQ(loads, 2) << between;
  }
  // Writes of workgroup memory leave device memory alone, and the other way round.
  const Kernel k = simplify(program(head + "shared_store.f32 s0 %1, %2\n" + tail +
                                    "%9 = shared_load.f32 f32 s0 %1\nstore.f32 %0, %1, %9\n"));
  int loads = 0;
  for (const Instr& i : k.instrs) loads += i.op == Op::Load;
  EXPECT_EQ(loads, 1);
}

TEST(Simplify, ALoopThatWaitsForMemoryKeepsReading) {
  const std::string text = simple(
      "%0 = param u64 0\n%1 = const u32 0\n%2 = load.u32 u32 %0, %1\n%3 = eq bool %2, %1\n"
      "if %3 {\nwhile {\n%4 = load.u32 u32 %0, %1\n%5 = eq bool %4, %1\nyield %5\n} do {\n}\n}\n");
  EXPECT_EQ(
      text,
      "%0 = param u64 0\n%1 = const u32 0\n%2 = load.u32 u32 %0, %1\n%3 = eq bool %2, %1\n"
      "if %3 {\n  while {\n    %6 = load.u32 u32 %0, %1\n    %7 = eq bool %6, %1\n    yield %7\n"
      "  } do {\n  }\n}\n");
}

TEST(Simplify, FollowsVariables) {
  EXPECT_EQ(simple("%0 = param u64 0\n%1 = param f32 1\n%2 = lane_id u32\nvar_store v0 %1\n"
                   "%3 = var_load f32 v0\n%4 = add f32 %3, %3\nvar_store v0 %4\n"
                   "%5 = var_load f32 v0\nstore.f32 %0, %2, %5\n"),
            "%0 = param u64 0\n%1 = param f32 1\n%2 = lane_id u32\n%3 = add f32 %1, %1\n"
            "store.f32 %0, %2, %3\n");
  // After a branch that may have stored, the variable counts again.
  EXPECT_EQ(simple("%n = param u32 2\n%0 = param u64 0\n%1 = param f32 1\n%2 = lane_id u32\n"
                   "var_store v0 %1\n%3 = lt bool %2, %n\n"
                   "if %3 {\n%4 = add f32 %1, %1\nvar_store v0 %4\n%5 = var_load f32 v0\n"
                   "store.f32 %0, %2, %5\n}\n%6 = var_load f32 v0\nstore.f32 %0, %2, %6\n"),
            "%0 = param u32 2\n%1 = param u64 0\n%2 = param f32 1\n%3 = lane_id u32\n"
            "var_store v0 %2\n%5 = lt bool %3, %0\nif %5 {\n  %7 = add f32 %2, %2\n"
            "  var_store v0 %7\n  store.f32 %1, %3, %7\n}\n%10 = var_load f32 v0\n"
            "store.f32 %1, %3, %10\n");
}

TEST(Simplify, DropsStoresThatNobodyReads) {
  // Overwritten, never read, or only feeding itself.
  EXPECT_EQ(simple("%0 = param u64 0\n%1 = param f32 1\n%2 = param u32 2\n%3 = const u32 0\n"
                   "%4 = const u32 1\nvar_store v0 %1\nvar_store v1 %2\n"
                   "%5 = for u32 %3, %2, %4 {\n%6 = var_load u32 v1\n%7 = add u32 %6, %4\n"
                   "var_store v1 %7\nshared_store.f32 s0 %5, %1\n}\n"),
            "");
  // What a later round of the loop reads stays.
  const std::string loop =
      "%0 = param u64 0\n%2 = param u32 2\n%3 = const u32 0\n%4 = const u32 1\nvar_store v1 %2\n"
      "%5 = for u32 %3, %2, %4 {\n%6 = var_load u32 v1\nstore.u32 %0, %5, %6\nvar_store v1 %5\n}\n";
  EXPECT_NE(simple(loop).find("  var_store v0 %"), std::string::npos);
}

TEST(Simplify, DropsUnusedSlotsAndRenumbersTheRest) {
  const Kernel k = parse(
      "kernel \"k\" width 8 subgroup 8 params 1\nshared s0 f32[8]\nshared s1 u32[8]\nvar v0 f32\n"
      "var v1 u32\n{\n%3 = const u32 3\n%0 = param u64 0\n%1 = lane_id u32\n%2 = lt bool %1, %3\n"
      "if %2 {\nvar_store v1 %1\n} else {\nvar_store v1 %3\n}\n%4 = var_load u32 v1\n"
      "shared_store.u32 s1 %1, %4\nbarrier shared\n%5 = shared_load.u32 u32 s1 %3\n"
      "store.u32 %0, %1, %5\n}\n");
  const Kernel s = simplify(k);
  verify(s);
  ASSERT_EQ(s.shared.size(), 1u);
  EXPECT_EQ(s.shared[0].elem, Scalar::U32);
  ASSERT_EQ(s.vars.size(), 1u);
  EXPECT_EQ(s.vars[0].type, Type{Scalar::U32});
  EXPECT_EQ(s.params, 1u);
}

TEST(Simplify, ResolvesBranches) {
  EXPECT_EQ(simple("%0 = param u64 0\n%1 = const u32 0\n%2 = const bool false\nif %2 {\n"
                   "store.u32 %0, %1, %1\n} else {\n%3 = param u32 1\nstore.u32 %0, %1, %3\n}\n"),
            "%0 = param u64 0\n%1 = const u32 0\n%2 = param u32 1\nstore.u32 %0, %1, %2\n");
  EXPECT_EQ(simple("%0 = param u64 0\n%1 = param u32 1\n%2 = lane_id u32\n%3 = lt bool %2, %1\n"
                   "if %3 {\n%4 = add u32 %1, %1\n}\n"),
            "");
  // A condition is known inside its branches, alone or joined.
  EXPECT_EQ(simple("%0 = param u64 0\n%1 = param u32 1\n%2 = lane_id u32\n%3 = lt bool %2, %1\n"
                   "%4 = param u32 2\n%5 = eq bool %4, %1\n%6 = and bool %3, %5\nif %6 {\n"
                   "%7 = lt bool %2, %1\nif %7 {\nstore.u32 %0, %2, %1\n}\n} else {\nif %6 {\n"
                   "store.u32 %0, %2, %4\n}\n}\n"),
            "%0 = param u64 0\n%1 = param u32 1\n%2 = lane_id u32\n%3 = lt bool %2, %1\n"
            "%4 = param u32 2\n%5 = eq bool %1, %4\n%6 = and bool %3, %5\nif %6 {\n"
            "  store.u32 %0, %2, %1\n}\n");
  // Not: the branches change places.
  EXPECT_EQ(
      simple("%0 = param u64 0\n%1 = param f32 1\n%2 = const f32 1\n%3 = const u32 0\n"
             "%4 = lt bool %1, %2\n%5 = not bool %4\nif %5 {\nstore.f32 %0, %3, %1\n} else {\n"
             "store.f32 %0, %3, %2\n}\n"),
      "%0 = param u64 0\n%1 = param f32 1\n%2 = const f32 1\n%3 = const u32 0\n"
      "%4 = lt bool %1, %2\nif %4 {\n  store.f32 %0, %3, %2\n} else {\n"
      "  store.f32 %0, %3, %1\n}\n");
}

TEST(Simplify, ResolvesLoops) {
  const auto loop = [](const std::string& begin, const std::string& end, const std::string& step) {
    return simple("%0 = param u64 0\n%1 = lane_id u32\n%2 = const u32 " + begin +
                  "\n%3 = const u32 " + end + "\n%4 = const u32 " + step +
                  "\n%5 = add u32 %1, %2\n%6 = for u32 %5, %3, %4 {\nstore.u32 %0, %6, %1\n}\n");
  };
  // The lane (0 .. 7) starts past the end: never; the width steps past it: once.
  EXPECT_EQ(loop("9", "9", "8"), "");
  EXPECT_EQ(loop("0", "8", "8"), "%0 = param u64 0\n%1 = lane_id u32\nstore.u32 %0, %1, %1\n");
  EXPECT_NE(loop("0", "7", "8").find("for"), std::string::npos);  // lane 7 does not come in
  EXPECT_NE(loop("0", "9", "8").find("for"), std::string::npos);  // lane 0 goes twice
  EXPECT_NE(loop("0", "8", "7").find("for"), std::string::npos);
  EXPECT_NE(loop("0", "4294967295", "4294967295").find("for"), std::string::npos);  // would wrap
}

TEST(Simplify, KnowsTheRangeOfALoopsIndex) {
  const auto verdict = [](const std::string& compare) {
    const std::string text = simple(
        "%0 = param u64 0\n%2 = const u32 2\n%3 = const u32 9\n%4 = const u32 3\n"
        "%c0 = const u32 1\n%c1 = const u32 8\n%5 = lane_id u32\n%6 = param u32 1\n"
        "%7 = for u32 %2, %3, %4 {\n%8 = " +
        compare + "\n%9 = select u32 %8, %6, %5\nstore.u32 %0, %5, %9\n}\n");
    if (text.find("select") != text.npos) return "open";
    return text.find("param u32 1") != text.npos ? "true" : "false";
  };
  EXPECT_STREQ(verdict("lt bool %7, %3"), "true");
  EXPECT_STREQ(verdict("lt bool %7, %c1"), "open");
  EXPECT_STREQ(verdict("le bool %7, %c1"), "true");
  EXPECT_STREQ(verdict("gt bool %7, %c1"), "false");
  EXPECT_STREQ(verdict("ge bool %7, %2"), "true");
  EXPECT_STREQ(verdict("gt bool %7, %2"), "open");
  EXPECT_STREQ(verdict("eq bool %7, %c0"), "false");
  EXPECT_STREQ(verdict("ne bool %7, %c1"), "open");
}

TEST(Simplify, MovesWhatDoesNotChangeOutOfLoops) {
  EXPECT_EQ(
      simple("%0 = param u64 0\n%1 = param u32 1\n%2 = param f32 2\n%3 = const u32 0\n"
             "%4 = const u32 1\n%5 = for u32 %3, %1, %4 {\n%6 = for u32 %3, %1, %4 {\n"
             "%7 = sqrt f32 %2\n%8 = mul u32 %5, %1\n%9 = add u32 %8, %6\n"
             "store.f32 %0, %9, %7\n}\n}\n"),
      "%0 = param u64 0\n%1 = param u32 1\n%2 = param f32 2\n%3 = const u32 0\n%4 = const u32 1\n"
      "%5 = sqrt f32 %2\n%6 = for u32 %3, %1, %4 {\n  %7 = mul u32 %1, %6\n"
      "  %8 = for u32 %3, %1, %4 {\n    %9 = add u32 %8, %7\n    store.f32 %0, %9, %5\n  }\n}\n");
}

TEST(Simplify, MovesALoadOnlyWhereItIsSafe) {
  const auto moved = [](const std::string& end, const std::string& extra) {
    const std::string text = simple(
        "%z = const f32 0\n%0 = param u64 0\n%1 = param u64 1\n%2 = const u32 0\n"
        "%3 = const u32 1\n%4 = " +
        end +
        "\n%5 = lane_id u32\nvar_store v0 %z\n%6 = for u32 %2, %4, %3 {\n"
        "%7 = load.f32 f32 %0, %5\n%8 = var_load f32 v0\n%9 = add f32 %7, %8\n"
        "var_store v0 %9\n" +
        extra + "}\n%10 = var_load f32 v0\nstore.f32 %1, %5, %10\n");
    return text.find("load.f32") < text.find("for ");
  };
  EXPECT_TRUE(moved("const u32 5", ""));
  EXPECT_FALSE(moved("param u32 2", ""));  // may not run at all
  EXPECT_FALSE(moved("const u32 5", "store.f32 %1, %6, %7\n"));
  EXPECT_FALSE(moved("const u32 5", "barrier shared\n"));
}

TEST(Simplify, IsFastOnAnEmptyAndADeepProgram) {
  EXPECT_EQ(simple(""), "");
  Kernel k = trace("deep", Target{}, 16, [] {
    Buffer x = param_buffer(Scalar::F32);
    std::function<void(u32)> nest = [&](u32 depth) {
      if (depth == 0) return;
      If(F32(x[lane()]) < static_cast<f32>(depth), [&] {
        x[lane() + U32(depth)] = F32(x[lane()]) + 1.0f;
        nest(depth - 1);
      });
    };
    nest(300);
  });
  const Kernel s = simplify(k);
  verify(s);
  EXPECT_LT(s.instrs.size(), k.instrs.size());
}

}  // namespace
}  // namespace oa::kernel
