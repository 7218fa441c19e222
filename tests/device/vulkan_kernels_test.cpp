// Memory, lanes, control flow and parameters on a Vulkan device against plain C++.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>

#include "oa/core/dtype.h"
#include "tests/device/vulkan_run.h"

namespace oa::device::test {
namespace {

using namespace oa::kernel;

class VulkanKernels : public VulkanTest {
 protected:
  u32 width() const { return target().width; }
  u32 groups_for(size_t n) const { return static_cast<u32>((n + width() - 1) / width()); }

  // y[i] = x[i] for buffers of two element types, `lanes` at a time; n is a multiple of lanes.
  void copy(Scalar from, Scalar to, u32 lanes, Bytes& x, Bytes& y, u32 n) const {
    run(traced([&] {
          Buffer in = param_buffer(from), out = param_buffer(to);
          const U32 count = param_u32();
          const U32 i = (group() * U32(kernel::width()) + lane()) * U32(lanes);
          If(i < count, [&] { out.store(i, in.load(i, lanes)); });
        }),
        groups_for(n / lanes), {&x, &y}, {n});
  }
};

std::vector<f32> random_floats(u32 n) {
  std::mt19937 random(7);
  std::vector<f32> v = {0.0f,        -0.0f,       1.0f,       65504.0f, 65519.0f,   65520.0f,
                        -65536.0f,   0x1p-14f,    0x1p-24f,   0x1p-25f, 0x1.8p-24f, 0x1.ffcp-15f,
                        1e-30f,      INFINITY,    -INFINITY,  NAN,      3.3e38f,    0x1.fep127f,
                        0x1.ffp127f, 1.00390625f, 1.01171875f};
  while (v.size() < n) {
    // Half of them in the range of F16.
    u32 bits = random();
    if (v.size() % 2) bits = (bits & 0x8fffffff) | 0x30000000 | (random() & 0x0f000000);
    v.push_back(std::bit_cast<f32>(bits));
  }
  return v;
}

TEST_F(VulkanKernels, HalfStoresRoundToNearestEven) {
  const u32 n = 20000;
  const auto x = random_floats(n);
  for (Scalar s : {Scalar::F16, Scalar::BF16}) {
    for (u32 lanes : {1u, 2u, 4u}) {
      Bytes in = bytes_of(x), out(2 * n, 0xee);
      copy(Scalar::F32, s, lanes, in, out, n);
      const auto got = values_of<u16>(out);
      for (u32 i = 0; i < n; ++i) {
        const u16 expected = s == Scalar::F16 ? f32_to_f16(x[i]) : f32_to_bf16(x[i]);
        if (std::isnan(x[i])) {
          const f32 back = s == Scalar::F16 ? f16_to_f32(got[i]) : bf16_to_f32(got[i]);
          ASSERT_TRUE(std::isnan(back)) << name(s) << " " << i;
        } else if (std::fpclassify(x[i]) != FP_SUBNORMAL || s == Scalar::F16) {
          ASSERT_EQ(got[i], expected) << name(s) << " lanes " << lanes << " of " << x[i];
        }
      }
    }
  }
}

TEST_F(VulkanKernels, HalfLoadsAreExact) {
  const u32 n = 65536;
  std::vector<u16> x(n);
  std::iota(x.begin(), x.end(), u16{0});
  for (Scalar s : {Scalar::F16, Scalar::BF16}) {
    for (u32 lanes : {1u, 4u}) {
      Bytes in = bytes_of(x), out(4 * n);
      copy(s, Scalar::F32, lanes, in, out, n);
      const auto got = values_of<f32>(out);
      for (u32 i = 0; i < n; ++i) {
        const f32 expected = s == Scalar::F16 ? f16_to_f32(x[i]) : bf16_to_f32(x[i]);
        if (std::isnan(expected)) {
          ASSERT_TRUE(std::isnan(got[i])) << i;
        } else {
          ASSERT_EQ(std::bit_cast<u32>(got[i]), std::bit_cast<u32>(expected)) << name(s) << i;
        }
      }
    }
  }
}

TEST_F(VulkanKernels, ByteLoadsAndStores) {
  const u32 n = 300;
  std::vector<u32> wide(n);
  for (u32 i = 0; i < n; ++i) wide[i] = i * 77;
  for (u32 lanes : {1u, 2u, 4u}) {
    Bytes x = bytes_of(wide), y(n + 4, 0xee), z(4 * n);
    copy(Scalar::U32, Scalar::U8, lanes, x, y, n);
    for (u32 i = 0; i < n; ++i) ASSERT_EQ(y[i], static_cast<u8>(wide[i])) << i;
    for (u32 i = n; i < n + 4; ++i) ASSERT_EQ(y[i], 0xee);  // nothing is written beyond
    copy(Scalar::U8, Scalar::U32, lanes, y, z, n);
    EXPECT_EQ(values_of<u32>(z)[255], static_cast<u8>(wide[255]));
    // Any byte but zero is true, and true is stored as one.
    copy(Scalar::Bool, Scalar::Bool, lanes, y, x, n);
    for (u32 i = 0; i < n; ++i) ASSERT_EQ(x[i], y[i] != 0) << i;
  }
}

TEST_F(VulkanKernels, WideElements) {
  const u32 n = 64;
  std::vector<u64> x(n);
  for (u32 i = 0; i < n; ++i) x[i] = 0x0123456789abcdefull * (i + 1);
  for (Scalar s : {Scalar::U64, Scalar::I64, Scalar::F64}) {
    if (s == Scalar::F64 && !target().f64) continue;
    for (u32 lanes : {1u, 2u, 4u}) {
      Bytes in = bytes_of(x), out(8 * n);
      copy(s, s, lanes, in, out, n);
      EXPECT_EQ(in, out) << name(s) << lanes;
    }
  }
}

TEST_F(VulkanKernels, NegativeAndWideIndices) {
  Bytes x = bytes_of(std::vector<f32>(8, 0.0f));
  run(traced([] {
        Buffer base = param_buffer(Scalar::F32);
        Buffer middle(Scalar::F32, base.address() + U64(16));
        If(lane() == U32(0), [&] {
          middle[I32(-1)] = F32(1.0f);                                        // 3
          middle[I32(-2) * cast<I32>(group_count())] = F32(2.0f);             // 2
          middle[cast<I64>(I32(-3)) * cast<I64>(group_count())] = F32(3.0f);  // 1
          middle[cast<U64>(group_count())] = F32(4.0f);                       // 5
          middle[group_count() * U32(2)] = F32(5.0f);                         // 6
        });
      }),
      1, {&x});
  EXPECT_EQ(values_of<f32>(x), (std::vector<f32>{0, 3, 2, 1, 0, 4, 5, 0}));
}

// Each workgroup reverses its elements through workgroup memory.
TEST_F(VulkanKernels, SharedMemoryOfEveryType) {
  const u32 w = width(), n = 3 * w;
  for (Scalar s : {Scalar::Bool, Scalar::U8, Scalar::I32, Scalar::U32, Scalar::I64, Scalar::U64,
                   Scalar::F16, Scalar::BF16, Scalar::F32, Scalar::F64}) {
    if (s == Scalar::F64 && !target().f64) continue;
    SCOPED_TRACE(name(s));
    const u32 bytes = size_bytes(s);
    Bytes x(n * bytes), y(n * bytes);
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = s == Scalar::Bool ? i % 3 == 0 : static_cast<u8>(i * 37 + 1) & 0x3f;
    }
    run(traced([&] {
          Buffer in = param_buffer(s), out = param_buffer(s);
          Shared cells(s, kernel::width());
          const U32 first = group() * U32(kernel::width());
          cells[lane()] = Value(in[first + lane()]);
          barrier();
          out[first + lane()] = Value(cells[U32(kernel::width() - 1) - lane()]);
        }),
        3, {&x, &y});
    for (u32 i = 0; i < n; ++i) {
      const u32 from = i / w * w + (w - 1 - i % w);
      ASSERT_TRUE(std::equal(&y[i * bytes], &y[i * bytes] + bytes, &x[from * bytes])) << i;
    }
  }
}

// Vectors go in, scalars and other vectors come out, from slots of every alignment.
TEST_F(VulkanKernels, SharedVectors) {
  const u32 w = width();
  for (u32 put : {1u, 2u, 4u}) {
    for (u32 take : {1u, 2u, 4u}) {
      for (u32 extra : {0u, 1u, 2u}) {
        SCOPED_TRACE(fmt::format("{} {} {}", put, take, extra));
        std::vector<f32> x(4 * w);
        std::iota(x.begin(), x.end(), 1.0f);
        Bytes in = bytes_of(x), out(in.size());
        run(traced([&] {
              Buffer from = param_buffer(Scalar::F32), to = param_buffer(Scalar::F32);
              Shared cells(Scalar::F32, 4 * w + extra);
              For(lane() * U32(put), U32(4 * w), U32(w * put),
                  [&](U32 i) { cells.store(i, from.load(i, put)); });
              barrier();
              For(lane() * U32(take), U32(4 * w), U32(w * take),
                  [&](U32 i) { to.store(i, cells.load(i, take)); });
            }),
            1, {&in, &out});
        EXPECT_EQ(values_of<f32>(out), x);
      }
    }
  }
}

TEST_F(VulkanKernels, HalvesRoundInSharedMemory) {
  const u32 n = 1024;
  const auto x = random_floats(n);
  for (Scalar s : {Scalar::F16, Scalar::BF16}) {
    Bytes in = bytes_of(x), out(4 * n);
    run(traced([&] {
          Buffer from = param_buffer(Scalar::F32), to = param_buffer(Scalar::F32);
          Shared cells(s, kernel::width());
          const U32 i = group() * U32(kernel::width()) + lane();
          cells[lane()] = F32(from[i]);
          barrier();
          to[i] = Value(cells[lane()]);
        }),
        n / width(), {&in, &out});
    const auto got = values_of<f32>(out);
    for (u32 i = 0; i < n; ++i) {
      const f32 expected =
          s == Scalar::F16 ? f16_to_f32(f32_to_f16(x[i])) : bf16_to_f32(f32_to_bf16(x[i]));
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(got[i]));
      } else if (std::fpclassify(expected) != FP_SUBNORMAL) {
        ASSERT_EQ(got[i], expected) << name(s) << " of " << x[i];
      }
    }
  }
}

