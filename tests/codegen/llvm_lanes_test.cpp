// Exchange between lanes, shared memory and atomics of the CPU lowering.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/codegen/gang.h"

namespace oa::codegen {
namespace {

using namespace oa::kernel;

std::vector<u32> widths_on(const CpuTarget& target) {
  return target.cpu == host().cpu ? std::vector<u32>{1, 2, 4, 8, 16, 32, 64}
                                  : std::vector<u32>{8, 16};
}

template <class T>
std::vector<T> lane_values(u32 width) {
  std::vector<T> v(width);
  for (u32 l = 0; l < width; ++l) v[l] = static_cast<T>(l * 7 % 13);
  return v;
}

template <class T>
void check_shuffles(Scalar s) {
  for (const CpuTarget& target : targets()) {
    for (const u32 width : widths_on(target)) {
      std::vector<T> in = lane_values<T>(width), moved(width), turned(width), one(width),
                     rotated(width);
      std::vector<u32> from(width);
      for (u32 l = 0; l < width; ++l) from[l] = (l * 5 + 3) % width;
      const u32 mask = width / 2 + (width > 2);
      const Kernel k = traced(width, [&] {
        const Buffer x = param_buffer(s), source = param_buffer(Scalar::U32);
        const Buffer a = param_buffer(s), b = param_buffer(s), c = param_buffer(s),
                     d = param_buffer(s);
        const U32 which = param_u32();
        const Value v = x[lane()];
        a[lane()] = shuffle(v, U32(source[lane()]));
        b[lane()] = shuffle_xor(v, mask);
        c[lane()] = shuffle(v, which);
        d[lane()] = shuffle(v, (lane() + 1u) & (oa::kernel::width() - 1u));
      });
      run_on(
          target, k, 1,
          {word(in), word(from), word(moved), word(turned), word(one), word(rotated), width / 2});
      for (u32 l = 0; l < width; ++l) {
        ASSERT_EQ(moved[l], in[from[l]]) << width << " " << l << " " << target.cpu;
        ASSERT_EQ(turned[l], in[(l ^ mask) % width]) << width << " " << l;
        ASSERT_EQ(one[l], in[width / 2]);
        ASSERT_EQ(rotated[l], in[(l + 1) % width]);
      }
    }
  }
}

TEST(LlvmLanes, ShufflesOfEveryType) {
  check_shuffles<f32>(Scalar::F32);
  check_shuffles<u32>(Scalar::U32);
  check_shuffles<f64>(Scalar::F64);
  check_shuffles<i64>(Scalar::I64);
}

TEST(LlvmLanes, ShufflesOfBools) {
  for (const u32 width : {1u, 8u, 16u, 64u}) {
    std::vector<u8> in(width), out(width);
    std::vector<u32> from(width);
    for (u32 l = 0; l < width; ++l) in[l] = l % 3 == 1, from[l] = width - 1 - l;
    run(
        width, 1,
        [] {
          const Buffer x = param_buffer(Scalar::Bool), source = param_buffer(Scalar::U32),
                       y = param_buffer(Scalar::Bool);
          y[lane()] = shuffle(x[lane()].load(), U32(source[lane()]));
        },
        in, from, out);
    for (u32 l = 0; l < width; ++l) EXPECT_EQ(out[l], in[width - 1 - l]);
  }
}

TEST(LlvmLanes, VotesCountOnlyActiveLanes) {
  for (const CpuTarget& target : targets()) {
    for (const u32 width : widths_on(target)) {
      for (const u32 limit : {0u, 1u, width / 2, width}) {
        std::vector<u32> out(4, 7);
        const Kernel k = traced(width, [&] {
          const Buffer y = param_buffer(Scalar::U32);
          const U32 n = param_u32();
          y[0] = cast<U32>(subgroup_any(lane() < n));
          y[1] = cast<U32>(subgroup_all(lane() < n));
        });
        run_on(target, k, 1, {word(out), limit});
        EXPECT_EQ(out[0], limit > 0) << width;
        EXPECT_EQ(out[1], limit >= width) << width;
      }
    }
  }
}

TEST(LlvmLanes, GroupReduceOfTuples) {
  // Index of the largest value, the smaller index on ties.
  for (const u32 width : {1u, 4u, 16u, 64u}) {
    std::vector<f32> in(width);
    for (u32 l = 0; l < width; ++l) in[l] = static_cast<f32>(l * 11 % 17);
    std::vector<u32> out(width);
    run(
        width, 1,
        [] {
          const Buffer x = param_buffer(Scalar::F32), y = param_buffer(Scalar::U32);
          const std::vector<Value> start{x[lane()].load(), lane()};
          const auto best =
              group_reduce(start, [](std::span<const Value> a, std::span<const Value> b) {
                const Value second = (b[0] > a[0]) | ((b[0] == a[0]) & (b[1] < a[1]));
                return std::vector<Value>{select(second, b[0], a[0]), select(second, b[1], a[1])};
              });
          y[lane()] = best[1];
        },
        in, out);
    const u32 want = static_cast<u32>(std::max_element(in.begin(), in.end()) - in.begin());
    for (const u32 v : out) EXPECT_EQ(v, want);
  }
}

TEST(LlvmLanes, SharedMemoryCarriesValuesAcrossLanes) {
  for (const CpuTarget& target : targets()) {
    for (const Scalar s : {Scalar::U8, Scalar::F16, Scalar::F32, Scalar::F64}) {
      std::vector<f32> out(16);
      const Kernel k = traced(16, [&] {
        const Buffer y = param_buffer(Scalar::F32);
        const Shared a(s, 16), b(Scalar::F32, 3), c(s, 5);
        a[lane()] = cast(lane() * 2u, value_scalar(s));
        If(lane() == U32(3), [&] { c[4] = cast(U32(100), value_scalar(s)); });
        barrier();
        y[lane()] = cast<F32>(a[15u - lane()].load()) + cast<F32>(c[4].load());
      });
      run_on(target, k, 1, {word(out)});
      for (u32 l = 0; l < 16; ++l)
        EXPECT_EQ(out[l], static_cast<f32>((15 - l) * 2 + 100)) << name(s);
    }
  }
}

TEST(LlvmLanes, OneCellStoredByAllLanes) {
  // Uniform address: a uniform value, one value per lane, and under a mask (an active lane's).
  for (const CpuTarget& target : targets()) {
    std::vector<u32> out(3, 77);
    const Kernel k = traced(16, [] {
      const Buffer y = param_buffer(Scalar::U32);
      y[0] = U32(5);
      If(lane() == U32(6), [&] { y[1] = lane() * lane(); });
      If((lane() & 3u) == U32(2), [&] { y[2] = lane(); });
    });
    run_on(target, k, 1, {word(out)});
    EXPECT_EQ(out[0], 5u);
    EXPECT_EQ(out[1], 36u);
    EXPECT_EQ(out[2] % 4, 2u);
    EXPECT_LT(out[2], 16u);
  }
}

TEST(LlvmLanes, AtomicsOfEveryKind) {
  for (const CpuTarget& target : targets()) {
    for (const u32 width : widths_on(target)) {
      std::vector<u32> u{0, 1000, 3, ~0u, 0, 42};
      std::vector<i32> i{0, 5, -5};
      std::vector<u32> old(width), tickets(width);
      const Kernel k = traced(width, [] {
        const Buffer x = param_buffer(Scalar::U32), y = param_buffer(Scalar::I32),
                     o = param_buffer(Scalar::U32), t = param_buffer(Scalar::U32);
        x.atomic(AtomicOp::Add, U32(0), lane() + 1u);
        x.atomic(AtomicOp::Min, U32(1), lane() + 7u);
        x.atomic(AtomicOp::Max, U32(2), lane() * 2u);
        x.atomic(AtomicOp::And, U32(3), ~lane());
        x.atomic(AtomicOp::Or, U32(4), lane());
        o[lane()] = x.atomic(AtomicOp::Exchange, U32(5), lane());
        y.atomic(AtomicOp::Add, I32(0), I32(-2));
        y.atomic(AtomicOp::Min, I32(1), -cast<I32>(lane()));
        y.atomic(AtomicOp::Max, I32(2), cast<I32>(lane()) - 3);
        const Shared count(Scalar::U32, 1);
        If(lane() == U32(0), [&] { count[0] = U32(0); });
        barrier();
        const Var<U32> ticket(1000u);
        If(lane() % 2u == U32(0),
           [&] { ticket = U32(count.atomic(AtomicOp::Add, U32(0), U32(1))); });
        t[lane()] = *ticket;
      });
      run_on(target, k, 1, {word(u), word(i), word(old), word(tickets)});
      const u32 w = width;
      u32 all_or = 0;
      for (u32 l = 0; l < w; ++l) all_or |= l;
      EXPECT_EQ(u[0], w * (w + 1) / 2);
      EXPECT_EQ(u[1], 7u);
      EXPECT_EQ(u[2], std::max(3u, 2 * (w - 1)));
      EXPECT_EQ(u[3], ~all_or);
      EXPECT_EQ(u[4], all_or);
      EXPECT_EQ(i[0], -2 * static_cast<i32>(w));
      EXPECT_EQ(i[1], std::min(5, 1 - static_cast<i32>(w)));
      EXPECT_EQ(i[2], std::max(-5, static_cast<i32>(w) - 4));
      // Each value goes into the cell once and, but for the last, comes out once.
      std::vector<u32> seen(old);
      seen.push_back(u[5]);
      std::sort(seen.begin(), seen.end());
      std::vector<u32> expected(w);
      std::iota(expected.begin(), expected.end(), 0u);
      expected.push_back(42);
      std::sort(expected.begin(), expected.end());
      EXPECT_EQ(seen, expected);
      for (u32 l = 0; l < w; ++l) EXPECT_EQ(tickets[l], l % 2 ? 1000 : l / 2) << l;
    }
  }
}

TEST(LlvmLanes, CompareExchangeUnderAMaskAndWithAddressesPerLane) {
  for (const CpuTarget& target : targets()) {
    for (const u32 width : widths_on(target)) {
      std::vector<u32> cells(width), old(width, 77);
      for (u32 l = 0; l < width; ++l) cells[l] = l % 4;
      const Kernel k = traced(width, [] {
        const Buffer x = param_buffer(Scalar::U32), o = param_buffer(Scalar::U32);
        If(lane() % 3u != U32(0), [&] {
          o[lane()] = x.compare_exchange(oa::kernel::width() - 1u - lane(), U32(2), lane() + 100u);
        });
      });
      run_on(target, k, 1, {word(cells), word(old)});
      for (u32 l = 0; l < width; ++l) {
        const u32 cell = width - 1 - l, before = cell % 4;
        EXPECT_EQ(old[l], l % 3 ? before : 77);
        EXPECT_EQ(cells[cell], l % 3 && before == 2 ? l + 100 : before);
      }
    }
  }
}

}  // namespace
}  // namespace oa::codegen
