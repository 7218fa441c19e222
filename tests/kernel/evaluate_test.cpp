// The reference arithmetic at its edges.
#include "oa/kernel/evaluate.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "oa/core/error.h"

namespace oa::kernel {
namespace {

u64 f(f32 x) { return std::bit_cast<u32>(x); }
u64 d(f64 x) { return std::bit_cast<u64>(x); }
u64 i(i32 x) { return static_cast<u32>(x); }
u64 l(i64 x) { return static_cast<u64>(x); }

constexpr f32 kInf = std::numeric_limits<f32>::infinity();
constexpr u64 kNan = 0x7fc00000;
constexpr i32 kLow = std::numeric_limits<i32>::min(), kHigh = std::numeric_limits<i32>::max();

u64 run(Op op, Scalar s, std::initializer_list<u64> args) {
  return evaluate(op, s, s, args.begin());
}
u64 cmp(Op op, Scalar s, u64 a, u64 b) {
  const u64 args[] = {a, b};
  return evaluate(op, Scalar::Bool, s, args);
}

TEST(Evaluate, IntegersWrapAndNeverTrap) {
  EXPECT_EQ(run(Op::Add, Scalar::I32, {i(kHigh), 1}), i(kLow));
  EXPECT_EQ(run(Op::Sub, Scalar::U32, {0, 1}), 0xffffffffu);
  EXPECT_EQ(run(Op::Mul, Scalar::I32, {i(-3), i(7)}), i(-21));
  EXPECT_EQ(run(Op::Mul, Scalar::U64, {~0ull, ~0ull}), 1u);
  EXPECT_EQ(run(Op::Neg, Scalar::I32, {i(kLow)}), i(kLow));
  EXPECT_EQ(run(Op::Abs, Scalar::I32, {i(kLow)}), i(kLow));
  EXPECT_EQ(run(Op::Div, Scalar::I32, {i(-7), i(2)}), i(-3));
  EXPECT_EQ(run(Op::Rem, Scalar::I32, {i(-7), i(2)}), i(-1));
  EXPECT_EQ(run(Op::Rem, Scalar::I32, {i(7), i(-2)}), i(1));
  EXPECT_EQ(run(Op::Div, Scalar::I32, {i(kLow), i(-1)}), i(kLow));
  EXPECT_EQ(run(Op::Rem, Scalar::I64, {l(std::numeric_limits<i64>::min()), l(-1)}), 0u);
  EXPECT_EQ(run(Op::Div, Scalar::U32, {5, 0}), 0u);
  EXPECT_EQ(run(Op::Rem, Scalar::U32, {5, 0}), 5u);
  EXPECT_EQ(run(Op::Shr, Scalar::I32, {i(-8), 1}), i(-4));
  EXPECT_EQ(run(Op::Shr, Scalar::U32, {i(-8), 1}), 0x7ffffffcu);
  EXPECT_EQ(run(Op::Shl, Scalar::I64, {l(-1), 63}), 1ull << 63);
  EXPECT_EQ(run(Op::MulHi, Scalar::U32, {0xffffffff, 0xffffffff}), 0xfffffffeu);
  EXPECT_EQ(run(Op::Min, Scalar::I32, {i(-1), 1}), i(-1));
  EXPECT_EQ(run(Op::Min, Scalar::U32, {i(-1), 1}), 1u);
  EXPECT_EQ(run(Op::Not, Scalar::U32, {0}), 0xffffffffu);
  EXPECT_EQ(run(Op::Not, Scalar::Bool, {0}), 1u);
}

TEST(Evaluate, FloatsFollowIeee) {
  EXPECT_EQ(run(Op::Add, Scalar::F32, {f(-0.0f), f(-0.0f)}), f(-0.0f));
  EXPECT_EQ(run(Op::Add, Scalar::F32, {f(1.0f), f(-1.0f)}), f(0.0f));
  EXPECT_EQ(run(Op::Mul, Scalar::F32, {f(1e-30f), f(1e-10f)}), f(1e-40f));  // subnormal
  EXPECT_EQ(run(Op::Sub, Scalar::F32, {f(kInf), f(kInf)}), kNan);
  EXPECT_EQ(run(Op::Sqrt, Scalar::F32, {f(-0.0f)}), f(-0.0f));
  EXPECT_EQ(run(Op::Sqrt, Scalar::F32, {f(-1.0f)}), kNan);
  EXPECT_EQ(run(Op::Add, Scalar::F32, {0xffc12345, f(1.0f)}), kNan);  // one NaN for all
  EXPECT_EQ(run(Op::Neg, Scalar::F32, {kNan}), 0xffc00000u);          // the sign bit alone
  EXPECT_EQ(run(Op::Abs, Scalar::F64, {d(-0.0)}), 0u);
  EXPECT_EQ(run(Op::RoundEven, Scalar::F32, {f(2.5f)}), f(2.0f));
  EXPECT_EQ(run(Op::RoundEven, Scalar::F32, {f(-0.4f)}), f(-0.0f));
  EXPECT_EQ(run(Op::Trunc, Scalar::F32, {f(-0.7f)}), f(-0.0f));
  EXPECT_EQ(run(Op::Ceil, Scalar::F32, {f(-0.7f)}), f(-0.0f));
  EXPECT_EQ(run(Op::Floor, Scalar::F64, {d(-0.2)}), d(-1.0));
  for (Op op : {Op::Min, Op::Max}) {
    EXPECT_EQ(run(op, Scalar::F32, {kNan, f(1.0f)}), kNan);
    EXPECT_EQ(run(op, Scalar::F32, {f(1.0f), kNan}), kNan);
  }
  // One rounding: (1+e)(1-e) - 1 = -e*e.
  const f32 e = 0x1p-12f;
  EXPECT_EQ(run(Op::Fma, Scalar::F32, {f(1 + e), f(1 - e), f(-1.0f)}), f(-0x1p-24f));
}

TEST(Evaluate, ComparisonsAreOrderedExceptNe) {
  for (Op op : {Op::Eq, Op::Lt, Op::Le, Op::Gt, Op::Ge}) {
    EXPECT_EQ(cmp(op, Scalar::F32, kNan, f(1.0f)), 0u);
    EXPECT_EQ(cmp(op, Scalar::F32, kNan, kNan), 0u);
  }
  EXPECT_EQ(cmp(Op::Ne, Scalar::F32, kNan, kNan), 1u);
  EXPECT_EQ(cmp(Op::Eq, Scalar::F32, f(0.0f), f(-0.0f)), 1u);
  EXPECT_EQ(cmp(Op::Lt, Scalar::I32, i(-1), 0), 1u);
  EXPECT_EQ(cmp(Op::Lt, Scalar::U32, i(-1), 0), 0u);
}

TEST(Evaluate, CastsSaturateAndRound) {
  EXPECT_EQ(cast_bits(Scalar::I32, Scalar::F32, f(-1.9f)), i(-1));
  EXPECT_EQ(cast_bits(Scalar::I32, Scalar::F32, f(3e9f)), i(kHigh));
  EXPECT_EQ(cast_bits(Scalar::I32, Scalar::F32, f(-kInf)), i(kLow));
  EXPECT_EQ(cast_bits(Scalar::I32, Scalar::F32, kNan), 0u);
  EXPECT_EQ(cast_bits(Scalar::U32, Scalar::F32, f(-5.0f)), 0u);
  EXPECT_EQ(cast_bits(Scalar::U32, Scalar::F32, f(4294967040.0f)), 4294967040u);
  EXPECT_EQ(cast_bits(Scalar::U32, Scalar::F32, f(4294967296.0f)), 0xffffffffu);
  EXPECT_EQ(cast_bits(Scalar::I64, Scalar::F64, d(9.3e18)), l(std::numeric_limits<i64>::max()));
  EXPECT_EQ(cast_bits(Scalar::I64, Scalar::F64, d(-9.2233720368547758e18)),
            l(std::numeric_limits<i64>::min()));
  EXPECT_EQ(cast_bits(Scalar::U64, Scalar::F32, f(kInf)), ~0ull);
  EXPECT_EQ(cast_bits(Scalar::U64, Scalar::F64, d(9223372036854775808.0)), 1ull << 63);
  EXPECT_EQ(cast_bits(Scalar::F32, Scalar::U32, 0xffffffff), f(4294967296.0f));
  EXPECT_EQ(cast_bits(Scalar::F32, Scalar::I32, i(16777217)), f(16777216.0f));  // to even
  EXPECT_EQ(cast_bits(Scalar::F32, Scalar::U64, 0x8000008000000001ull), f(0x1.000002p63f));
  EXPECT_EQ(cast_bits(Scalar::F32, Scalar::F64, d(1e-46)), f(0.0f));
  EXPECT_EQ(cast_bits(Scalar::F64, Scalar::F32, f(0.1f)), d(0.1f));
  EXPECT_EQ(cast_bits(Scalar::I64, Scalar::I32, i(-2)), l(-2));
  EXPECT_EQ(cast_bits(Scalar::U64, Scalar::I32, i(-2)), l(-2));
  EXPECT_EQ(cast_bits(Scalar::I64, Scalar::U32, i(-2)), 0xfffffffeu);
  EXPECT_EQ(cast_bits(Scalar::U32, Scalar::I64, l(-2)), 0xfffffffeu);
  EXPECT_EQ(cast_bits(Scalar::Bool, Scalar::F32, kNan), 1u);
  EXPECT_EQ(cast_bits(Scalar::Bool, Scalar::F32, f(-0.0f)), 0u);
  EXPECT_EQ(cast_bits(Scalar::F64, Scalar::Bool, 1), d(1.0));
}

TEST(Evaluate, ElementsOfMemory) {
  EXPECT_EQ(value_to_element(Scalar::U8, 0x1ff), 0xffu);
  EXPECT_EQ(value_to_element(Scalar::F16, f(65520.0f)), 0x7c00u);
  EXPECT_EQ(element_to_value(Scalar::F16, 0x3555), f(0.33325195f));
  EXPECT_EQ(element_to_value(Scalar::Bool, 7), 1u);
  EXPECT_EQ(evaluate_atomic(AtomicOp::Min, Scalar::I32, i(3), i(-4)), i(-4));
  EXPECT_EQ(evaluate_atomic(AtomicOp::Min, Scalar::U32, i(3), i(-4)), 3u);
  EXPECT_EQ(evaluate_atomic(AtomicOp::Exchange, Scalar::U32, 1, 2), 2u);
}

TEST(Evaluate, KnowsWhatTheLanguageLeavesOpen) {
  const auto open = [](Op op, Scalar s, u64 a, u64 b) {
    const u64 args[] = {a, b};
    return is_unspecified(op, s, args);
  };
  EXPECT_TRUE(open(Op::Div, Scalar::U32, 1, 0));
  EXPECT_TRUE(open(Op::Rem, Scalar::I32, i(kLow), i(-1)));
  EXPECT_FALSE(open(Op::Rem, Scalar::U32, i(kLow), i(-1)));
  EXPECT_FALSE(open(Op::Div, Scalar::F32, f(1.0f), 0));
  EXPECT_TRUE(open(Op::Shl, Scalar::U32, 1, 32));
  EXPECT_FALSE(open(Op::Shl, Scalar::U64, 1, 32));
  EXPECT_TRUE(open(Op::Max, Scalar::F32, f(0.0f), f(-0.0f)));
  EXPECT_FALSE(open(Op::Max, Scalar::F32, f(0.0f), f(0.0f)));
}

TEST(Evaluate, RefusesTypesThatAnInstructionDoesNotHave) {
  const u64 args[] = {1, 1};
  EXPECT_THROW(evaluate(Op::Add, Scalar::Bool, Scalar::Bool, args), Error);
  EXPECT_THROW(evaluate(Op::Sqrt, Scalar::U32, Scalar::U32, args), Error);
  EXPECT_THROW(evaluate(Op::And, Scalar::F32, Scalar::F32, args), Error);
}

}  // namespace
}  // namespace oa::kernel