TEST_F(VulkanKernels, Atomics) {
  const u32 groups = 5, w = width(), n = groups * w;
  for (Scalar s : {Scalar::U32, Scalar::I32}) {
    SCOPED_TRACE(name(s));
    std::vector<u32> x(n);
    std::mt19937 random(3);
    for (u32& v : x) v = random();
    std::vector<u32> cells = {0, 0x7fffffffu, 0x80000000u, ~0u, 0, 12345, 100, 0};
    if (s == Scalar::U32) cells[1] = ~0u, cells[2] = 0;
    Bytes in = bytes_of(x), out = bytes_of(cells), olds(4 * n);
    run(traced([&] {
          Buffer from = param_buffer(s), to = param_buffer(s), old = param_buffer(s);
          const U32 i = group() * U32(kernel::width()) + lane();
          const Value v = from[i];
          old[i] = to.atomic(AtomicOp::Add, U32(0), constant_int(s, 1));
          to.atomic(AtomicOp::Min, U32(1), v);
          to.atomic(AtomicOp::Max, U32(2), v);
          to.atomic(AtomicOp::And, U32(3), v | constant_int(s, 0xff00));
          to.atomic(AtomicOp::Or, U32(4), v & constant_int(s, 0xff));
          to.atomic(AtomicOp::Exchange, U32(5), v);
          to.compare_exchange(U32(6), constant_int(s, 100), constant_int(s, 200));
          to.compare_exchange(U32(7), constant_int(s, 100), constant_int(s, 200));
          // The same in workgroup memory, combined at the end.
          Shared sum(s, 2);
          If(lane() < U32(2), [&] { sum[lane()] = constant_int(s, 0); });
          barrier();
          sum.atomic(AtomicOp::Add, lane() % U32(2), constant_int(s, 3));
          barrier();
          If(lane() == U32(0), [&] { to.atomic(AtomicOp::Add, U32(8), Value(sum[U32(1)])); });
        }),
        groups, {&in, &(out.resize(36), out), &olds});
    const auto got = values_of<u32>(out);
    const auto less = [s](u32 a, u32 b) {
      return s == Scalar::U32 ? a < b : static_cast<i32>(a) < static_cast<i32>(b);
    };
    u32 ands = ~0u, ors = 0;
    for (u32 v : x) ands &= v | 0xff00, ors |= v & 0xff;
    EXPECT_EQ(got[0], n);
    EXPECT_EQ(got[1], *std::min_element(x.begin(), x.end(), less));
    EXPECT_EQ(got[2], *std::max_element(x.begin(), x.end(), less));
    EXPECT_EQ(got[3], ands);
    EXPECT_EQ(got[4], ors);
    EXPECT_NE(std::find(x.begin(), x.end(), got[5]), x.end());
    EXPECT_EQ(got[6], 200u);
    EXPECT_EQ(got[7], 0u);
    EXPECT_EQ(got[8], groups * (w / 2) * 3);
    auto old = values_of<u32>(olds);  // every count was seen once
    std::sort(old.begin(), old.end());
    for (u32 i = 0; i < n; ++i) ASSERT_EQ(old[i], i);
  }
}

