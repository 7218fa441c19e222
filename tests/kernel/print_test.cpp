// Text of kernels: exact form, round trips of every field, and errors with their lines.
#include "oa/kernel/print.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "oa/core/error.h"
#include "oa/kernel/hash.h"
#include "oa/kernel/lang.h"
#include "oa/kernel/parse.h"

namespace oa::kernel {
namespace {

std::string error_of(std::string_view text) {
  try {
    parse(text);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

void expect_round_trip(const Kernel& k) {
  const std::string text = print(k);
  const Kernel back = parse(text);
  EXPECT_EQ(hash(back), hash(k)) << text;
  EXPECT_EQ(back.name, k.name);
}

TEST(Print, HasAReadableForm) {
  const Kernel k = trace("axpy", Target{}, 16, [] {
    Buffer x = param_buffer(Scalar::F16);
    U32 n = param_u32();
    Var<F32> sum(0.0f);
    const U32 step(width());  // not as an argument: compilers differ in which comes first
    For(lane(), n, step, [&](U32 i) {
      If(i < U32(7), [&] {
        F32 v(x[i]);
        sum += v * -1.5f;
      });
    });
    U32 last = lane();
    x[last] = *sum;
  });
  EXPECT_EQ(print(k), R"(kernel "axpy" width 16 subgroup 16 params 2
var v0 f32
{
  %0 = param u64 0
  %1 = param u32 1
  %2 = const f32 0
  var_store v0 %2
  %4 = const u32 16
  %5 = lane_id u32
  %6 = for u32 %5, %1, %4 {
    %7 = const u32 7
    %8 = lt bool %6, %7
    if %8 {
      %9 = load.f16 f32 %0, %6
      %10 = const f32 -1.5
      %11 = mul f32 %9, %10
      %12 = var_load f32 v0
      %13 = add f32 %12, %11
      var_store v0 %13
    }
  }
  %16 = lane_id u32
  %17 = var_load f32 v0
  store.f16 %0, %16, %17
}
)");
  expect_round_trip(k);
  EXPECT_EQ(print(k, 11), "%11 = mul f32 %9, %10");
}

TEST(Print, RoundTripsEveryKindOfInstruction) {
  Target t;
  t.kind = Target::Kind::Vulkan;
  t.subgroup = 8;
  expect_round_trip(trace("say \"hi\"\\\n", t, 32, [] {
    Buffer a = param_buffer(Scalar::I32), b = param_buffer(Scalar::BF16);
    Buffer c = param_buffer(Scalar::F64), d = param_buffer(Scalar::U8);
    Shared s(Scalar::F16, 512), ints(Scalar::U32, 4);
    VarValue v(Type{Scalar::F32, 4});
    v.set(b.load(U32(4) * lane(), 4));
    v.set(b.load_constant(U32(4) * lane(), 4));
    For(U32(0), U32(4), U32(1), [&](const Value& i) { ints[i] = i; }, Unroll::Never);
    b.store(U32(8) * lane(), *v);
    a.atomic(AtomicOp::Exchange, lane(), I32(-3));
    c.store_streaming(lane(), F64(2.0));
    a.compare_exchange(lane(), I32(std::numeric_limits<i32>::min()), I32(2));
    ints.atomic(AtomicOp::Max, U32(1), group());
    barrier(kSharedMemory | kDeviceMemory);
    barrier(kDeviceMemory);
    barrier();
    While([&] { return Bool(U32(ints[U32(0)]) < group_count()); },
          [&] { If(Bool(true), [&] { ints[U32(0)] = U32(9); }, [&] { c[lane()] = F64(0.1); }); });
    F32 x(extract(*v, 3));
    d[lane()] = cast<U32>(shuffle(x, lane() ^ U32(1)));
    If(
        subgroup_any(x < 1.0f) & !subgroup_all(is_nan(x)), [] {},
        [&] { d[U32(3)] = bitcast(shuffle_xor(x, 4), Scalar::U32); });
    b.store(U32(0), vec({x, x * 1e-42f}));
    Value fa = frag_load(fragment_type(FragUse::A, Scalar::F16, 16, 8), s, U32(0), U32(16),
                         Layout::ColMajor);
    Value fb = frag_load(fragment_type(FragUse::B, Scalar::F16, 8, 16), s, U32(0), U32(16),
                         Layout::RowMajor);
    Value acc = frag_fill(fragment_type(FragUse::C, Scalar::F32, 16, 16), F32(0.5f));
    acc = frag_add(frag_mul_add(fa, fb, acc), frag_mul(acc, acc));
    frag_store(s, U32(0), U32(16), Layout::RowMajor, frag_cast(acc, Scalar::F16));
    frag_store(c, U32(0), U32(16), Layout::ColMajor, acc);
  }));
}

TEST(Print, RoundTripsEveryBitOfConstants) {
  const auto check = [](Scalar s, u64 bits) {
    Kernel k{.name = "c", .width = 1, .subgroup = 1};
    k.instrs.push_back({.op = Op::Const, .type = Type{s}, .imm = bits});
    k.body = {0};
    const Kernel back = parse(print(k));
    EXPECT_EQ(back[0].imm, bits) << print(k);
    EXPECT_EQ(back[0].type, k[0].type);
  };
  for (u32 bits : {0u, 0x80000000u, 1u, 0x7f7fffffu, 0x3dcccccdu, 0x7f800000u, 0xff800000u,
                   0x7fc00000u, 0xffc00001u, 0x7f800001u, 0x00800000u, 0x7fffffffu}) {
    check(Scalar::F32, bits);
    check(Scalar::I32, bits);
    check(Scalar::U32, bits);
    for (u64 low : {0ull, 1ull, 0xffffffffull}) {
      const u64 wide = u64{bits} << 32 | low;
      check(Scalar::F64, wide), check(Scalar::I64, wide), check(Scalar::U64, wide);
      check(Scalar::F32, wide), check(Scalar::Bool, wide);  // not canonical, kept all the same
    }
  }
  check(Scalar::Bool, 0), check(Scalar::Bool, 1), check(Scalar::F16, 0x3c00);
}

TEST(Print, KeepsFieldsThatDoNotBelong) {
  Kernel k = trace("odd", Target{}, 1, [] {
    Buffer x = param_buffer(Scalar::F32);
    x[U32(0)] = F32(x[U32(1)]) + 2.0f;
  });
  for (Instr& i : k.instrs) {
    if (i.op == Op::Add) i.imm = 5, i.slot = 2;
    if (i.op == Op::Store) i.slot = 7;
  }
  expect_round_trip(k);
}

TEST(Parse, AcceptsCommentsAndLooseSpacing) {
  const Kernel k = parse(
      "; heading\nkernel \"k\" width 4   subgroup 4 params 1 { ; open\n\n%a = param u64 0\r\n"
      "%one = const u32 1 ; comment } %x\n\t%v = load.f32 f32 %a,%one\n store.f32 %a, %one, %v }");
  ASSERT_EQ(k.body.size(), 4u);
  EXPECT_EQ(k[3].args, (std::vector<ValueId>{0, 1, 2}));
}

TEST(Parse, ErrorsNameTheLine) {
  const std::string head = "kernel \"k\" width 4 subgroup 4 params 1\n{\n  %0 = param u64 0\n";
  EXPECT_EQ(error_of(head + "  %1 = foo u32 %0\n}\n"),
            "kernel::parse: line 4: unknown instruction `foo`");
  EXPECT_EQ(error_of(head + "  %1 = add u64 %0, %2\n}\n"),
            "kernel::parse: line 4: %2 is used before its definition");
  EXPECT_EQ(error_of(head + "  %0 = add u64 %0, %0\n}\n"),
            "kernel::parse: line 4: %0 is defined twice");
  EXPECT_EQ(error_of(head + "  add u64 %0, %0\n}\n"),
            "kernel::parse: line 4: `add` yields a value");
  EXPECT_EQ(error_of(head + "  %1 = barrier shared\n}\n"),
            "kernel::parse: line 4: `barrier` yields no value");
  EXPECT_EQ(error_of(head + "  %1 = add u65 %0, %0\n}\n"),
            "kernel::parse: line 4: unknown type `u65`");
  EXPECT_EQ(error_of(head + "  %1 = load f32 %0, %0\n}\n"),
            "kernel::parse: line 4: `load` needs an element type");
  EXPECT_EQ(error_of(head + "  %1 = add.f32 u64 %0, %0\n}\n"),
            "kernel::parse: line 4: `add` has no element type");
  EXPECT_EQ(error_of(head + "  %1 = const u32 4294967296\n}\n"),
            "kernel::parse: line 4: got `4294967296`, expected a number");
  EXPECT_EQ(error_of(head + "  %1 = const bool 2\n}\n"),
            "kernel::parse: line 4: got `2`, expected `true` or `false`");
  EXPECT_EQ(error_of(head + "  %1 = add u64 %0,\n %0\n"),
            "kernel::parse: line 6: the `{` of line 2 is not closed");
  EXPECT_EQ(error_of(head + "  if %0 {\n\n"),
            "kernel::parse: line 6: the `{` of line 4 is not closed");
  EXPECT_EQ(error_of(head + "  while {\n }\n }\n"),
            "kernel::parse: line 6: got `}`, expected `do`");
  EXPECT_EQ(error_of(head + "}\nx"),
            "kernel::parse: line 5: got `x`, expected the end of the text");
  EXPECT_EQ(error_of("kernel \"k\n"), "kernel::parse: line 1: a text has no closing quote");
  EXPECT_EQ(error_of(""), "kernel::parse: line 1: got `end of text`, expected `kernel`");
  EXPECT_EQ(error_of("kernel \"k\" width 4 subgroup 4 params 0\nshared s1 f32[4]\n{}"),
            "kernel::parse: line 2: got `s1`, expected `s0`");
}

// Cutting a text anywhere gives an error (or, at the very end, the same kernel), never a crash.
TEST(Parse, SurvivesEveryTruncation) {
  const std::string text = print(trace("t", Target{}, 8, [] {
    Shared s(Scalar::F32, 8);
    Var<F32> v(1.0f);
    For(U32(0), U32(8), U32(1), [&](U32 i) { s[i] = *v; });
    If(Bool(true), [&] { barrier(); }, [&] { v = F32(2.0f); });
  }));
  for (size_t n = 0; n + 2 < text.size(); ++n) {
    EXPECT_THROW(parse(std::string_view(text).substr(0, n)), Error) << n;
  }
  EXPECT_NO_THROW(parse(text));
}

}  // namespace
}  // namespace oa::kernel
