// Control flow of the CPU lowering against plain C++ loops, lane by lane.
#include <gtest/gtest.h>

#include "oa/core/error.h"
#include "tests/codegen/gang.h"

namespace oa::codegen {
namespace {

using namespace oa::kernel;

constexpr u32 kWidths[] = {1, 2, 8, 16, 32, 64};

std::vector<u32> widths_on(const CpuTarget& target) {
  return target.cpu == host().cpu ? std::vector<u32>(std::begin(kWidths), std::end(kWidths))
                                  : std::vector<u32>{16};
}

// One value per lane: body(lane) writes out[lane] and want(lane, width) says what it must be.
void check_lanes(const std::function<void(const Buffer&, const U32& n)>& body,
                 const std::function<u32(u32 lane, u32 width, u32 n)>& want,
                 const std::vector<u32>& numbers = {0, 1, 5, 16, 40}) {
  for (const CpuTarget& target : targets()) {
    for (const u32 width : widths_on(target)) {
      const Kernel k = traced(width, [&] {
        const Buffer out = param_buffer(Scalar::U32);
        const U32 n = param_u32();
        body(out, n);
      });
      const auto code = loader().load(compile_object(k, target, "lanes"), "lanes");
      for (const u32 n : numbers) {
        std::vector<u32> out(width, 77);
        const u64 params[] = {word(out), n};
        code->function()(params, 0, 1, 1);
        for (u32 l = 0; l < width; ++l) {
          ASSERT_EQ(out[l], want(l, width, n))
              << "lane " << l << " width " << width << " n " << n << " " << target.cpu;
        }
      }
    }
  }
}

TEST(LlvmControl, IfElseNested) {
  check_lanes(
      [](const Buffer& out, const U32& n) {
        const Var<U32> v(1u);
        If(
            lane() % 2u == U32(0),
            [&] {
              v = *v + 10u;
              If(lane() < n, [&] { v = *v * 2u; }, [&] { v = *v + 100u; });
            },
            [&] {
              v = *v + 20u;
              If(n > U32(4), [&] { If(lane() % 3u == U32(0), [&] { v = U32(9); }); });
            });
        out[lane()] = *v;
      },
      [](u32 l, u32, u32 n) {
        u32 v = 1;
        if (l % 2 == 0) {
          v += 10;
          v = l < n ? v * 2 : v + 100;
        } else {
          v += 20;
          if (n > 4 && l % 3 == 0) v = 9;
        }
        return v;
      });
}

TEST(LlvmControl, WhileWithTripCountsPerLane) {
  check_lanes(
      [](const Buffer& out, const U32& n) {
        const Var<U32> x(lane() + n + 1u), steps(0u);
        While([&] { return *x != U32(1); },
              [&] {
                If(*x % 2u == U32(0), [&] { x = *x / 2u; }, [&] { x = *x * 3u + 1u; });
                steps += U32(1);
              });
        out[lane()] = *steps;
      },
      [](u32 l, u32, u32 n) {
        u32 x = l + n + 1, steps = 0;
        for (; x != 1; ++steps) x = x % 2 ? 3 * x + 1 : x / 2;
        return steps;
      });
}

TEST(LlvmControl, LoopsNestedInVaryingLoops) {
  check_lanes(
      [](const Buffer& out, const U32& n) {
        const Var<U32> sum(0u);
        For(U32(0), lane() % 5u, U32(1), [&](U32 i) {
          For(lane() % 3u, n, U32(2), [&](U32 j) {
            const Var<U32> k(0u);
            While([&] { return *k < min(j, U32(3)); },
                  [&] {
                    k += U32(1);
                    sum += i * 100u + j + *k;
                  });
          });
          If(i == U32(2), [&] { sum += U32(1000); });
        });
        out[lane()] = *sum;
      },
      [](u32 l, u32, u32 n) {
        u32 sum = 0;
        for (u32 i = 0; i < l % 5; ++i) {
          for (u32 j = l % 3; j < n; j += 2) {
            for (u32 k = 0; k < std::min(j, 3u);) sum += i * 100 + j + ++k;
          }
          if (i == 2) sum += 1000;
        }
        return sum;
      });
}

TEST(LlvmControl, ForOverTheGangInsideMasks) {
  check_lanes(
      [](const Buffer& out, const U32& n) {
        const Var<U32> sum(0u), trips(0u);
        If(lane() % 4u != U32(1), [&] {
          For(lane(), n, U32(width()), [&](U32 i) {
            sum += i;
            trips += U32(1);
          });
          For(lane() * 3u, n, U32(7), [&](U32 i) { sum += i * i; });
        });
        out[lane()] = *sum + *trips * 100000u;
      },
      [](u32 l, u32 width, u32 n) {
        u32 sum = 0, trips = 0;
        if (l % 4 != 1) {
          for (u32 i = l; i < n; i += width) sum += i, ++trips;
          for (u32 i = l * 3; i < n; i += 7) sum += i * i;
        }
        return sum + trips * 100000;
      });
}

TEST(LlvmControl, SignedLoopsThroughZero) {
  check_lanes(
      [](const Buffer& out, const U32& n) {
        const Var<I32> sum(0);
        const I32 end = cast<I32>(n) - 8;
        For(cast<I32>(lane()) - 20, end, I32(static_cast<i32>(width())),
            [&](const Value& i) { sum += I32(i) + 1000; });
        For(I32(-10), end, I32(3), [&](const Value& i) { sum += I32(i); });
        For(I32(-4), cast<I32>(lane()) - 3, I32(1), [&](const Value& i) { sum += I32(i); });
        out[lane()] = cast<U32>(*sum);
      },
      [](u32 l, u32 width, u32 n) {
        const i32 end = static_cast<i32>(n) - 8;
        i32 sum = 0;
        for (i32 i = static_cast<i32>(l) - 20; i < end; i += static_cast<i32>(width))
          sum += i + 1000;
        for (i32 i = -10; i < end; i += 3) sum += i;
        for (i32 i = -4; i < static_cast<i32>(l) - 3; ++i) sum += i;
        return static_cast<u32>(sum);
      });
}

TEST(LlvmControl, WideCounters) {
  constexpr u64 kFar = u64{1} << 40;
  check_lanes(
      [](const Buffer& out, const U32& n) {
        const Var<U64> sum(U64(0));
        const auto far = [](const U32& x) { return Value(cast<U64>(x) + U64(kFar)); };
        For(far(lane()), far(n), Value(U64(width())),
            [&](const Value& i) { sum += U64(i) - U64(kFar); });
        For(Value(cast<I64>(lane()) - I64(5)), Value(cast<I64>(n)), Value(I64(2)),
            [&](const Value& i) { sum += cast<U64>(I64(i) + 5); });
        out[lane()] = cast<U32>(*sum);
      },
      [](u32 l, u32 width, u32 n) {
        u64 sum = 0;
        for (u64 i = kFar + l; i < kFar + n; i += width) sum += i - kFar;
        for (i64 i = static_cast<i64>(l) - 5; i < static_cast<i64>(n); i += 2)
          sum += static_cast<u64>(i + 5);
        return static_cast<u32>(sum);
      });
}

TEST(LlvmControl, LoopsUpToTheLastIndex) {
  check_lanes(
      [](const Buffer& out, const U32&) {
        const Var<U32> trips(0u);
        For(U32(0xfffffff0u), U32(0xffffffffu), U32(1), [&](U32) { trips += U32(1); });
        For(I32(0x7ffffff0), I32(0x7fffffff), I32(1), [&](const Value&) { trips += U32(100); });
        For(U32(0xffffff80u) + lane(), U32(0xffffffffu), U32(64),
            [&](U32) { trips += U32(10000); });
        out[lane()] = *trips;
      },
      [](u32 l, u32, u32) {
        u32 trips = 15 + 15 * 100;
        for (u64 i = 0xffffff80u + u64{l}; i < 0xffffffffu; i += 64) trips += 10000;
        return trips;
      },
      {0});
}

TEST(LlvmControl, VariablesKeepWhatTheirLanesStored) {
  // Stored under one mask, read under another, over several trips of a loop around both.
  check_lanes(
      [](const Buffer& out, const U32& n) {
        const Var<U32> kept(5u);
        For(U32(0), n, U32(1), [&](U32 i) {
          If((lane() + i) % 3u == U32(0), [&] {
            const Var<U32> local(i);
            If(lane() % 2u == U32(0), [&] { local = *local + 50u; });
            kept = *kept + *local;
          });
          If((lane() + i) % 5u == U32(1), [&] { kept = *kept * 2u; });
        });
        out[lane()] = *kept;
      },
      [](u32 l, u32, u32 n) {
        u32 kept = 5;
        for (u32 i = 0; i < n; ++i) {
          if ((l + i) % 3 == 0) kept += i + (l % 2 == 0 ? 50 : 0);
          if ((l + i) % 5 == 1) kept *= 2;
        }
        return kept;
      });
}

TEST(LlvmControl, UniformLoopsWithMemoryAndVariables) {
  check_lanes(
      [](const Buffer& out, const U32& n) {
        const Var<U32> count(0u), place(lane());
        While([&] { return *count < n; },
              [&] {
                count += U32(1);
                place = *place + 2u;
              });
        out[lane()] = *place * 10u + *count;
      },
      [](u32 l, u32, u32 n) { return (l + 2 * n) * 10 + n; });
}

TEST(LlvmControl, GroupsRunInOrderAndOnlyThoseAskedFor) {
  std::vector<u32> out(8 * 6, 99);
  const Kernel k = traced(8, [] {
    const Buffer y = param_buffer(Scalar::U32);
    y[group() * width() + lane()] = group() * 10u + group_count();
  });
  const auto code = loader().load(compile_object(k, host(), "groups"), "groups");
  const u64 params[] = {word(out)};
  code->function()(params, 2, 4, 6);
  code->function()(params, 5, 5, 6);
  for (u32 i = 0; i < out.size(); ++i) {
    const u32 g = i / 8;
    EXPECT_EQ(out[i], g == 2 || g == 3 ? g * 10 + 6 : 99);
  }
}

TEST(LlvmControl, StepsThatDifferBetweenLanesAreRefused) {
  const Kernel k = traced(8, [] { For(U32(0), U32(9), lane() + 1u, [](U32) {}); });
  EXPECT_THROW(compile_object(k, host(), "x"), Error);
}

}  // namespace
}  // namespace oa::codegen