TEST_F(VulkanKernels, ShufflesOfEveryType) {
  for (Scalar s : {Scalar::Bool, Scalar::I32, Scalar::U32, Scalar::I64, Scalar::U64, Scalar::F32,
                   Scalar::F64}) {
    if (s == Scalar::F64 && !target().f64) continue;
    SCOPED_TRACE(name(s));
    for (u32 w : {width(), target().subgroup, target().subgroup / 2}) {
      const u32 sub = std::min(w, target().subgroup);
      const u32 bytes = size_bytes(s);
      Bytes x(w * bytes), y(w * bytes), z(w * bytes);
      for (u32 i = 0; i < w; ++i) {
        for (u32 b = 0; b < bytes; ++b) x[i * bytes + b] = static_cast<u8>(i + 16 * b) & 0x3f;
        if (s == Scalar::Bool) x[i] = i % 3 == 1;
      }
      run(traced(
              [&] {
                Buffer in = param_buffer(s), a = param_buffer(s), b = param_buffer(s);
                const Value v = in[lane()];
                a[lane()] = shuffle_xor(v, sub - 1);
                b[lane()] = shuffle(v, (lane() * U32(3) + U32(1)) % U32(sub));
              },
              w),
          1, {&x, &y, &z});
      for (u32 i = 0; i < w; ++i) {
        const u32 first = i / sub * sub;
        const u32 from_y = first + ((i - first) ^ (sub - 1));
        const u32 from_z = first + (i * 3 + 1) % sub;
        ASSERT_TRUE(std::equal(&y[i * bytes], &y[i * bytes] + bytes, &x[from_y * bytes])) << i;
        ASSERT_TRUE(std::equal(&z[i * bytes], &z[i * bytes] + bytes, &x[from_z * bytes])) << i;
      }
    }
  }
}

