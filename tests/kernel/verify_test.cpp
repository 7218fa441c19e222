// Every rule of the verifier: a kernel that breaks just that rule, and the exact message.
#include "oa/kernel/verify.h"

#include <gtest/gtest.h>

#include "oa/core/error.h"
#include "oa/kernel/lang.h"
#include "oa/kernel/parse.h"
#include "oa/kernel/print.h"

namespace oa::kernel {
namespace {

std::string message(const Kernel& k, const VerifyLimits& limits = {}) {
  try {
    verify(k, limits);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::Internal);
    EXPECT_EQ(e.op(), "kernel::verify");
    return e.message();
  }
  return "legal";
}

// Fault of a kernel with these instructions, two parameters, some values and slots to play with.
std::string fault(const std::string& instrs) {
  const std::string text =
      "kernel \"k\" width 8 subgroup 4 params 2\n"
      "shared s0 f32[64]\nshared s1 u32[8]\nshared s2 f16[256]\nvar v0 f32\nvar v1 f32x4\n{\n"
      "%0 = param u64 0\n%1 = const u32 1\n%2 = const f32 2\n%3 = const bool true\n"
      "%4 = const i32 -1\n%5 = const f64 1\n%6 = vec_build f32x2 %2, %2\n%7 = const u32 0\n"
      "%8 = frag_fill frag_a<f16,16x8> %2\n%9 = frag_fill frag_b<f16,8x16> %2\n"
      "%10 = frag_fill frag_c<f32,16x16> %2\n";
  const std::string result = message(parse(text + instrs + "\n}"));
  return result.starts_with("k: ") ? result.substr(3) : result;
}

TEST(Verify, AcceptsLegalPrograms) {
  EXPECT_EQ(fault(""), "legal");
  EXPECT_EQ(fault("%20 = for u32 %7, %1, %1 {\n if %3 {\n %21 = add u32 %20, %1\n } else {\n"
                  "%21b = add u32 %20, %1\n } }\n while {\n %22 = not bool %3\n yield %22\n} do {\n"
                  "var_store v0 %2\n }"),
            "legal");
  EXPECT_EQ(fault("%20 = load.f16 f32x4 %0, %1\n store.u8 %0, %4, %1\n var_store v1 %20\n"
                  "%21 = select f32x4 %3, %20, %20\n %22 = vec_extract f32 3 %21\n"
                  "shared_store.f16 s2 %1, %20\n %23 = atomic.i32 i32 min %0, %1, %4\n"
                  "%24 = shared_atomic.u32 u32 s1 or %1, %1\n %25 = eq bool %3, %3\n"
                  "%26 = cast f64 %3\n %27 = bitcast i64 %5\n barrier shared+device\n"
                  "%28 = shuffle f32 %2, %1\n %29 = shuffle_xor u32 3 %1"),
            "legal");
  EXPECT_EQ(fault("%20 = frag_mul_add frag_c<f32,16x16> %8, %9, %10\n"
                  "%21 = frag_cast frag_c<f16,16x16> %20\n"
                  "frag_store.f16 s2 col %1, %1, %21\n frag_store.f16 row %0, %1, %1, %21\n"
                  "%22 = frag_load.f16 frag_a<f16,16x8> s2 row %1, %1"),
            "legal");
}

TEST(Verify, Visibility) {
  EXPECT_EQ(fault("if %3 {\n%20 = add u32 %1, %1\n}\n%21 = add u32 %20, %1"),
            "%13 = add u32 %12, %1: operand %12 is not visible here");
  EXPECT_EQ(fault("if %3 {\n%20 = neg f32 %2\n} else {\n%21 = neg f32 %20\n}"),
            "%13 = neg f32 %12: operand %12 is not visible here");
  EXPECT_EQ(fault("%20 = for u32 %7, %1, %1 {\n}\n%21 = neg u32 %20"),
            "%12 = neg u32 %11: operand %11 is not visible here");
  EXPECT_EQ(fault("while {\n%20 = not bool %3\nyield %20\n} do {\n%21 = not bool %20\n}"),
            "%14 = not bool %12: operand %12 is not visible here");
  Kernel k =
      parse("kernel \"k\" width 1 subgroup 1 params 0 {\n%0 = const u32 1\n%1 = neg u32 %0\n}");
  std::swap(k.body[0], k.body[1]);
  EXPECT_EQ(message(k), "k: %1 = neg u32 %0: operand %0 is used before its definition");
  k.body = {0, 1, 1};
  EXPECT_EQ(message(k), "k: %1 = neg u32 %0: stands in more than one place");
  k.body = {0, 7};
  EXPECT_EQ(message(k), "k: a region names instruction 7, which does not exist");
  k.body = {0, 1};
  k.instrs[1].args = {1};
  EXPECT_EQ(message(k), "k: %1 = neg u32 %1: operand %1 is used before its definition");
  k.instrs[1].args = {99};
  EXPECT_EQ(message(k), "k: %1 = neg u32 %99: operand %99 is used before its definition");
  k.instrs[0] = {.op = Op::Barrier, .imm = 1};
  k.instrs[1].args = {0};
  EXPECT_EQ(message(k), "k: %1 = neg u32 %0: operand %0 is no value");
  k.instrs[0] = {.op = static_cast<Op>(200)};
  EXPECT_EQ(message(k), "k: op 200 (no such op): unknown operation");
}

TEST(Verify, OperandCounts) {
  EXPECT_EQ(fault("%20 = add u32 %1"),
            "%11 = add u32 %1: wrong number of operands, got 1, expected 2");
  EXPECT_EQ(fault("barrier shared %1"),
            "barrier shared %1: wrong number of operands, got 1, expected 0");
  EXPECT_EQ(fault("%20 = vec_build f32x2 %2"),
            "%11 = vec_build f32x2 %2: wrong number of operands, got 1, expected 2 to 4");
  EXPECT_EQ(fault("%20 = frag_load.f16 frag_a<f16,16x8> row %1, %1"),
            "%11 = frag_load.f16 frag_a<f16,16x8> row %1, %1: wrong number of operands, got 2, "
            "expected 3");
}

TEST(Verify, Types) {
  EXPECT_EQ(fault("%20 = add u32 %1, %2"), "%11 = add u32 %1, %2: operand %2 is f32, expected u32");
  EXPECT_EQ(fault("%20 = add bool %3, %3"),
            "%11 = add bool %3, %3: result is bool, expected a number");
  EXPECT_EQ(fault("%20 = add f32x2 %6, %6"),
            "%11 = add f32x2 %6, %6: result is f32x2, expected a scalar");
  EXPECT_EQ(fault("%20 = add f16 %2, %2"),
            "%11 = add f16 %2, %2: no legal type of a value, got f16");
  EXPECT_EQ(fault("%20 = select f32x3 %3, %6, %6"),
            "%11 = select f32x3 %3, %6, %6: no legal type of a value, got f32x3");
  EXPECT_EQ(fault("%20 = sqrt u32 %1"), "%11 = sqrt u32 %1: result is u32, expected a float");
  EXPECT_EQ(fault("%20 = rem f32 %2, %2"), "legal");
  EXPECT_EQ(fault("%20 = shl f32 %2, %2"),
            "%11 = shl f32 %2, %2: result is f32, expected an integer");
  EXPECT_EQ(fault("%20 = xor f32 %2, %2"),
            "%11 = xor f32 %2, %2: result is f32, expected an integer or bool");
  EXPECT_EQ(fault("%20 = abs u32 %1"), "%11 = abs u32 %1: result is u32, expected a signed type");
  EXPECT_EQ(fault("%20 = mul_hi i32 %4, %4"),
            "%11 = mul_hi i32 %4, %4: result is i32, expected u32");
  EXPECT_EQ(fault("%20 = lt bool %3, %3"),
            "%11 = lt bool %3, %3: operand is bool, expected a number");
  EXPECT_EQ(fault("%20 = lt u32 %1, %1"), "%11 = lt u32 %1, %1: result is u32, expected bool");
  EXPECT_EQ(fault("%20 = eq bool %1, %4"),
            "%11 = eq bool %1, %4: second operand is i32, expected u32");
  EXPECT_EQ(fault("%20 = select f32 %1, %2, %2"),
            "%11 = select f32 %1, %2, %2: condition is u32, expected bool");
  EXPECT_EQ(fault("%20 = select f32 %3, %2, %1"),
            "%11 = select f32 %3, %2, %1: second value is u32, expected f32");
  EXPECT_EQ(fault("%20 = bitcast u32 %5"),
            "%11 = bitcast u32 %5: result is u32, expected the size of f64");
  EXPECT_EQ(fault("%20 = bitcast u32 %3"),
            "%11 = bitcast u32 %3: operand is bool, expected a number");
  EXPECT_EQ(fault("%20 = cast f32 %6"), "%11 = cast f32 %6: operand is f32x2, expected a scalar");
  EXPECT_EQ(fault("%20 = lane_id i32"), "%11 = lane_id i32: result is i32, expected u32");
  EXPECT_EQ(fault("%20 = param f64 0"),
            "%11 = param f64 0: result is f64, expected u64, i64, u32, i32 or f32");
  EXPECT_EQ(fault("%20 = param u64 2"), "%11 = param u64 2: parameter out of range, got 2 of 2");
  EXPECT_EQ(fault("%20 = const u32 0x100000000"),
            "%11 = const u32 0x100000000: constant 0x100000000 does not fit its type");
  EXPECT_EQ(fault("%20 = const bool 0x2"),
            "%11 = const bool 0x2: constant 0x2 does not fit its type");
  EXPECT_EQ(fault("%20 = add u32 %1, %1 imm=3"),
            "%11 = add u32 %1, %1 imm=3: immediate of 3 has no meaning");
  EXPECT_EQ(fault("%20 = add u32 %1, %1 slot=0"),
            "%11 = add u32 %1, %1 slot=0: a slot has no meaning");
}

TEST(Verify, Vectors) {
  EXPECT_EQ(fault("%20 = vec_build f32x4 %2, %2"),
            "%11 = vec_build f32x4 %2, %2: result is f32x4, expected a vector of the operands");
  EXPECT_EQ(fault("%20 = vec_build f32x2 %2, %1"),
            "%11 = vec_build f32x2 %2, %1: component is u32, expected f32");
  EXPECT_EQ(fault("%20 = vec_extract f32 2 %6"),
            "%11 = vec_extract f32 2 %6: component out of range, got 2 of 2");
  EXPECT_EQ(fault("%20 = vec_extract f32 0 %2"),
            "%11 = vec_extract f32 0 %2: operand is f32, expected a vector");
}

TEST(Verify, Memory) {
  EXPECT_EQ(fault("%20 = load.f32 f32 %1, %1"),
            "%11 = load.f32 f32 %1, %1: address is u32, expected u64");
  EXPECT_EQ(fault("%20 = load.f32 f32 %0, %2"),
            "%11 = load.f32 f32 %0, %2: index is f32, expected an integer");
  EXPECT_EQ(fault("%20 = load.u8 f32 %0, %1"),
            "%11 = load.u8 f32 %0, %1: value is f32, expected u32");
  EXPECT_EQ(fault("store.f32 %0, %1, %1"), "store.f32 %0, %1, %1: value is u32, expected f32");
  EXPECT_EQ(fault("store.f32 2 %0, %1, %2"), "store.f32 2 %0, %1, %2: unknown hint 2");
  EXPECT_EQ(fault("%20 = load.f32 f32 2 %0, %1"), "%11 = load.f32 f32 2 %0, %1: unknown hint 2");
  EXPECT_EQ(fault("%20 = atomic.f32 f32 add %0, %1, %2"),
            "%11 = atomic.f32 f32 add %0, %1, %2: element type is f32, expected i32 or u32");
  EXPECT_EQ(fault("%20 = atomic.u32 u32 add %0, %1, %4"),
            "%11 = atomic.u32 u32 add %0, %1, %4: value is i32, expected u32");
  EXPECT_EQ(fault("%20 = atomic.u32 u32 9 %0, %1, %1"),
            "%11 = atomic.u32 u32 9 %0, %1, %1: unknown atomic operation 9");
  EXPECT_EQ(fault("%20 = atomic_cas.u32 u32 %0, %1, %1, %2"),
            "%11 = atomic_cas.u32 u32 %0, %1, %1, %2: value is f32, expected u32");
  EXPECT_EQ(fault("shared_store.f32 s3 %1, %2"),
            "shared_store.f32 s3 %1, %2: shared slot out of range, got 3 of 3");
  EXPECT_EQ(fault("shared_store.f32 %1, %2"),
            "shared_store.f32 %1, %2: shared slot out of range, got 4294967295 of 3");
  EXPECT_EQ(fault("shared_store.u32 s0 %1, %1"),
            "shared_store.u32 s0 %1, %1: element type is u32, expected f32 as the slot has");
  EXPECT_EQ(fault("var_store v2 %2"), "var_store v2 %2: variable out of range, got 2 of 2");
  EXPECT_EQ(fault("var_store v0 %1"), "var_store v0 %1: value is u32, expected f32");
  EXPECT_EQ(fault("%20 = var_load f32 v1"), "%11 = var_load f32 v1: result is f32, expected f32x4");
}

TEST(Verify, LanesAndBarriers) {
  EXPECT_EQ(fault("%20 = shuffle f32 %2, %4"),
            "%11 = shuffle f32 %2, %4: source lane is i32, expected u32");
  EXPECT_EQ(fault("%20 = shuffle_xor f32 4 %2"),
            "%11 = shuffle_xor f32 4 %2: mask reaches beyond the subgroup, got 4 of 4");
  EXPECT_EQ(fault("%20 = subgroup_any bool %1"),
            "%11 = subgroup_any bool %1: operand is u32, expected bool");
  EXPECT_EQ(fault("barrier 0"), "barrier 0: unknown scope 0");
  EXPECT_EQ(fault("barrier 4"), "barrier 4: unknown scope 4");
}

TEST(Verify, Fragments) {
  EXPECT_EQ(fault("%20 = frag_fill frag_a<f16,16x8> %1"),
            "%11 = frag_fill frag_a<f16,16x8> %1: value is u32, expected f32");
  EXPECT_EQ(fault("%20 = frag_mul_add frag_c<f32,16x16> %9, %8, %10"),
            "%11 = frag_mul_add frag_c<f32,16x16> %9, %8, %10: first operand is "
            "frag_b<f16,8x16>, expected an A fragment");
  EXPECT_EQ(fault("%20 = frag_fill frag_b<f16,16x16> %2\n"
                  "%21 = frag_mul_add frag_c<f32,16x16> %8, %20, %10"),
            "%12 = frag_mul_add frag_c<f32,16x16> %8, %11, %10: shapes do not fit, got "
            "frag_a<f16,16x8> x frag_b<f16,16x16> -> frag_c<f32,16x16>");
  EXPECT_EQ(fault("%20 = frag_add frag_a<f16,16x8> %8, %8"),
            "%11 = frag_add frag_a<f16,16x8> %8, %8: result is frag_a<f16,16x8>, expected a C "
            "fragment");
  EXPECT_EQ(fault("%20 = frag_load.f32 frag_a<f16,16x8> row %0, %1, %1"),
            "%11 = frag_load.f32 frag_a<f16,16x8> row %0, %1, %1: element type is f32, expected "
            "f16 as the fragment has");
  EXPECT_EQ(fault("%20 = select frag_a<f16,16x8> %3, %8, %8"),
            "%11 = select frag_a<f16,16x8> %3, %8, %8: result is frag_a<f16,16x8>, expected a "
            "scalar or vector");
}

TEST(Verify, ControlFlow) {
  EXPECT_EQ(fault("if %1 {\n}"), "if %1: condition is u32, expected bool");
  EXPECT_EQ(fault("%20 = for f32 %2, %2, %2 {\n}"),
            "%11 = for f32 %2, %2, %2: index is f32, expected an integer");
  EXPECT_EQ(fault("%20 = for u32 %7, %1, %4 {\n}"),
            "%11 = for u32 %7, %1, %4: operand %4 is i32, expected u32");
  EXPECT_EQ(fault("%20 = for u32 %7, %1, %7 {\n}"),
            "%11 = for u32 %7, %1, %7: the step is not positive");
  EXPECT_EQ(fault("%20 = for i32 %4, %4, %4 {\n}"),
            "%11 = for i32 %4, %4, %4: the step is not positive");
  EXPECT_EQ(fault("yield %3"), "yield %3: may only end the first region of a while");
  EXPECT_EQ(fault("while {\nyield %3\nyield %3\n} do {\n}"),
            "yield %3: may only end the first region of a while");
  EXPECT_EQ(fault("while {\nyield %3\n} do {\nyield %3\n}"),
            "yield %3: may only end the first region of a while");
  EXPECT_EQ(fault("while {\n} do {\n}"), "while: the condition of a while must end in a yield");
  EXPECT_EQ(fault("while {\nbarrier shared\n} do {\n}"),
            "barrier shared: the condition of a while must end in a yield");
  Kernel k =
      parse("kernel \"k\" width 1 subgroup 1 params 0 {\n%0 = const bool true\nif %0 {\n}\n}");
  k.instrs[1].regions.pop_back();
  EXPECT_EQ(message(k), "k: if %0: wrong number of regions, got 1, expected 2");
}

TEST(Verify, GroupOperationsOnlyInUniformFlow) {
  const std::string lane = "%20 = lane_id u32\n%21 = lt bool %20, %1\n%22 = param u32 1\n";
  EXPECT_EQ(fault(lane + "if %21 {\nbarrier shared\n}"),
            "barrier shared: stands in control flow that may differ between lanes, `if %12`");
  EXPECT_EQ(fault(lane + "if %3 {\n} else {\nif %21 {\n} else {\nbarrier shared\n}\n}"),
            "barrier shared: stands in control flow that may differ between lanes, `if %12`");
  EXPECT_EQ(
      fault(lane + "%23 = for u32 %20, %22, %1 {\n%24 = shuffle u32 %1, %1\n}"),
      "%15 = shuffle u32 %1, %1: stands in control flow that may differ between lanes, `%14 = "
      "for u32 %11, %13, %1`");
  EXPECT_EQ(fault(lane + "while {\n%24 = subgroup_any bool %21\n%25 = eq bool %20, %1\nyield %25\n}"
                         " do {\n}"),
            "%15 = subgroup_any bool %12: stands in control flow that may differ between lanes, "
            "`while`");
  EXPECT_EQ(
      fault(lane + "if %21 {\n%23 = frag_add frag_c<f32,16x16> %10, %10\n}"),
      "%15 = frag_add frag_c<f32,16x16> %10, %10: stands in control flow that may differ between "
      "lanes, `if %12`");
  // Flow around a varying branch, and flow that parameters steer, is uniform.
  EXPECT_EQ(fault(lane + "if %21 {\n}\nbarrier shared\n%23 = lt bool %22, %1\nif %23 {\n"
                         "barrier shared\n}\n%24 = for u32 %7, %22, %1 {\nbarrier shared\n}"),
            "legal");
  // A variable that lanes changed differently decides nothing for all.
  EXPECT_EQ(fault(lane + "if %21 {\nvar_store v0 %2\n}\n%23 = var_load f32 v0\n"
                         "%24 = eq bool %23, %2\nif %24 {\nbarrier shared\n}"),
            "barrier shared: stands in control flow that may differ between lanes, `if %17`");
}

TEST(Verify, TheKernelItself) {
  Kernel k{.name = "k", .width = 8, .subgroup = 8};
  EXPECT_EQ(message(k), "legal");
  k.width = 12;
  EXPECT_EQ(message(k), "k: width is no power of two, got 12");
  k.width = 8, k.subgroup = 16;
  EXPECT_EQ(message(k), "k: subgroup is no power of two up to the width, got 16 of 8");
  k.subgroup = 0;
  EXPECT_EQ(message(k), "k: subgroup is no power of two up to the width, got 0 of 8");
  k.subgroup = 8;
  k.shared = {{Scalar::U8, 17}, {Scalar::F32, 4}};
  EXPECT_EQ(shared_bytes(k), 48u);
  EXPECT_EQ(message(k, {.shared_bytes = 48}), "legal");
  EXPECT_EQ(message(k, {.shared_bytes = 47}),
            "k: too much shared memory, got 48 bytes, expected at most 47");
  k.shared = {{Scalar::U8, 0}};
  EXPECT_EQ(message(k), "k: shared slot s0 is empty");
  k.shared.clear();
  k.vars = {{Type{Scalar::F16}}};
  EXPECT_EQ(message(k), "k: variable v0 has no legal type, got f16");
}

}  // namespace
}  // namespace oa::kernel