TEST_F(VulkanKernels, Votes) {
  const u32 w = width(), sub = target().subgroup;
  Bytes any(4 * w), all(4 * w);
  run(traced([&] {
        Buffer a = param_buffer(Scalar::U32), b = param_buffer(Scalar::U32);
        a[lane()] = cast<U32>(subgroup_any(lane() == U32(sub + 1)));
        b[lane()] = cast<U32>(subgroup_all(lane() < U32(2 * sub - 1)));
      }),
      1, {&any, &all});
  for (u32 i = 0; i < w; ++i) {
    EXPECT_EQ(values_of<u32>(any)[i], i / sub == 1 ? 1u : 0u) << i;
    EXPECT_EQ(values_of<u32>(all)[i], i / sub == 0 ? 1u : 0u) << i;
  }
}

TEST_F(VulkanKernels, GroupReduceOfAPair) {
  const u32 w = width(), groups = 4;
  std::vector<f32> x(groups * w);
  std::mt19937 random(5);
  for (f32& v : x) v = static_cast<f32>(random() % 1000);
  Bytes in = bytes_of(x), best(4 * groups * w), where(4 * groups * w);
  run(traced([&] {
        Buffer from = param_buffer(Scalar::F32), to = param_buffer(Scalar::F32);
        Buffer index = param_buffer(Scalar::U32);
        const U32 i = group() * U32(kernel::width()) + lane();
        const Value mine[] = {Value(from[i]), lane()};
        // Twice, since the cells must be free again for a second round.
        for (int round = 0; round < 2; ++round) {
          const auto r = group_reduce(mine, [](auto a, auto b) {
            const Value first = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]));
            return std::vector<Value>{select(first, a[0], b[0]), select(first, a[1], b[1])};
          });
          to[i] = r[0];
          index[i] = r[1];
        }
      }),
      groups, {&in, &best, &where});
  for (u32 i = 0; i < groups * w; ++i) {
    const auto first = x.begin() + i / w * w;
    const auto top = std::max_element(first, first + w);
    ASSERT_EQ(values_of<f32>(best)[i], *top);
    ASSERT_EQ(values_of<u32>(where)[i], static_cast<u32>(top - first));
  }
}

TEST_F(VulkanKernels, LoopsAndBranches) {
  const u32 n = 3 * width();
  Bytes out(4 * n);
  run(traced([] {
        Buffer y = param_buffer(Scalar::U32);
        const U32 i = group() * U32(kernel::width()) + lane();
        // Collatz steps, with the odd numbers' doubles counted, below a limit per lane.
        Var<U32> v(i + U32(1)), steps(0), odd(0);
        While([&] { return (*v != U32(1)) & (*steps < U32(100)); },
              [&] {
                If(
                    *v % U32(2) == U32(0), [&] { v = *v / U32(2); },
                    [&] {
                      v = *v * U32(3) + U32(1);
                      For(U32(0), i % U32(4), U32(1),
                          [&](U32 j) { If(j != U32(2), [&] { odd += U32(1); }); });
                    });
                steps += U32(1);
              });
        // A loop that runs backwards through signed numbers, from a begin that is not constant.
        Var<I32> sum(0);
        For(I32(0) - cast<I32>(i), I32(3), I32(5), [&](const Value& j) { sum += I32(j); });
        y[i] = *steps + *odd * U32(1000) + bitcast<U32>(*sum) * U32(100000);
      }),
      3, {&out});
  for (u32 i = 0; i < n; ++i) {
    u32 v = i + 1, steps = 0, odd = 0;
    while (v != 1 && steps < 100) {
      if (v % 2 == 0) {
        v /= 2;
      } else {
        v = v * 3 + 1;
        for (u32 j = 0; j < i % 4; ++j) odd += j != 2;
      }
      ++steps;
    }
    i32 sum = 0;
    for (i32 j = -static_cast<i32>(i); j < 3; j += 5) sum += j;
    ASSERT_EQ(values_of<u32>(out)[i], steps + odd * 1000 + static_cast<u32>(sum) * 100000) << i;
  }
}

// A barrier inside a loop that is uniform: a running sum by doubling steps.
TEST_F(VulkanKernels, BarriersInLoops) {
  const u32 w = width();
  std::vector<u32> x(w);
  std::iota(x.begin(), x.end(), 3u);
  Bytes in = bytes_of(x), out(4 * w);
  run(traced([&] {
        Buffer from = param_buffer(Scalar::U32), to = param_buffer(Scalar::U32);
        Shared cells(Scalar::U32, w);
        cells[lane()] = Value(from[lane()]);
        barrier();
        Var<U32> step(1);
        While([&] { return *step < U32(w); },
              [&] {
                Var<U32> other(0);
                If(lane() >= *step, [&] { other = U32(cells[lane() - *step]); });
                barrier();
                cells[lane()] = U32(cells[lane()]) + *other;
                barrier();
                step = *step * U32(2);
              });
        to[lane()] = Value(cells[lane()]);
      }),
      1, {&in, &out});
  std::partial_sum(x.begin(), x.end(), x.begin());
  EXPECT_EQ(values_of<u32>(out), x);
}

// Lanes talk through device memory across a device barrier.
TEST_F(VulkanKernels, DeviceBarrier) {
  const u32 w = width();
  Bytes out(4 * w), scratch(4 * w);
  run(traced([&] {
        Buffer to = param_buffer(Scalar::U32), cells = param_buffer(Scalar::U32);
        cells[lane()] = lane() * U32(7);
        barrier(kDeviceMemory);
        to[lane()] = Value(cells[lane() ^ U32(w - 1)]);
      }),
      1, {&out, &scratch});
  for (u32 i = 0; i < w; ++i) EXPECT_EQ(values_of<u32>(out)[i], (i ^ (w - 1)) * 7);
}

TEST_F(VulkanKernels, ParametersOfEveryTypeAndCount) {
  for (u32 count : {1u, 10u, 31u, 32u, 33u, 60u}) {
    SCOPED_TRACE(count);
    Bytes out(8 * (count + 1));
    std::vector<u64> extra;
    for (u32 i = 1; i < count; ++i) {
      switch (i % 3) {
        case 0: extra.push_back(0xfedcba9876543210ull + i); break;
        case 1: extra.push_back(0xaaaaaaaa00000000ull | (1000 + i)); break;
        default: extra.push_back(std::bit_cast<u32>(0.5f * static_cast<f32>(i)));
      }
    }
    run(traced([&] {
          Buffer to = param_buffer(Scalar::U64);
          for (u32 i = 1; i < count; ++i) {
            if (i % 3 == 0) to[i] = param_u64();
            if (i % 3 == 1) to[i] = cast<U64>(param_u32());
            if (i % 3 == 2) to[i] = cast<U64>(param_f32() * F32(2.0f));
          }
          to[0] = cast<U64>(group_count());
        }),
        3, {&out}, extra);
    const auto got = values_of<u64>(out);
    EXPECT_EQ(got[0], 3u);
    for (u32 i = 1; i < count; ++i) {
      const u64 expected = i % 3 == 0 ? 0xfedcba9876543210ull + i : i % 3 == 1 ? 1000 + i : i;
      EXPECT_EQ(got[i], expected) << i;
    }
  }
}

// More workgroups than one dimension of a dispatch may have.
TEST_F(VulkanKernels, ManyGroups) {
  const u32 groups = 70001;
  Bytes out(4 * groups);
  run(traced(
          [] {
            Buffer to = param_buffer(Scalar::U32);
            to.atomic(AtomicOp::Add, group(), group() + U32(1));
            If(group() >= group_count(), [&] { to[0] = U32(99); });
          },
          1),
      groups, {&out});
  const auto got = values_of<u32>(out);
  for (u32 i = 0; i < groups; ++i) ASSERT_EQ(got[i], i + 1);
}

TEST_F(VulkanKernels, SelectOfVectorsAndBools) {
  Bytes out(64), flags(4);
  run(traced([] {
        Buffer to = param_buffer(Scalar::F32), f = param_buffer(Scalar::Bool);
        const Value a = vec({F32(1), F32(2), F32(3), F32(4)});
        const Value b = vec({F32(5), F32(6), F32(7), F32(8)});
        VarValue v(a);
        If(lane() < U32(4), [&] {
          v = select(lane() % U32(2) == U32(1), b, *v);
          to.store(lane() * U32(4), *v);
          const Bool odd = lane() % U32(2) == U32(1);
          f[lane()] = select(odd, !odd, Bool(true));
        });
      }),
      1, {&out, &flags});
  EXPECT_EQ(values_of<f32>(out),
            (std::vector<f32>{1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(flags, (Bytes{1, 0, 1, 0}));
}

}  // namespace
}  // namespace oa::device::test
